#include "draft/pass_cost.h"

#include <algorithm>

namespace monolane {
namespace {

constexpr double kLeastStep = 0.01;  // of the running median, relative; larger in the beginning
// Passes after which a width moves with the others. At 64 the cost of one row fell by half on its
// own when a short context followed a long one, and drafts did not seem worth it ever after.
constexpr int64_t kStale = 8;
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
  const double cost = static_cast<double>(nanoseconds);
  ++passes_;
  mine.last = passes_;
  if (++mine.runs <= kFirstRuns) {
    mine.cost = mine.runs == 1 ? cost : std::min(mine.cost, cost);
    return;
  }
  if (cost == mine.cost) return;
  const double step = std::max(kLeastStep, 0.5 / static_cast<double>(mine.runs));
  const double factor = cost > mine.cost ? 1 + step : 1 / (1 + step);
  mine.cost *= factor;
  for (Width& other : widths_) {
    if (passes_ - other.last > kStale) other.cost *= factor;
  }
}

int PassCost::reach() const {
  int width = static_cast<int>(widths_.size()) - 1;
  while (width > 0 && !known(width)) --width;
  return std::min(2 * width, static_cast<int>(widths_.size()) - 1);
}

double PassCost::of(int width) const {
  if (known(width)) return widths_[width].cost;
  int below = width - 1, above = width + 1;
  const int end = static_cast<int>(widths_.size());
  while (below > 0 && !known(below)) --below;
  while (above < end && !known(above)) ++above;
  if (below > 0 && above < end) {
    const double part = (load(width) - load(below)) / (load(above) - load(below));
    return widths_[below].cost * (1 - part) + widths_[above].cost * part;
  }
  if (below == 0) return above < end ? widths_[above].cost : 0;  // no more than a wider one costs
  const double one = known(1) ? widths_[1].cost : widths_[below].cost;
  const double more = load(below) - load(1);
  const double price = more > 0 ? (widths_[below].cost - one) / more : one;  // of so much as one is
  const double reading = std::clamp(price, 0.0, one) * (read_[width] - read_[below]);
  const double row = below > 1 ? price / 2 : 0;
  return widths_[below].cost + reading + std::max(row, one) * kGuess * (width - below);
}

}  // namespace monolane
