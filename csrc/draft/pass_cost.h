// What a pass of each width costs on this machine, learnt while decoding.
//
// A running median, not a mean: one pass in a hundred is interrupted for milliseconds, and such a
// pass must not decide about drafts. Costs grow with the context, and a machine's memory changes
// its speed, so widths that are not run move along with those that are: all share one level. What
// one width alone takes moves the level too, and the others pull it back as they are run.
//
// What a width costs that was not run yet follows from those next to it, and from what a pass has
// to read: of a mixture the experts that any of its rows chooses, which are nearly twice as many of
// two rows as of one. It is taken that rows choose each expert as often; what passes take tells
// more.
#pragma once

#include <cstdint>
#include <vector>

namespace monolane {

class PassCost {
 public:
  // `read`: by rows from one on, weights that a pass is expected to read, beside those of one row;
  // empty: as many, whatever its rows.
  explicit PassCost(int max_width, const std::vector<float>& read = {});

  // A pass of so many rows, all of sequences that decode, took so long.
  void add(int width, int64_t nanoseconds);

  // Expected nanoseconds; of a width hardly ever run, an estimate from those next to it. It is a
  // low one, so that a few passes are run, which tell. So it is of one that has not been run for
  // long, where it is less than what passes took then: what seemed dear once would never be tried
  // again. 0 as long as there is nothing to go by.
  double of(int width) const;

  // The widest pass whose estimate is worth a try: twice as wide as one that was measured. What
  // lies beyond could cost a multiple of it.
  int reach() const;

  // Whether that is a measurement.
  bool known(int width) const { return widths_[width].runs >= kFirstRuns; }

 private:
  static constexpr int64_t kFirstRuns =
      3;  // the least of them counts: nothing makes a pass too fast

  struct Width {
    double cost = 0;   // when it was run last
    double level = 1;  // then
    int64_t runs = 0;
    int64_t last = 0;  // of passes_, when that was
  };

  double now(int width) const { return widths_[width].cost * level_ / widths_[width].level; }

  double load(int width) const;
  double estimate(int width) const;
  bool old(int width) const;

  std::vector<Width> widths_;  // [max_width + 1]
  std::vector<double> read_;   // [max_width + 1]
  int64_t passes_ = 0;
  double level_ = 1;  // what passes take, beside what they took at first
};

}  // namespace monolane
