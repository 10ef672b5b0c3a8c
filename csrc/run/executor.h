// Runs a plan on the cores of this machine: persistent workers, each walking the phases on its own
// share (worker_loop.h), and one leader among them that chooses tokens and lays out the next pass
// (pass_scheduler.h).
//
// Why not one parallel loop per phase, as with a thread pool: its fork and join are a barrier among
// all workers at each of ~75 phases of a token, while the lanes of a Laneformer need each other two
// layers later. Here a worker waits for what its plan names, and for nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "abi/advance.h"
#include "abi/plan.h"
#include "draft/assistant_drafter.h"
#include "draft/dflash_drafter.h"
#include "draft/draft_model.h"
#include "draft/eagle_drafter.h"
#include "draft/heads_drafter.h"
#include "draft/pass_cost.h"
#include "memory/worker_threads.h"
#include "ops/worker.h"
#include "run/pass_scheduler.h"
#include "run/saved_sequences.h"
#include "run/weight_loader.h"

namespace monolane {

class Executor final : public DraftModel {
 public:
  // Runs the workers of one rank of the plan. Throws std::invalid_argument if plan, setup, weights
  // and kernels do not fit together, and std::runtime_error if a file has no room for the experts.
  Executor(Plan plan, const Setup& setup, ModelWeights weights, const Kernels& kernels,
           const std::vector<int>& cores);
  ~Executor() override;

  const Plan& plan() const { return forward_.plan; }
  Exchange& exchange() { return forward_.exchange; }
  WeightLoader& loader() { return *loader_; }
  const WeightLoader& loader() const { return *loader_; }

  // Where ranks are apart, before the first epoch; see Exchange::connect.
  void connect(const std::vector<int>& sockets, int64_t patience_ns);

  // In another rank than 0: has the workers take part in all epochs of rank 0, which everything
  // below is for, and returns.
  void follow();

  // Waits for the end of that, which comes when the ranks give up, at most so long; returns whether
  // it still goes on.
  bool follows(int milliseconds);

  // ---- Of a slot that no epoch uses, by any thread ----

  // Whether that is so: it is not among those of the epoch that runs, or has drawn its last token.
  // Throws std::invalid_argument where there is no such slot.
  bool is_free(int slot) const;

  // To change a slot's sequence, or to read it; throws std::logic_error, which names `what` was to
  // be done, where an epoch uses it.
  Sequences& sequences(const char* what, int slot);

  // Has a slot's sequence, which has no token yet, be that of an adapter; see Adapters::give.
  // Throws std::invalid_argument where it has some.
  void give_adapter(int slot, int adapter);

  // ---- Between epochs. What changes something throws std::logic_error while one runs, and names
  // `what` was to be done. ----

  const Sequences& sequences() const { return forward_.sequences; }
  SavedSequences& saved(const char* what) {
    check_idle(what);
    return *saved_;
  }
  void check_idle(const char* what) const;

  // From the next epoch on, has a model draft tokens for this one; it must outlive this executor.
  // Throws std::invalid_argument if it has other workers or slots, or either has several ranks, or
  // it reads states of another width.
  void set_draft_model(Executor& model);

  // From the next epoch on, has heads draft. Throws std::invalid_argument if their shapes are not
  // the model's, or there are several ranks.
  void set_heads(const HeadsWeights& heads);

  // Adds a part of an adapter; see Adapters::add, which throws.
  void add_adapter(int adapter, int64_t layer, WeightRole role, LowRank part);

  // As set_heads, of an EAGLE-3 drafter, which reads the stream before each of these layers.
  void set_eagle(const EagleWeights& weights, const std::vector<int>& layers);

  // As set_heads, of a DFlash drafter, which reads the stream before each of these layers.
  void set_dflash(const DflashWeights& weights, const std::vector<int>& layers);

  // As set_heads, of an assistant, which reads this model's keys and values. What its matrices
  // point to must outlive this executor.
  void set_assistant(AssistantWeights weights);

