// Runs a plan on the cores of this machine: persistent workers, each walking the phases on its own
// share, and one leader among them that chooses tokens and lays out the next pass.
//
// Why not one parallel loop per phase, as with a thread pool: its fork and join are a barrier among
// all workers at each of ~75 phases of a token, while the lanes of a Laneformer need each other two
// layers later. Here a worker waits for what its plan names, and for nothing else.
//
// Shape legend: T rows of a pass, L lanes, D hidden, F intermediate, H query heads, K KV heads,
// h head_dim, V vocabulary, S splits, E experts, k chosen of them, X inner width of one, Xs of what
// tokens share beside them; of latent attention Q and R latents, r turned, v a head's value; of a
// gated delta rule G key heads, U value heads, of widths d_k and d_v.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "abi/advance.h"
#include "sample/sampler.h"
#include "state/delta_states.h"
#include "ranks/exchange.h"
#include "experts/expert_cache.h"
#include "draft/heads_drafter.h"
#include "kernels/kernels.h"
#include "state/kv_cache.h"
#include "abi/plan.h"
#include "memory/progress.h"
#include "experts/router.h"
#include "draft/speculation.h"
#include "memory/worker_threads.h"
#include "memory/token_ring.h"
#include "ops/weights.h"

namespace monolane {

// What may follow the last token of a guided slot; see monolane.epoch.Guide.
struct Guide {
  std::vector<int32_t> forced;  // these come next, without a draw
  std::vector<uint32_t> mask;   // then a draw among these, [ceil(V / 32)]; empty: the answer ends
};

// Where experts are that are not in memory; see expert_cache.h.
struct ExpertFile {
  int file = -1;      // an empty one, which may be closed afterwards; -1: there is none
  size_t memory = 0;  // bytes for those that are used most, of all workers together
};

class Executor {
 public:
  // Runs the workers of one seat of the plan. Throws std::invalid_argument if plan, seat, weights
  // and kernels do not fit together, and std::runtime_error if a file has no room for the experts.
  Executor(Plan plan, const Seat& seat, ModelWeights weights, const Kernels& kernels,
           Activation activation, Format kv_format, int slots, const std::vector<int>& cores,
           const ExpertFile& experts = {});
  ~Executor();

  // Brings a phase's matrix into the format in which it is multiplied, each worker its own rows
  // into its own memory; to be called once for every matrix of which `converts` is true, before the
  // first epoch. Afterwards what the loader handed over for it is not read again. Throws
  // std::invalid_argument if a weight has no code in that format.
  void convert(int64_t phase, int64_t matrix);
  bool converts(int64_t phase, int64_t matrix) const;
  ExpertCache::Counts expert_counts() const;  // of all workers of this process

  // In another rank than 0: has the workers take part in all epochs of rank 0, which everything
  // below is for, and returns.
  void follow();

  // Waits for the end of that, which comes when the ranks give up, at most so long; returns whether
  // it still goes on.
  bool follows(int milliseconds);

  int64_t length(int slot) const;

  // Takes back the tokens of a slot from `length` on. Throws std::invalid_argument if a windowed
  // layer no longer holds the keys that the next token would see.
  void truncate(int slot, int64_t length);

  // Makes a slot hold what another holds: its keys, values and length.
  void copy(int source, int target);

  // Whether the slot can be truncated to `length`, or be kept up to there: windowed layers still
  // hold the keys that the next token would see.
  bool resumable(int slot, int64_t length) const { return length >= first_resumable(slot); }

  // Writes what KvCache says of positions begin .. end - 1 of a slot; `tail` where not null.
  void save(int slot, int64_t begin, int64_t end, char* rows, char* tail) const;

  // Puts `count` positions, of `stride` in each list of rows, behind those of a slot. The last call
  // before the slot is used brings a tail, of so many bytes, where there are tails.
  void restore(int slot, int64_t count, int64_t stride, const char* rows, const char* tail,
               int64_t tail_bytes);
  const KvCache& cache() const { return cache_; }

  // What of a sequence is kept behind its last position: what rings hold, and states.
  bool has_tails() const { return cache_.rings() > 0 || states_.any(); }
  const DeltaStates& states() const { return states_; }
  int64_t tail_bytes(int slot, int64_t end) const;
  bool takes_tail(int64_t end, int64_t bytes) const;

