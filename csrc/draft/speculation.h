// Which tokens of each sequence are drafted, and how many of them a pass verifies.
//
// A draft decides about time alone. So everything here may depend on the clock and on chance
// estimates, and nothing here is read when a token is drawn.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "abi/advance.h"
#include "draft/draft_budget.h"
#include "draft/drafter.h"
#include "draft/joint_drafter.h"
#include "draft/pass_cost.h"

namespace monolane {

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

class Speculation {
 public:
  // `read`: see PassCost.
  Speculation(int slots, int max_width, int64_t context, const std::vector<float>& read = {});

  // ---- Between epochs ----

  // The tokens of a slot's sequence, the first `prompt` of them given; and earlier texts, each with
  // kTextEnd behind it. What it had before is not read again. So a sequence that goes on may do
  // without the newest texts; but it never has one that is not among those given now.
  void begin(int slot, const std::vector<int32_t>& history, const std::vector<int32_t>& tokens,
             size_t prompt, const std::vector<int32_t>& earlier);

  // For tests and measurements: by position of the sequence, what is proposed, and what is drawn in
  // the model's stead. Empty: as always.
  void script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws);

  // For tests: what tells the time, in nanoseconds.
  void set_clock(std::function<int64_t()> clock) { clock_ = std::move(clock); }

  // Has this one draft, too.
  void set_joint(std::unique_ptr<JointDrafter> drafter) { joint_ = std::move(drafter); }
  JointDrafter* joint() const { return joint_.get(); }

  const PassCost& cost() const { return cost_; }

  // ---- By the leader, in an epoch ----

  // Whether a slot's drafter may be asked in a pass that has `rows` rows besides: where passes are
  // short, looking for drafts takes a part of them. If not, it is not told what is drawn meanwhile.
  bool may_look(int slot, int rows);

  // What that took, of one slot.
  void add_lookup(int rows, int64_t nanoseconds);

  // Lets a slot's drafter read on, a part at a time, so that no pass waits long for it.
  void catch_up(int slot);

  // Proposes up to `most` tokens from `position` on, without the joint drafter; none is used yet.
  void propose(const Advance& advance, int64_t position, size_t most, Draft& draft);

  // Adds what the joint drafter is to be asked for the sequence, of which `left` tokens are to be
  // drawn behind `position`, if there is one that may draft for it. `hidden`: see DraftAsk.
  void ask_joint(const Advance& advance, int64_t position, size_t most, int64_t left,
                 const float* hidden, Draft& draft, std::vector<DraftAsk>& asks) const;

  // Replaces drafts by the joint drafter's, where that promises more tokens a second, in a pass
  // that has `rows` rows besides. `lend`, `stop`: see JointDrafter.
  void draft_jointly(std::vector<DraftAsk>& asks, int rows, const std::function<void()>& lend,
                     const std::atomic<bool>& stop);

  // Says how much of each draft to use in a pass that has `rows` rows besides.
  void share_out(const std::vector<Draft*>& drafts, int rows);

  // The token at `position` was drawn as `token`: returns what is scripted there instead.
  int32_t drawn(int slot, int64_t position, int32_t token) const;

  void push(int slot, int32_t token) { slots_[slot].tokens.push_back(token); }

  // Draft `i`, used or not, was right or not.
  void learn(int slot, const Draft& draft, size_t i, bool right);

  void add_cost(int width, int64_t nanoseconds);

  // How long a guided draw within a pass waits for its mask, which the token before it tells.
  void add_wait(int64_t nanoseconds) { wait_.add(1, nanoseconds); }
  double wait() const { return wait_.of(1); }

 private:
  struct Slot {
    std::vector<int32_t> earlier = {};  // texts of other sequences
    size_t earlier_read = 0;            // tokens of them that the drafter has read
    std::vector<int32_t> tokens = {};
    size_t prompt = 0;                                  // how many of them were given
    size_t unlearnt = 0;                                // or drawn while nobody looked
    std::unique_ptr<Drafter> drafter = nullptr;         // made when first asked for
    std::array<Acceptance, kDrafters> acceptance = {};  // of this sequence
    Acceptance follows = {};                            // the joint drafter's, whatever it stated
    std::vector<int32_t> drafts = {}, draws = {};
  };
  struct Candidate {
    double chance;
    Draft* draft;
  };

  double best_rate(const Draft& draft, int rows) const;
  double drafting(size_t tokens, int sequences) const;
  bool pays(DraftAsk& ask, int rows, int sequences) const;
  void state(Slot& mine, Draft& draft, float stated) const;

  std::vector<Slot> slots_;
  int max_width_;
  int64_t context_;
  PassCost cost_;
  PassCost wait_{1};
  PassCost lookup_{1};
  DraftBudget allowance_;
  int widened_ = 0;  // rows of this pass that are drafts which were chosen to pay
  std::array<Acceptance, kDrafters> acceptance_;  // of all sequences
  Acceptance follows_;
  std::unique_ptr<JointDrafter> joint_ = nullptr;
  double probing_ = 0;  // nanoseconds that the joint drafter may spend to learn whether it pays
  std::function<int64_t()> clock_;
  std::vector<Candidate> candidates_;
};

}  // namespace monolane
