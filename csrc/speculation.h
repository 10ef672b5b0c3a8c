// Which tokens of each sequence are drafted, and how many of them a pass verifies.
//
// A draft decides about time alone. So everything here may depend on the clock and on chance
// estimates, and nothing here is read when a token is drawn.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "drafter.h"
#include "pass_cost.h"

namespace monolane {

constexpr int32_t kAutoDrafts = -1;  // as many as pay; see Advance

// How often a drafter is right when it says so: counts by what it said, old ones fading.
class Acceptance {
 public:
  // What a chance that a drafter states is worth; `prior` where there is little experience.
  float of(float stated, float prior) const;
  void add(float stated, bool right);

 private:
  static constexpr int kBins = 10;
  static int bin(float stated);
  struct Bin {
    float tries = 0, right = 0;
  };
  std::array<Bin, kBins> bins_ = {};
};

// What is proposed behind a sequence, and how much of it goes into the pass.
struct Draft {
  std::vector<int32_t> tokens = {};
  std::vector<float> stated = {};    // by the drafter: that a token is right if those before it are
  std::vector<double> chances = {};  // that it is right and all before it are, by experience
  size_t used = 0;                   // tokens that the pass verifies, from the first on
  double wait = 0;                   // expected nanoseconds of each that is right, beside its row

  void clear() {
    tokens.clear();
    stated.clear();
    chances.clear();
    used = 0;
  }
};

class Speculation {
 public:
  Speculation(int slots, int max_width, int64_t context)
      : slots_(slots), max_width_(max_width), context_(context), cost_(max_width) {}

  // ---- Between epochs ----

  // The tokens of a slot's sequence, the first `prompt` of them given; and earlier texts, each with
  // kTextEnd behind it. What it had before is not read again. So a sequence that goes on may do
  // without the newest texts; but it never has one that is not among those given now.
  void begin(int slot, const std::vector<int32_t>& history, const std::vector<int32_t>& tokens,
             size_t prompt, const std::vector<int32_t>& earlier);

  // For tests and measurements: by position of the sequence, what is proposed, and what is drawn in
  // the model's stead. Empty: as always.
  void script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws);

  const PassCost& cost() const { return cost_; }

  // ---- By the leader, in an epoch ----

  // Lets a slot's drafter read on, a part at a time, so that no pass waits long for it.
  void catch_up(int slot);

  // Proposes up to `most` tokens from `position` on; none of them is used yet.
  void propose(int slot, int64_t position, size_t most, Draft& draft);

  // Says how much of each draft to use in a pass that has `rows` rows besides.
  void share_out(const std::vector<Draft*>& drafts, int rows);

  // The token at `position` was drawn as `token`: returns what is scripted there instead.
  int32_t drawn(int slot, int64_t position, int32_t token) const;

  void push(int slot, int32_t token) { slots_[slot].tokens.push_back(token); }

  // Draft `i`, used or not, was right or not.
  void learn(int slot, const Draft& draft, size_t i, bool right);

  void add_cost(int width, int64_t nanoseconds) { cost_.add(width, nanoseconds); }

  // How long a guided draw within a pass waits for its mask, which the token before it tells.
  void add_wait(int64_t nanoseconds) { wait_.add(1, nanoseconds); }
  double wait() const { return wait_.of(1); }

 private:
  struct Slot {
    std::vector<int32_t> earlier = {};  // texts of other sequences
    size_t earlier_read = 0;            // tokens of them that the drafter has read
    std::vector<int32_t> tokens = {};
    size_t prompt = 0;                           // how many of them were given
    std::unique_ptr<Drafter> drafter = nullptr;  // made when first asked for
    Acceptance acceptance = {};                  // of this sequence
    std::vector<int32_t> drafts = {}, draws = {};
  };
  struct Candidate {
    double chance;
    Draft* draft;
  };

  std::vector<Slot> slots_;
  int max_width_;
  int64_t context_;
  PassCost cost_;
  PassCost wait_{1};
  Acceptance acceptance_;  // of all sequences
  std::vector<Candidate> candidates_;
};

}  // namespace monolane