  // The same with what all ranks keep, each of its own lanes, under a name that is not yet known:
  // of a slot; of what is kept already, positions begin .. end - 1 and the tail of `tail_from`, -1
  // for none. `keep` returns whether there is a tail. Throw std::invalid_argument where a name or a
  // position is not there.
  bool keep(int64_t name, int slot, int64_t begin, int64_t end);
  void cut(int64_t name, int64_t from, int64_t begin, int64_t end, int64_t tail_from);
  void resume(int64_t name, int slot, int64_t count, bool has_tail);
  void drop(int64_t name);

  // Feeds tokens and writes their logits [T, V]; returns when done.
  void logits(int slot, std::vector<int32_t> tokens, float* out);

  // Feeds tokens and writes what the head reads of each, normed and of lanes the mean [T, D];
  // returns when done.
  void hidden(int slot, std::vector<int32_t> tokens, float* out);

  // Begins an epoch and returns; one at a time.
  void start(std::vector<Advance> advances);

  // Says what may come next in a guided slot of the running epoch, once for each draw: a guide for
  // the first, and one for what follows each drawn token. May come before the pass that needs it is
  // over: then nothing waits. Forgotten with the epoch. This and `interrupt` may be called while
  // another thread reads. Throws std::invalid_argument if the guide allows no token.
  void guide(int slot, Guide guide);

  // From the next epoch on, has a model draft tokens for this one; it must outlive this executor.
  // Throws std::invalid_argument if it has other workers or slots, or either has several ranks.
  void set_draft_model(Executor& model);

  // From the next epoch on, has heads draft. Throws std::invalid_argument if their shapes are not
  // the model's, or there are several ranks.
  void set_heads(const HeadsWeights& heads);

  // In a draft model's executor: lays out an epoch, which says of each token that it draws, and
  // gets told whether its slot goes on. Then every worker of the executor for which it drafts calls
  // `take_part`, which returns when the epoch is over.
  using OnToken = std::function<bool(int32_t slot, int32_t token, const float* logits)>;
  void prepare(std::vector<Advance> advances, OnToken on_token);
  void take_part(int worker);

  // For tests and measurements, between epochs: see Speculation::script.
  void script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws);

  // What passes of sequences that decode have cost, by width; between epochs.
  const PassCost& pass_cost() const { return speculation_.cost(); }

  // Appends the tokens that are there, waiting up to `milliseconds` for the first; returns whether
  // the epoch is over and all of them have been taken. Throws what a worker failed of, as of a disk
  // that cannot be read, and so does all that comes after it.
  bool read(std::vector<TokenEvent>& events, int milliseconds);

  // Asks the epoch to end within one pass; what it drew until then is still there to be read.
  void interrupt() {
    yield_.store(true, std::memory_order_relaxed);
    call_leader();
  }

  // Throws std::logic_error while an epoch runs.
  void check_idle(const char* what) const;

  // From the next epoch on, notes when each worker is in which phase. Off, it costs a test a phase.
  void set_trace(bool on);
  std::vector<Span> take_spans();

  const Plan& plan() const { return plan_; }
  Exchange& exchange() { return exchange_; }
  size_t kv_bytes() const { return cache_.bytes() + states_.bytes(); }
  size_t converted_bytes() const;  // of the workers' own copies of weights

 private:
  // A slot within an epoch.
  struct Running {
    Advance advance;
    size_t fed = 0;    // tokens of advance.tokens that have gone in
    int32_t next = 0;  // the token to feed once they all have
    int32_t drawn = 0;
    Seen seen = {};    // tokens of the sequence, the drawn ones as they leave
    int32_t row = -1;  // of `wanted` in this pass, whose logits choose its next token; -1: none
    Draft draft = {};  // the rows behind `row`: what may follow `next`
    size_t right = 0;  // of its tokens, so many were drawn: the row behind them is the next to draw
    bool done = false;
    std::unique_ptr<Guide> guide = nullptr;  // taken, and its draw still to come
    bool parked = false;                     // its logits are there, its guide is not
    std::vector<float> logits = {};          // [rows, V] once parked: from its first row then on
    const float* row_logits = nullptr;       // in there, of the next row; null: was not parked yet
    int64_t parked_ns = 0;                   // when, if its guide could not have been there before
    // Where heads draft: what the head read of the last pass's wanted rows, [rows, D].
    std::vector<float> hidden = {};
  };
  struct Worker;  // what only it touches: residual streams, activations, scratch

