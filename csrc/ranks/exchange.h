// What workers of different lanes share: the outputs that they exchange, the pass that the leader
// lays out, and how far each worker has come.
//
// In one process that is private memory. Where the lanes are spread over several processes (ranks),
// each maps the same segment, and nothing else is shared. The segment has no name: it is gone with
// the last process that maps it, however that ends. Ranks of several hosts keep a copy of it each,
// and send what they wrote before their counter (tcp_links.h): workers do not know the difference.
//
// Why not messages, for workers: a wait of the plan is "these counters have reached that count",
// and what was written before is then simply there.
//
// Shape legend: T rows of a pass, L lanes, D hidden, V vocabulary, W workers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "abi/pass.h"
#include "abi/plan.h"
#include "kernels/kernels.h"
#include "memory/arena.h"
#include "memory/progress.h"
#include "ranks/simulated_time.h"
#include "ranks/tcp_links.h"

namespace monolane {

// Which of a plan's workers this process runs: those of a run of whole groups.
struct Seat {
  int32_t rank = 0, ranks = 1;
  int segment = -1;    // of rank 0, a file descriptor; -1: this is rank 0, or all are apart
  bool apart = false;  // each in memory of its own, and connected by `connect`
  // For measurements only, and the same in all ranks.
  int64_t delay_ns = 0;  // from another rank's publishing to its being seen, unless set_links says
  bool timed = false;    // phases take the times that `set_times` says
};

class Exchange {
 public:
  // Throws std::invalid_argument if the ranks cannot share the plan's groups, or the segment is not
  // one for this plan.
  Exchange(const Plan& plan, const Seat& seat);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int segment() const { return segment_; }  // to be handed to the other ranks; -1: private
  int32_t ranks() const { return seat_.ranks; }
  int32_t first_worker() const { return seat_.rank * workers_each_; }
  int32_t workers() const { return workers_each_; }  // of this process

  Pass& pass() const { return head().pass; }
  // Of a layer's module, [slots, L, T, D].
  float* output(PlanBuffer ring) const {
    const auto place = std::ranges::find(kPlanOutputs, ring) - std::begin(kPlanOutputs);
    return part(static_cast<Part>(kOutputs + place));
  }
  float* stream() const { return part(kStream); }      // [L, T, D]
  float* unnormed() const { return part(kUnnormed); }  // [T, (H+K)*h]
  float* logits() const { return part(kLogits); }      // [decode_width, V]

  // Says that a worker wrote rows of floats, `stride` apart, into one of these; before it publishes
  // the phase. `to_leader`: only rank 0 reads them.
  void wrote(int32_t worker, const float* first, int64_t columns, int64_t rows, int64_t stride,
             bool to_leader = false) {
    if (links_ != nullptr) note(worker, first, columns, rows, stride, to_leader);
  }

  // Counts a pass as laid out, or a phase as finished, with everything written before.
  void publish_pass(uint32_t count);
  void publish(int32_t worker, uint32_t count, int32_t phase);

  // Wait for the count of a worker, which it publishes with that phase, or for a pass. False: the
  // ranks have given up.
  bool await(int32_t worker, uint32_t count, int32_t phase);
  bool await_pass(uint32_t count) { return await(plan_workers_, count, phases_); }

  // In rank 0: sockets to the ranks 1.., which the death of a rank closes, and how long a wait for
  // another rank may see no progress.
  void watch(std::vector<int> sockets, int64_t patience_ns);

  // Throws std::invalid_argument if a pass is none that workers may be shown.
  using CheckPass = std::function<void(const Pass& pass)>;

  // Where ranks are apart, before the first epoch: connections to all ranks, -1 for this one. A
  // pass that comes is checked once nobody here reads the one before.
  void connect(const std::vector<int>& sockets, int64_t patience_ns, CheckPass check);

  // The first rank that died or made no progress; -1: none. Then nothing here is of use any more.
  int32_t lost() const { return head().lost.load(std::memory_order_acquire) - 1; }

  // What became of a rank that is apart, a verb for people; empty: it made no progress.
  std::string fault(int32_t rank) const { return links_ == nullptr ? "" : links_->fault(rank); }

