// The leader's part: which rows go into the next pass, and which tokens come out of the last one.
//
// Of the worker that leads, and of nobody else while an epoch runs; but others may at any time post
// a guide, have slots join and leave it, and ask for the end.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/advance.h"
#include "draft/draft_model.h"
#include "draft/speculation.h"
#include "memory/progress.h"
#include "memory/token_ring.h"
#include "ops/worker.h"
#include "sample/sampler.h"

namespace monolane {

// What may follow the last token of a guided slot; see monolane.executor_api.Guide.
struct Guide {
  std::vector<int32_t> forced;  // these come next, without a draw
  std::vector<uint32_t> mask;   // then a draw among these, [ceil(V / 32)]; empty: the answer ends
};

class PassScheduler {
 public:
  using OnToken = DraftModel::OnToken;

  PassScheduler(Forward& f, int slots);
  ~PassScheduler() { drop_guides(); }
  PassScheduler(const PassScheduler&) = delete;
  PassScheduler& operator=(const PassScheduler&) = delete;

  // ---- Between epochs, by one caller at a time ----

  // The worker that leads. So many others help with draws, if any: see ParallelFor.
  void set_leader(Worker& leader, int32_t helpers);

  // Throws std::invalid_argument if the slots have no room for it, or a token is none. Others may
  // join an epoch that is `open`.
  void begin_epoch(std::vector<Advance> advances, bool open, OnToken on_token = nullptr);

  // An epoch without rows, at whose end each group does this with what it keeps of sequences.
  void begin_chore(const Chore& chore);
  void end_chore() { chore_ = {}; }

  // Where the next epoch, of one slot, is to write logits [T, V], or what the head reads [T, D], of
  // every row; null: nowhere.
  void set_outputs(float* logits, float* hidden) {
    all_logits_ = logits;
    all_hidden_ = hidden;
  }
  bool fed_all() const { return running_.front().done; }  // of that epoch's slot

  // For tests and measurements: see Speculation::script.
  void script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws);

  // Notes that the epoch is over, whatever is left of what it was to draw.
  void free_slots();

  Speculation& speculation() { return speculation_; }
  const Speculation& speculation() const { return speculation_; }
  TokenRing& ring() { return ring_; }

  // ---- At any time ----

  bool is_free(int slot) const { return !busy_[slot].load(std::memory_order_acquire); }

  // See Executor::join and Executor::leave.
  bool join(std::vector<Advance> advances);
  void leave(int slot);

  // Posts what may come next in a guided slot; see Executor::guide.
  void guide(int slot, Guide guide);
  void interrupt() {
    yield_.store(true, std::memory_order_relaxed);
    call_leader();
  }

  // ---- By workers, in an epoch ----

  void lay_out_pass();
  void choose_tokens();
  void help_to_draw() { scratch_.parallel.help(); }
  JointDrafter* joint() const { return speculation_.joint(); }

 private:
  // A slot within an epoch.
  struct Running {
    Advance advance;
    size_t fed = 0;    // tokens of advance.tokens that have gone in
    int32_t next = 0;  // the token to feed once they all have
    int32_t drawn = 0;
    TokenCounts seen = {};  // tokens of the sequence, the drawn ones as they leave
    int32_t row = -1;  // of `wanted` in this pass, whose logits choose its next token; -1: none
    Draft draft = {};  // the rows behind `row`: what may follow `next`
    size_t right = 0;  // of its tokens, so many were drawn: the row behind them is the next to draw
    bool done = false;
    std::unique_ptr<Guide> guide = nullptr;  // taken, and its draw still to come
    bool parked = false;                     // its logits are there, its guide is not
    std::vector<float> logits = {};          // [rows, V] once parked: from its first row then on
    const float* row_logits = nullptr;       // in there, of the next row; null: was not parked yet
    int64_t parked_ns = 0;                   // when, if its guide could not have been there before
    // Where heads draft, or these layers predict further ahead: what the head read of the last
    // pass's wanted rows, [rows, D].
    std::vector<float> hidden = {};
  };

  void check(const std::vector<Advance>& advances) const;
  Running make_running(Advance advance) const;
  void forget_posts(const Advance& advance);
  void admit(Running running);
  void admit_joined();
  void end_leaving();
  bool close_unless_joined();
  void check_room(int slot, size_t count) const;
  void check_token(const char* what, int32_t token) const;
  void check_history(const Advance& advance) const;
  void check_guide(int slot, const Guide& guide) const;
  void drop_guides();
  void look_back(Running& running) const;

  void time_pass();
  void lay_out_rows();
  static int64_t left_of(const Running& running);
  void add_decoding(int32_t most);
  void add_reading(int32_t most);
  void draft();
  bool ask_for_drafts(Running& running, int rows, bool reading);
  void lend_workers();
  void add_rows(Running& running, int32_t most);
  void add_state(const Running& running);
  void add_run(const Running& running, int32_t first, int32_t given);

  void call_helpers();
  void keep_hidden(Running& running);
  void show_states();
  bool settle_parked();
  void park(Running& running, const float* logits);
  bool take_guide(Running& running);
  void settle(Running& running, const float* logits);
  bool draw(Running& running, const float* logits);
  bool break_off(Running& running);
  void send_off(const Running& running, const TokenEvent& event);
  bool force(Running& running, const float*& logits);
  bool accept(Running& running, int32_t token, const float* logits, int32_t drafted);
  void emit(Running& running, int32_t token, const float* logits, int32_t drafted = 0,
            int32_t accepted = 0);
  void call_leader() { calls_.advance(); }

  Forward& f_;
  Worker* leader_ = nullptr;
  std::vector<Running> running_;
  Chore chore_;  // to be done by the next epoch, which has no advances
  float* all_logits_ = nullptr;
  float* all_hidden_ = nullptr;
  std::atomic<bool> yield_{false};
  bool begun_ = false;                       // the epoch has a pass
  std::vector<std::atomic<Guide*>> guides_;  // [slots] posted and not yet taken, or null
  // [slots] of an epoch that a caller reads, until the last token has left: with it nobody touches
  // the slot any more.
  std::vector<std::atomic<bool>> busy_;
  std::vector<std::atomic<bool>> guided_;   // [slots] of the epoch's, whether guides may be posted
  std::vector<std::atomic<bool>> leaving_;  // [slots] to be let go of before the next pass
  std::mutex joining_;                      // of the next two
  bool open_ = false;                       // the leader will look at who has joined once more
  std::vector<Running> joined_;             // and not yet been admitted
  Progress calls_;  // guides, and who comes and goes: what a leader with nothing to do waits for
  TokenRing ring_;
  SamplerScratch scratch_;
  Speculation speculation_;
  OnToken on_token_ = nullptr;  // of an epoch that drafts for another executor
  int32_t turn_ = 0;            // the slot that decodes next where not all can
  bool prompts_alone_ = false;  // in this pass, though there are others that decode
  // Of a pass: scratch.
  std::vector<Running*> decoding_, reading_;
  std::vector<DraftAsk> asks_;
  std::vector<Draft*> drafts_;
  std::vector<float> state_;   // [D]
  int64_t pass_begun_ns_ = 0;  // of a pass whose rows all decode; 0: of another
};

}  // namespace monolane
