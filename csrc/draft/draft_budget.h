// How much time drafts may still lose.
//
// Drafts are chosen where they promise to pay (speculation.h), by estimates of chances and costs.
// Estimates err, and a text may make them err again and again. So what drafts cost is paid from
// here: a small part of the time that passes take, and what drafts have brought. Where nothing is
// left nothing is drafted, nor looked up.
//
// Counted in passes without drafts: what one brings, and takes, is 1. So a stretch of n tokens from
// the beginning of a sequence on takes n * (1 + kPart) + kFirst at most, whatever is drafted.
#pragma once

#include <algorithm>

namespace monolane {

class DraftBudget {
 public:
  static constexpr double kPart = 0.004;  // of the time that passes take
  static constexpr double kFirst = 2;     // for a sequence that has brought nothing yet
  static constexpr double kMost = 64;     // of what drafts have brought: four failed wide passes

  bool covers(double passes) const { return passes <= left_; }

  // A pass took so long, drafts included.
  void grant(double passes) {
    if (left_ < kFirst) left_ = std::min(kFirst, left_ + kPart * passes);
  }
  void bring(double passes) { left_ = std::min(kMost, left_ + passes); }
  void spend(double passes) { left_ -= passes; }
  // Another sequence begins: what was brought before is not there to be lost.
  void begin() { left_ = std::min(kFirst, left_); }

 private:
  double left_ = kFirst;
};

}  // namespace monolane