  // For tests and measurements: see Speculation::script.
  void script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws) {
    check_idle("script");
    scheduler_.script(slot, std::move(drafts), std::move(draws));
  }

  // From the next epoch on, notes when each worker is in which phase. Off, it costs a test a phase.
  void set_trace(bool on);
  std::vector<Span> take_spans();

  // What passes of sequences that decode have cost, by width.
  const PassCost& pass_cost() const { return scheduler_.speculation().cost(); }

  size_t kv_bytes() const { return forward_.cache.bytes() + forward_.states.bytes(); }

  // ---- Epochs, one at a time ----

  // Feeds tokens, and states [T, D] where the plan reads them, and writes logits [T, V]; returns
  // when done.
  void logits(int slot, std::vector<int32_t> tokens, std::vector<float> states, float* out);

  // The same, but writes what the head reads of each, normed and of lanes the mean [T, D].
  void hidden(int slot, std::vector<int32_t> tokens, std::vector<float> states, float* out);

  // Begins an epoch and returns.
  void start(std::vector<Advance> advances);

  // Says what may come next in a guided slot of the running epoch, once for each draw: a guide for
  // the first, and one for what follows each drawn token. May come before the pass that needs it is
  // over: then nothing waits. Forgotten with the epoch. This and the next three may be called while
  // another thread reads. Throws std::invalid_argument if the guide allows no token.
  void guide(int slot, Guide guide) { scheduler_.guide(slot, std::move(guide)); }

  // Has more slots, which are free, take part in the running epoch from its next pass on. Returns
  // whether they do; where the epoch ends before that, nothing of them was fed. False where none
  // runs any more. By one caller at a time, who has started the epoch or knows that it was. Throws
  // as `start` does.
  bool join(std::vector<Advance> advances) { return scheduler_.join(std::move(advances)); }

  // Has a slot take no part in the next pass; its reader then gets kGone, unless the slot's last
  // token, or the epoch's end, comes first.
  void leave(int slot) {
    is_free(slot);  // throws where there is no such slot
    scheduler_.leave(slot);
  }

  // Appends the tokens that are there, waiting up to `milliseconds` for the first; returns whether
  // the epoch is over and all of them have been taken. Throws what a worker failed of, as of a disk
  // that cannot be read, and so does all that comes after it.
  bool read(std::vector<TokenEvent>& events, int milliseconds);

  // Asks the epoch to end within one pass; what it drew until then is still there to be read.
  void interrupt() { scheduler_.interrupt(); }

  // ---- As a draft model ----

  const PlanHeader& header() const override { return forward_.plan.header; }
  int64_t length(int slot) const override { return forward_.sequences.length(slot); }
  bool resumable(int slot, int64_t length) const override {
    return forward_.sequences.resumable(slot, length);
  }
  void truncate(int slot, int64_t length) override {
    sequences("truncate", slot).truncate(slot, length);
  }
  void prepare(std::vector<Advance> advances, OnToken on_token) override;
  void take_part(int worker) override;

 private:
  void check_loaded() const;
  void check_failed() const;
  std::vector<Tap> tap_layers(const std::vector<int>& layers, int64_t streams,
                              int64_t hidden) const;
  void begin(std::vector<Advance> advances, bool open);
  void end();
  void run_chore(const Chore& chore);
  bool take(std::vector<TokenEvent>& events, int milliseconds);
  void finish(int slot, std::vector<int32_t> tokens, std::vector<float> states, float* logits,
              float* hidden);
  void work_on(int worker);
  void work_or_fail(int worker);

  // Those of this process. Before the exchange, whose receivers look at what they keep.
  std::vector<std::unique_ptr<Worker>> workers_;
  Forward forward_;
  PassScheduler scheduler_;
  std::unique_ptr<WeightLoader> loader_;
  std::unique_ptr<SavedSequences> saved_;
  bool in_epoch_ = false;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // what the first worker failed of; to be read between epochs
  bool following_ = false;
  bool trace_ = false;

  WorkerThreads threads_;  // last: its threads use everything above
};

}  // namespace monolane
