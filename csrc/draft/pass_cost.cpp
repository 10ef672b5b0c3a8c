#include "draft/pass_cost.h"

#include <algorithm>

namespace monolane {
namespace {

constexpr double kLeastStep = 0.01;  // of the running median, relative; larger in the beginning
// Passes after which a width that was not run among them is to be tried again if it may be worth
// it.
constexpr int64_t kOld = 4096;
// What a row more costs of a pass of one, beside what it has to read, as long as nobody knows;
// beyond the widest pass that was run, half of what its rows cost. Both rather too little: then a
// pass is run, which tells.
constexpr double kGuess = 0.05;

}  // namespace

PassCost::PassCost(int max_width, const std::vector<float>& read)
    : widths_(max_width + 1), read_(max_width + 1, 1.0) {
  const size_t count = std::min(read.size(), static_cast<size_t>(max_width));
  std::copy_n(read.begin(), count, read_.begin() + 1);
}

// What a pass is taken to cost, beside one of one row, as long as nobody knows.
double PassCost::load(int width) const { return read_[width] + kGuess * (width - 1); }

void PassCost::add(int width, int64_t nanoseconds) {
  Width& mine = widths_[width];
  const double cost = static_cast<double>(nanoseconds), expected = now(width);
  if (old(width)) mine.runs = 0;
  mine.last = ++passes_;
  if (++mine.runs <= kFirstRuns) {
    mine.cost = mine.runs == 1 ? cost : std::min(expected, cost);
    mine.level = level_;
    return;
  }
  if (cost == expected) return;
  const double step = std::max(kLeastStep, 0.5 / static_cast<double>(mine.runs));
  const double factor = cost > expected ? 1 + step : 1 / (1 + step);
  // One level for all. Were each width that is run to move those that are not, a machine that
  // becomes slower would move them as often as there are such widths, and it faster, fewer times.
  level_ *= factor;
  mine.cost = expected * factor;
  mine.level = level_;
}

int PassCost::reach() const {
  int width = static_cast<int>(widths_.size()) - 1;
  while (width > 0 && !known(width)) --width;
  return std::min(2 * width, static_cast<int>(widths_.size()) - 1);
}

bool PassCost::old(int width) const { return passes_ - widths_[width].last > kOld; }

double PassCost::of(int width) const {
  if (!known(width)) return estimate(width);
  const double again = old(width) ? estimate(width) : 0;
  return again > 0 ? std::min(now(width), again) : now(width);
}

// From the widths next to it that were run lately.
double PassCost::estimate(int width) const {
  int below = width - 1, above = width + 1;
  const int end = static_cast<int>(widths_.size());
  const auto fresh = [&](int other) { return known(other) && !old(other); };
  while (below > 0 && !fresh(below)) --below;
  while (above < end && !fresh(above)) ++above;
  if (below > 0 && above < end) {
    const double part = (load(width) - load(below)) / (load(above) - load(below));
    return now(below) * (1 - part) + now(above) * part;
  }
  if (below == 0) return above < end ? now(above) : 0;  // no more than a wider one costs
  const double one = now(fresh(1) ? 1 : below);
  const double more = load(below) - load(1);
  const double price = more > 0 ? (now(below) - one) / more : one;  // of so much as one is
  const double reading = std::clamp(price, 0.0, one) * (read_[width] - read_[below]);
  const double row = below > 1 ? price / 2 : 0;
  return now(below) + reading + std::max(row, one) * kGuess * (width - below);
}

}  // namespace monolane