  void check(const std::vector<Advance>& advances) const;
  int64_t first_resumable(int slot) const;
  int64_t kept_positions(int64_t name) const;
  void run_chore(const Chore& chore);
  void check_room(int slot, size_t count) const;
  void check_token(const char* what, int32_t token) const;
  void check_history(const Advance& advance) const;
  void check_guide(int slot, const Guide& guide) const;
  void begin(std::vector<Advance> advances);
  void check_failed() const;
  bool take(std::vector<TokenEvent>& events, int milliseconds);
  void finish(int slot, std::vector<int32_t> tokens);
  void lay_out_epoch(std::vector<Advance> advances);
  void drop_guides();

  void work(Worker& w);
  void work_or_fail(int worker);
  bool await_others(const Worker& w);
  void end_epoch(Worker& w);
  void lay_out_pass();
  void lay_out_rows();
  void draft();
  bool ask_for_drafts(Running& running, int rows, bool reading);
  void lend_workers();
  void time_pass();
  void add_rows(Running& running, int32_t most);
  void add_run(const Running& running, int32_t first, int32_t given);
  void keep_hidden(Running& running);
  bool settle_parked();
  void park(Running& running, const float* logits);
  bool take_guide(Running& running);
  void settle(Running& running, const float* logits);
  bool draw(Running& running, const float* logits);
  bool force(Running& running, const float*& logits);
  bool accept(Running& running, int32_t token, const float* logits, int32_t drafted);
  void emit(Running& running, int32_t token, const float* logits, int32_t drafted = 0,
            int32_t accepted = 0);
  void look_back(Running& running) const;
  void call_leader() { calls_.advance(); }
  bool await(const Worker& w, const PlanPhase& phase);
  void prefetch_next(const Worker& w, const PlanPhase& phase) const;
  void run(Worker& w, const PlanPhase& phase);
  void run_timed(Worker& w, const PlanPhase& phase, int64_t arrived);

  // run_embed, run_qkv and so on: each in attention.cpp, a phases_*.cpp or pass_scheduler.cpp. A kind without
  // one does not link.
#define MONOLANE_DECLARE_RUN(KIND, NAME) void run_##NAME(Worker& w, const PlanPhase& phase);
  MONOLANE_PHASE_KINDS(MONOLANE_DECLARE_RUN)
#undef MONOLANE_DECLARE_RUN

  void shared_gate_up(Worker& w, const PlanPhase& phase);
  void choose_tokens();
  void call_helpers();

  void update(Worker& w, const PlanPhase& phase);
  void read_stream(Worker& w, const PlanPhase& phase, const float* scale);
  void store_key_or_value(const PlanPhase& phase, bool key, int64_t t, int64_t row, const float* y,
                          int64_t count);
  void pack(const Worker& w, const PlanPhase& phase, const float* x, int64_t columns, int64_t lane,
            int64_t width) const;
  Activation activation_of(const Matrix& matrix) const {
    return activation_for(matrix.format, activation_);
  }
  struct Tokens {  // of a pass
    int64_t begin, end;
  };
  void attend_group(Worker& w, const PlanPhase& phase, int64_t lane, int64_t kv_head, int64_t split,
                    Tokens tokens, bool more_heads);
  void merge_splits(Worker& w, const float* sinks, int64_t lane);
  void merge_head(const float* sinks, int64_t owner, int64_t head, int64_t t, int64_t columns,
                  float* out) const;
  // What `kernels_.multiply` does, of passes of any width: kMaxWidth tokens at a time.
  void product(const Matrix& matrix, int64_t row_begin, int64_t row_end, Activation kind,
               const void* packed, int64_t width, float* y, int64_t stride) const;
  void offer_products(Worker& w, const PlanPhase& phase, PlanBuffer module, const float* bias);
  void store_side_by_side(Worker& w, const PlanPhase& phase, float* out, int64_t columns);
  void store_gated_queries(Worker& w, const PlanPhase& phase, int64_t owner, int64_t first,
                           int64_t count, float* y);
  void take_steps(Worker& w, const PlanPhase& phase, int64_t head, const Run& run);
  const float* gather_inputs(Worker& w, const PlanPhase& phase, int64_t head, const Run& run);
  void offer_head(const PlanPhase& phase, int64_t head, int64_t row, float* said);
  // Numbers of all value heads: of v, of z and of what they make.
  int64_t delta_columns() const {
    return int64_t{plan_.header.delta_value_heads} * plan_.header.delta_value;
  }
  // Where z and the gates b, a begin in a row of `mixed_`, behind all q, all k and all v.
  int64_t mixed_z() const {
    const PlanHeader& h = plan_.header;
    return 2 * int64_t{h.delta_key_heads} * h.delta_key + delta_columns();
  }
  int64_t mixed_gates() const { return mixed_z() + delta_columns(); }
  int64_t mixed_columns() const {
    return mixed_gates() + 2 * int64_t{plan_.header.delta_value_heads};
  }
  void store_latents(Worker& w, const PlanPhase& phase);
  int64_t latent_columns() const {
    return int64_t{plan_.header.query_latent} + plan_.header.head_dim;
  }
  void rotate(const Worker& w, PlanRotary rotary, float* y, int64_t t, int64_t first_row,
              int64_t count) const;
  struct Products {  // [T] rows, `stride` floats apart
    float* y;
    int64_t stride;
  };
  template <typename Place, typename Store>
  void multiply(Worker& w, const PlanPhase& phase, int64_t index, Place place, Store store);
  template <typename Store>
  void multiply(Worker& w, const PlanPhase& phase, int64_t index, Store store);

