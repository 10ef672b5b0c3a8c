#include "draft/pass_cost.h"

#include <algorithm>

namespace monolane {
namespace {

constexpr double kLeastStep = 0.01;  // of the running median, relative; larger in the beginning
// Passes after which a width moves with the others. At 64 the cost of one row fell by half on its
// own when a short context followed a long one, and drafts did not seem worth it ever after.
constexpr int64_t kStale = 8;
// What a row more costs of a pass of one, as long as nobody knows; beyond the widest pass that was
// run, half of what its rows cost. Both rather too little: then a pass is run, which tells.
constexpr double kGuess = 0.05;

}  // namespace

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
    const double part = static_cast<double>(width - below) / (above - below);
    return widths_[below].cost * (1 - part) + widths_[above].cost * part;
  }
  if (below == 0) return above < end ? widths_[above].cost : 0;  // no more than a wider one costs
  const double one = known(1) ? widths_[1].cost : widths_[below].cost;
  const double row = below > 1 ? (widths_[below].cost - one) / (below - 1) / 2 : 0;
  return widths_[below].cost + std::max(row, kGuess * one) * (width - below);
}

}  // namespace monolane
