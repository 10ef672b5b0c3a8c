#include "ranks/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "memory/token_ring.h"

namespace monolane {
namespace {

// How long a wait sleeps before it looks whether there is still somebody to wait for.
constexpr int64_t kSlice = 20'000'000;  // ns

// Counts whose times are kept: more than the phases of two passes, which is how far workers are
// apart at most. 256 layers of 6 phases and 4 more are 1,540.
constexpr uint32_t kTimeCount = 4096;

int32_t workers_of(const Plan& plan, const Seat& seat) {
  const PlanHeader& h = plan.header;
  if (seat.ranks < 1 || h.groups % seat.ranks != 0) {
    throw std::invalid_argument("ranks: expected a divisor of the plan's " +
                                std::to_string(h.groups) + " groups, got " +
                                std::to_string(seat.ranks));
  }
  const bool has_segment = seat.rank > 0 && !seat.apart;
  if (seat.rank < 0 || seat.rank >= seat.ranks || has_segment != (seat.segment >= 0)) {
    throw std::invalid_argument("rank: expected one below " + std::to_string(seat.ranks) +
                                ", with rank 0's segment if it is another");
  }
  if (seat.apart && (seat.delay_ns > 0 || seat.timed)) {
    throw std::invalid_argument("link delay, times: expected ranks that share memory");
  }
  return h.workers / seat.ranks;
}

// Which phases' ends workers of other groups wait for; and last a pass, which all do.
std::vector<char> awaited_phases(const Plan& plan) {
  const int32_t phases = plan.header.phases;
  std::vector<char> found(phases + 1, 0);
  for (const PlanPhase& phase : plan.phases) {
    if (phase.wait_all == kNoWait) continue;
    found[phase.wait_all > 0 ? phase.wait_all - 1 : phases + phase.wait_all - 1] = 1;
  }
  found[phases - 1] = found[phases] = 1;  // `await_others` counts on the last
  return found;
}

// Which phases write what other groups read: outputs of a module only where lanes hear each other.
std::vector<char> read_phases(const Plan& plan) {
  std::vector<char> found(plan.header.phases + 1, 1);
  for (size_t i = 0; i < plan.phases.size(); ++i) {
    const PlanPhase& phase = plan.phases[i];
    if (phase.write_slot < 0) continue;
    const PlanBuffer written = plan.module(phase).output;
    const auto reads_it = [&](const PlanUpdate& update) {
      if (update.delay == kNever) return false;
      const PlanModule& joins = plan.modules[update.module];
      return joins.output == written && joins.layer - update.delay == phase.layer;
    };
    found[i] = std::ranges::any_of(plan.phases, [&](const PlanPhase& other) {
      return std::any_of(other.updates, other.updates + other.num_updates, reads_it);
    });
  }
  return found;
}

// How many phases of a pass all workers have finished before the leader lays out the next: in the
// last one it draws, and that waits for the logits.
uint32_t last_wait(const Plan& plan) {
  return static_cast<uint32_t>(std::max(plan.phases.back().wait_all, 0));
}

// Makes a segment so long, with all of its memory. Without that a page would be taken when it is
// first touched, and where none is left that is no error but a signal (SIGBUS), in whichever rank
// it is. Returns an error number, or 0.
int reserve(int segment, size_t bytes) {
  int error;
  do {
    error = posix_fallocate(segment, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

// Of parts without a byte, too: each has a place of its own.
size_t whole_pages(size_t bytes) { return (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096; }

// Whether each of so many workers has a processor of its own.
bool has_processors(int32_t workers) {
  cpu_set_t own;
  return sched_getaffinity(0, sizeof own, &own) != 0 || workers <= CPU_COUNT(&own);
}

}  // namespace

Exchange::Exchange(const Plan& plan, const Seat& seat)
    : seat_(seat),
      plan_workers_(plan.header.workers),
      workers_each_(workers_of(plan, seat)),
      phases_(plan.header.phases),
      last_wait_(last_wait(plan)),
      lane_bytes_(sizeof(float) * plan.header.max_width * plan.header.hidden),
      lanes_(plan.header.lanes),
      // Or a worker that waits would keep the one from its work that it waits for, and phases that
      // sleep from waking in time.
      spins_(!seat.timed && has_processors(seat.apart ? workers_each_ : plan_workers_)),
      clocked_(seat.delay_ns > 0 || seat.timed),
      awaited_(awaited_phases(plan)),
      read_(read_phases(plan)),
      written_(workers_each_ + 1) {
  const PlanHeader& h = plan.header;
  const size_t counters = plan_workers_ + 1;
  const auto bytes_of = [&](PlanBuffer which) {
    const size_t place = static_cast<size_t>(which);
    return sizeof(float) * h.slots[place] * h.sizes[place];
  };
  std::vector<size_t> bytes(kParts);
  bytes[kHead] = sizeof(Head);
  bytes[kProgress] = counters * sizeof(Progress);
  bytes[kTimes] = counters * kTimeCount * sizeof(std::atomic<int64_t>);
  for (size_t i = 0; i < std::size(kPlanOutputs); ++i)
    bytes[kOutputs + i] = bytes_of(kPlanOutputs[i]);
  bytes[kStream] = bytes_of(PlanBuffer::kStream);
  bytes[kUnnormed] = bytes_of(PlanBuffer::kUnnormed);
  bytes[kLogits] = bytes_of(PlanBuffer::kLogits);
  bytes[kHops] = sizeof(int64_t) * (phases_ + 1);
  bytes[kPhaseTimes] = seat.timed ? sizeof(PhaseTime) * phases_ * plan_workers_ : 0;
  map(bytes);
  if (seat.rank > 0 && !seat.apart) return;
  new (&head()) Head;  // before any other rank is told of the segment
  for (size_t i = 0; i < counters; ++i) new (&progress(static_cast<int32_t>(i))) Progress;
  if (clocked_) set_links(std::vector<int64_t>(phases_ + 1, seat.delay_ns));
}

// Maps every part, `bytes` long: of rank 0's segment, of a new one, or in private.
void Exchange::map(const std::vector<size_t>& bytes) {
  size_t all = 0;
  for (const size_t part : bytes) all += whole_pages(part);
  if (seat_.ranks > 1 && !seat_.apart) {
    segment_ = seat_.rank == 0 ? memfd_create("monolane", MFD_CLOEXEC)
                               : fcntl(seat_.segment, F_DUPFD_CLOEXEC, 0);
    struct stat found{};
    int error = segment_ < 0 ? errno : 0;
    if (error == 0 && seat_.rank == 0) error = reserve(segment_, all);
    if (error == 0 && fstat(segment_, &found) != 0) error = errno;
    if (error != 0) {
      if (segment_ >= 0) close(segment_);
      throw std::runtime_error(
          "ranks: expected " + std::to_string((all >> 20) + 1) +
          " MB of memory to share, got: " + std::generic_category().message(error) +
          "; free memory on this host, or run with fewer ranks");
    }
    if (found.st_size != static_cast<off_t>(all)) {
      close(segment_);
      throw std::invalid_argument("segment: expected " + std::to_string(all) + " bytes, got " +
                                  std::to_string(found.st_size));
    }
  }
  size_t at = 0;
  for (const size_t part : bytes) {
    parts_.push_back(std::make_unique<Arena>(part, segment_, segment_ < 0 ? 0 : at));
    at += whole_pages(part);
  }
}

Exchange::~Exchange() {
  if (segment_ >= 0) close(segment_);
}

void Exchange::watch(std::vector<int> sockets, int64_t patience_ns) {
  sockets_ = std::move(sockets);
  patience_ns_ = patience_ns;
}

void Exchange::connect(const std::vector<int>& sockets, int64_t patience_ns, CheckPass check) {
  if (!seat_.apart || links_ != nullptr || sockets.size() != static_cast<size_t>(seat_.ranks)) {
    throw std::invalid_argument("sockets: expected one for each of " + std::to_string(seat_.ranks) +
                                " ranks that share no memory, once");
  }
  patience_ns_ = patience_ns;
  check_pass_ = std::move(check);
  links_ = std::make_unique<TcpLinks>(
      seat_.rank, sockets, patience_ns,
      [this](int32_t rank, int32_t worker, const Written& one) {
        return place_of(rank, worker, one);
      },
      [this](int32_t rank, int32_t worker, uint32_t count, uint32_t parts) {
        arrived(rank, worker, count, parts);
      },
      [this](int32_t rank) { lose(rank); });
}

// In rank 0 the first loss counts; in another, that of rank 0 ends all.
void Exchange::lose(int32_t rank) {
  int32_t none = 0;
  head().lost.compare_exchange_strong(none, rank + 1, std::memory_order_acq_rel);
}

bool Exchange::give_up(const std::string& why) {
  if (links_ == nullptr) return false;
  links_->give_up("failed: " + why);
  stop();
  return true;
}

// Where what a worker of another rank wrote is to be stored. Rows do not overlap, so they take no
// more room than there is.
char* Exchange::place_of(int32_t rank, int32_t worker, const Written& one) {
  check_sender(rank, worker);
  const auto expect = [&](bool holds, const char* what) {
    if (holds) return;
    throw std::invalid_argument("frame.part: of worker " + std::to_string(worker) + ", expected " +
                                what + ", got part " + std::to_string(one.part) + ", " +
                                std::to_string(one.rows) + " rows of " + std::to_string(one.bytes) +
                                " bytes, " + std::to_string(one.stride) + " apart, at " +
                                std::to_string(one.offset));
  };
  if (worker == plan_workers_) {
    expect(one.part == kHead && one.rows == 1 && one.bytes == sizeof(Pass) && one.offset == 0,
           "one pass");
    return reinterpret_cast<char*>(&inbox_.pass);
  }
  expect(one.part >= kOutputs && one.part <= kLogits, "outputs");
  expect(one.rows >= 1 && one.rows <= kPlanMixtureWidth, "as many rows as a pass may have");
  expect((one.offset | one.bytes | one.stride) % sizeof(float) == 0, "floats");
  expect(one.rows == 1 || one.stride >= one.bytes, "rows that do not overlap");
  const uint64_t room = parts_[one.part]->bytes();
  const uint64_t bytes = uint64_t{one.stride} * (one.rows - 1) + one.bytes;
  expect(one.offset <= room && bytes <= room - one.offset, "rows within the part");
  if (one.part <= kStream) {  // [.., L, T, D]
    const int64_t lane = static_cast<int64_t>(one.offset / lane_bytes_ % lanes_);
    expect(lane / (lanes_ / seat_.ranks) == rank && one.offset % lane_bytes_ + bytes <= lane_bytes_,
           "rows of one of its lanes");
  }
  return parts_[one.part]->as<char>() + one.offset;
}

void Exchange::check_sender(int32_t rank, int32_t worker) const {
  if (worker >= 0 && worker <= plan_workers_ && rank_of(worker) == rank) return;
  throw std::invalid_argument("frame.worker: expected one of rank " + std::to_string(rank) +
                              ", got " + std::to_string(worker));
}

// Counts what a worker of another rank has finished, or a pass as laid out.
void Exchange::arrived(int32_t rank, int32_t worker, uint32_t count, uint32_t parts) {
  check_sender(rank, worker);
  // Of a worker the end of each pass is sent, if nothing else is.
  const bool pass = worker == plan_workers_;
  const uint32_t most = pass ? 1 : static_cast<uint32_t>(phases_);
  const uint32_t more = count - progress(worker).count();
  if (more < 1 || more > most || (pass && parts != 1)) {
    throw std::invalid_argument("frame.count: of worker " + std::to_string(worker) +
                                ", expected 1 to " + std::to_string(most) + " more than " +
                                std::to_string(progress(worker).count()) +
                                (pass ? ", with one pass" : "") + ", got " + std::to_string(count) +
                                " and " + std::to_string(parts) + " parts");
  }
  if (pass) return take_pass(count);
  progress(worker).publish(count);
}

// Shows the pass that has come to this rank's workers, who trust what it says.
void Exchange::take_pass(uint32_t count) {
  for (int32_t i = first_worker(); i < first_worker() + workers_each_; ++i) {
    if (progress(i).reached(inbox_.read)) continue;
    throw std::invalid_argument("pass: expected none before worker " + std::to_string(i) +
                                " is through with the last one, got one");
  }
  check_pass_(inbox_.pass);
  std::memcpy(static_cast<void*>(&head().pass), &inbox_.pass, sizeof(Pass));
  const bool has_rows = inbox_.pass.width > 0;
  inbox_.read = inbox_.base + (has_rows ? last_wait_ : 1);  // one without counts as one phase
  inbox_.base += has_rows ? static_cast<uint32_t>(phases_) : 1;
  progress(plan_workers_).publish(count);
}

void Exchange::note(int32_t worker, const void* first, int64_t columns, int64_t rows,
                    int64_t stride, bool to_leader) {
  const char* from = static_cast<const char*>(first);
  for (int32_t part = kOutputs; part <= kLogits; ++part) {
    const char* begin = parts_[part]->as<char>();
    if (from < begin || from >= begin + parts_[part]->bytes()) continue;
    written(worker).push_back({.part = part,
                               .rows = static_cast<int32_t>(rows),
                               .bytes = static_cast<uint32_t>(sizeof(float) * columns),
                               .stride = static_cast<uint32_t>(sizeof(float) * stride),
                               .offset = static_cast<uint64_t>(from - begin),
                               .to_leader = to_leader,
                               .unused = 0});
  }
}

std::atomic<int64_t>& Exchange::time_of(int32_t worker, uint32_t count) const {
  return parts_[kTimes]
      ->as<std::atomic<int64_t>>()[worker * size_t{kTimeCount} + count % kTimeCount];
}

void Exchange::set_links(const std::vector<int64_t>& hops_ns) {
  if (!clocked_ || seat_.rank > 0 || hops_ns.size() != static_cast<size_t>(phases_) + 1) {
    throw std::invalid_argument("links: expected a time for each phase and one for a pass, " +
                                std::to_string(phases_ + 1) +
                                ", of ranks that were started with a link delay or timed");
  }
  std::copy(hops_ns.begin(), hops_ns.end(), parts_[kHops]->as<int64_t>());
}

void Exchange::set_times(const Timetable& table, const std::vector<PhaseTime>& times) {
  if (!seat_.timed || seat_.rank > 0 ||
      times.size() != static_cast<size_t>(phases_) * plan_workers_) {
    throw std::invalid_argument("times: expected one for each of " + std::to_string(phases_) +
                                " phases and " + std::to_string(plan_workers_) +
                                " workers, of ranks that were started timed");
  }
  head().timetable = table;
  std::copy(times.begin(), times.end(), parts_[kPhaseTimes]->as<PhaseTime>());
}

void Exchange::publish_pass(uint32_t count) {
  static_assert(offsetof(Head, pass) == 0);
  if (links_ != nullptr) {
    written(plan_workers_) = {{kHead, 1, sizeof(Pass), sizeof(Pass), 0, 0, 0}};
  }
  publish(plan_workers_, count, phases_);
}

// A count that nobody of another rank waits for, and which came with nothing to read, is not sent:
// the next one says it, too.
void Exchange::publish(int32_t worker, uint32_t count, int32_t phase) {
  if (clocked_) time_of(worker, count).store(now_ns(), std::memory_order_relaxed);
  progress(worker).publish(count);  // first: those of this process need not wait for the network
  if (links_ == nullptr) return;
  std::vector<Written>& noted = written(worker);
  if (read_[phase] == 0) noted.clear();
  if (awaited_[phase] != 0 || !noted.empty()) {
    links_->send(worker, count, noted, [this](const Written& one) {
      return parts_[one.part]->as<const char>() + one.offset;
    });
  }
  noted.clear();
}

bool Exchange::await(int32_t worker, uint32_t count, int32_t phase) {
  const bool there = spins_ ? progress(worker).spin(count) : progress(worker).reached(count);
  if (!there && !sleep(worker, count)) return false;
  if (clocked_ && rank_of(worker) != seat_.rank) {
    const int64_t hop = parts_[kHops]->as<int64_t>()[phase];
    const int64_t seen = time_of(worker, count).load(std::memory_order_relaxed) + hop;
    if (seat_.timed) sleep_until(seen);
    while (now_ns() < seen) std::this_thread::yield();
  }
  return true;
}

bool Exchange::sleep(int32_t worker, uint32_t count) {
  // Slices, not a clock: while all ranks are stopped together, as by Ctrl-Z, none is late.
  int64_t waited = 0;
  uint32_t before = progress(worker).count();
  while (!progress(worker).await_for(count, kSlice)) {
    if (given_up()) return false;
    const uint32_t now = progress(worker).count();
    waited = now == before ? waited + kSlice : 0;
    before = now;
    if (seat_.rank == 0 && rank_of(worker) != 0) look_for_lost(waited);
  }
  return true;
}

// Rank 0 alone judges, so that all name the same.
void Exchange::look_for_lost(int64_t waited_ns) {
  int32_t found = -1;
  for (size_t i = 0; i < sockets_.size() && found < 0; ++i) {
    pollfd one{sockets_[i], POLLIN, 0};
    if (poll(&one, 1, 0) > 0) found = static_cast<int32_t>(i) + 1;
  }
  if (found < 0 && patience_ns_ > 0 && waited_ns >= patience_ns_) found = last_rank();
  if (found < 0) return;
  lose(found);
  if (links_ != nullptr) links_->hang_up();
}

// The rank of the worker that is furthest behind. Waits point backwards, so that one waits for no
// other: whoever else stands still does so because of it.
int32_t Exchange::last_rank() const {
  int32_t last = workers_each_;  // the first of rank 1
  for (int32_t i = last + 1; i < plan_workers_; ++i) {
    if (!progress(i).reached(progress(last).count())) last = i;
  }
  return rank_of(last);
}

}  // namespace monolane