  // For measurements, in rank 0 and between epochs: nanoseconds until another rank sees what each
  // phase published, and, last, a pass, [phases + 1]; and the times of phases. The seat says so.
  void set_links(const std::vector<int64_t>& hops_ns);
  void set_times(const Timetable& table, const std::vector<PhaseTime>& times);
  bool timed() const { return seat_.timed; }
  bool spins() const { return spins_; }
  const Timetable& timetable() const { return head().timetable; }
  const PhaseTime& phase_time(int64_t phase, int32_t worker) const {
    return parts_[kPhaseTimes]->as<PhaseTime>()[phase * plan_workers_ + worker];
  }

  // Where ranks are apart, by a worker of another rank than 0 that cannot go on: tells rank 0 why,
  // and has all waits end. Returns whether they are.
  bool give_up(const std::string& why);

  // Has this process's own waits end, too.
  void stop() {
    stopping_.store(true, std::memory_order_release);
    if (links_ != nullptr) links_->hang_up();
  }
  bool given_up() const { return stopping_.load(std::memory_order_acquire) || lost() >= 0; }

 private:
  struct Head {
    Pass pass;
    std::atomic<int32_t> lost{0};  // rank + 1
    Timetable timetable;
  };
  // Each a mapping of its own, one behind the other in the segment.
  enum Part {
    kHead,
    kProgress,
    kTimes,
    kOutputs,  // of a layer's first module; those of the others follow
    kStream = kOutputs + std::size(kPlanOutputs),
    kUnnormed,
    kLogits,
    kHops,
    kPhaseTimes,
    kParts
  };

  void map(const std::vector<size_t>& bytes);
  void note(int32_t worker, const void* first, int64_t columns, int64_t rows, int64_t stride,
            bool to_leader);
  void lose(int32_t rank);
  Head& head() const { return *parts_[kHead]->as<Head>(); }
  float* part(Part part) const { return parts_[part]->as<float>(); }
  Progress& progress(int32_t worker) const { return parts_[kProgress]->as<Progress>()[worker]; }
  int32_t rank_of(int32_t worker) const {
    return worker == plan_workers_ ? 0 : worker / workers_each_;
  }
  // Of what this process has written and not yet published, by worker; the pass comes last.
  std::vector<Written>& written(int32_t worker) {
    return written_[worker == plan_workers_ ? workers_each_ : worker - first_worker()];
  }
  char* place_of(int32_t rank, int32_t worker, const Written& written);
  void check_sender(int32_t rank, int32_t worker) const;
  void arrived(int32_t rank, int32_t worker, uint32_t count, uint32_t parts);
  void take_pass(uint32_t count);
  std::atomic<int64_t>& time_of(int32_t worker, uint32_t count) const;
  bool sleep(int32_t worker, uint32_t count);
  void look_for_lost(int64_t waited_ns);
  int32_t last_rank() const;

  // What rank 0 has sent of the next pass. The thread that receives from it alone touches this.
  struct Inbox {
    Pass pass;
    uint32_t base = 0;  // what each worker will have finished when the next pass begins
    uint32_t read = 0;  // what each own worker has finished once it reads the last one no more
  };

  const Seat seat_;
  const int32_t plan_workers_, workers_each_, phases_;
  const uint32_t last_wait_;   // what the leader waits for, of all, before it lays out a pass
  const uint64_t lane_bytes_;  // of a lane's rows, [T, D]
  const int32_t lanes_;
  const bool spins_;    // whether a wait spins before it sleeps
  const bool clocked_;  // whether others are told when something was published
  int segment_ = -1;
  std::vector<std::unique_ptr<Arena>> parts_;
  std::vector<int> sockets_;
  int64_t patience_ns_ = 0;
  std::vector<char> awaited_;  // [phases + 1], whether other groups wait for a phase's end
  std::vector<char> read_;     // [phases + 1], whether they read what it writes
  std::vector<std::vector<Written>> written_;
  std::atomic<bool> stopping_{false};
  CheckPass check_pass_;
  Inbox inbox_;
  std::unique_ptr<TcpLinks> links_;  // last: its threads use everything above
};

}  // namespace monolane