  void open_experts(int file);
  void choose_experts(Worker& w, const PlanPhase& phase);
  void offer_normed(const Worker& w);
  void join_lanes(int64_t t, float* out) const;
  void merge_lanes(int64_t t, float* out) const;
  const void* gather_tokens(const Worker& w, Activation kind, int64_t columns,
                            std::span<const Routing::Use> uses) const;
  float* output(PlanBuffer module, int64_t slot, int64_t lane) const;
  PlanShare share(const Worker& w, int32_t table) const;
  const Matrix& rows(const Worker& w, const PlanPhase& phase, int64_t index,
                     int64_t expert = 0) const;
  int64_t index_of(const PlanPhase& phase) const { return &phase - plan_.phases.data(); }
  const PlanMatrix& matrix_of(int64_t phase, int64_t matrix) const;

  const Plan plan_;
  const ModelWeights weights_;
  const Kernels& kernels_;
  const Activation activation_;  // where a matrix's format takes it
  void (*const gate_up_)(const float* gate, const float* up, int64_t count, float* out);
  Exchange exchange_;
  KvCache cache_;
  DeltaStates states_;
  // Tokens of each slot. The leader writes them; length() may look on while it does.
  std::vector<std::atomic<int64_t>> lengths_;
  std::vector<int64_t> highest_;   // one past the highest position ever written in each slot
  std::vector<int64_t> restored_;  // of each slot: before here its rings lack keys, but for a tail

  // Shared by the workers of a group; who may touch what when is the plan's business.
  std::unique_ptr<Arena> query_;       // [L, T, H/L*h]
  std::unique_ptr<Arena> attention_;   // [L, S, T, H/L, h + 2]
  std::unique_ptr<Arena> hidden_;      // [L, T, F/L]; of a mixture [1, T, k*X + Xs]
  std::unique_ptr<Arena> routed_;      // [1, T, E]
  std::unique_ptr<Arena> latents_;     // [1, T, Q + R + r]
  std::unique_ptr<Arena> heads_;       // [1, T, H*v], or [1, T, U*d_v]
  std::unique_ptr<Arena> query_gate_;  // [L, T, H/L*h]
  std::unique_ptr<Arena> mixed_;       // [1, T, 2G*d_k + 2U*d_v + 2U]

  Pass& pass_;
  std::vector<std::unique_ptr<Worker>> workers_;  // those of this process

  std::vector<Running> running_;
  Chore chore_;  // to be done by the next epoch, which has no advances
  // Where `logits` and `hidden` want every row of the one slot; else null.
  float* all_logits_ = nullptr;
  float* all_hidden_ = nullptr;
  std::atomic<bool> yield_{false};
  std::vector<std::atomic<Guide*>> guides_;  // [slots] posted and not yet taken, or null
  Progress calls_;  // guides and interruptions: what a leader with nothing else to do waits for
  TokenRing ring_;
  ChooseScratch scratch_;
  Speculation speculation_;
  OnToken on_token_ = nullptr;  // of an epoch that drafts for another executor
  // Of a pass: scratch.
  std::vector<DraftAsk> asks_;
  std::vector<Draft*> drafts_;
  int64_t pass_begun_ns_ = 0;  // of a pass whose rows all decode; 0: of another
  bool in_epoch_ = false;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // what the first worker failed of; to be read between epochs
  bool following_ = false;
  int64_t to_convert_ = 0;  // matrices that `convert` has not been called for
  bool trace_ = false;

  Team team_;  // last: its threads use everything above
};

}  // namespace monolane
