#include "exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "token_ring.h"

namespace monolane {
namespace {

// How long a wait sleeps before it looks whether there is still somebody to wait for.
constexpr int64_t kSlice = 20'000'000;  // ns

// Counts whose times are kept: more than the phases of two passes, which is how far workers are
// apart at most. 256 layers of 6 phases and 4 more are 1,540.
constexpr uint32_t kTimes = 4096;

int32_t workers_of(const Plan& plan, const Seat& seat) {
  const PlanHeader& h = plan.header;
  if (seat.ranks < 1 || h.groups % seat.ranks != 0) {
    throw std::invalid_argument("ranks: expected a divisor of the plan's " +
                                std::to_string(h.groups) + " groups, got " +
                                std::to_string(seat.ranks));
  }
  if (seat.rank < 0 || seat.rank >= seat.ranks || (seat.rank > 0) != (seat.segment >= 0)) {
    throw std::invalid_argument("rank: expected one below " + std::to_string(seat.ranks) +
                                ", with rank 0's segment if it is another");
  }
  return h.workers / seat.ranks;
}

// Places in a block, one behind the other.
class Places {
 public:
  template <typename T>
  size_t add(int64_t count) {
    const size_t at = end_;
    end_ += (static_cast<size_t>(count) * sizeof(T) + 4095) / 4096 * 4096;
    return at;
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

}  // namespace

Exchange::Exchange(const Plan& plan, const Seat& seat)
    : seat_(seat),
      plan_workers_(plan.header.workers),
      workers_each_(workers_of(plan, seat)),
      owns_(seat.rank == 0) {
  const PlanHeader& h = plan.header;
  const int64_t lanes = h.lanes, width = h.max_width, hidden = h.hidden;
  Places places;
  const size_t head = places.add<Head>(1);
  const size_t progress = places.add<Progress>(plan_workers_ + 1);
  const size_t times = places.add<std::atomic<int64_t>>((plan_workers_ + 1) * int64_t{kTimes});
  const size_t attention = places.add<float>(h.attention_slots * lanes * width * hidden);
  const size_t mlp = places.add<float>(h.mlp_slots * lanes * width * hidden);
  const size_t stream = places.add<float>(lanes * width * hidden);
  const size_t logits = places.add<float>(width * h.vocab);

  if (seat.ranks == 1) {
    memory_ = std::make_unique<Arena>(places.end());
  } else {
    segment_ =
        owns_ ? memfd_create("monolane", MFD_CLOEXEC) : fcntl(seat.segment, F_DUPFD_CLOEXEC, 0);
    const auto size = static_cast<off_t>(places.end());
    struct stat found{};
    if (segment_ < 0 || (owns_ && ftruncate(segment_, size) != 0) || fstat(segment_, &found) != 0) {
      const int error = errno;
      if (segment_ >= 0) close(segment_);
      throw std::system_error(error, std::generic_category(), "the ranks' shared memory");
    }
    if (found.st_size != size) {
      close(segment_);
      throw std::invalid_argument("segment: expected " + std::to_string(size) + " bytes, got " +
                                  std::to_string(found.st_size));
    }
    memory_ = std::make_unique<Arena>(places.end(), segment_);
  }
  char* base = memory_->as<char>();
  head_ = reinterpret_cast<Head*>(base + head);
  progress_ = reinterpret_cast<Progress*>(base + progress);
  times_ = reinterpret_cast<std::atomic<int64_t>*>(base + times);
  attention_output_ = reinterpret_cast<float*>(base + attention);
  mlp_output_ = reinterpret_cast<float*>(base + mlp);
  stream_ = reinterpret_cast<float*>(base + stream);
  logits_ = reinterpret_cast<float*>(base + logits);
  if (!owns_) return;
  new (head_) Head;  // before any other rank is told of the segment
  for (int32_t i = 0; i <= plan_workers_; ++i) new (&progress_[i]) Progress;
}

Exchange::~Exchange() {
  if (segment_ >= 0) close(segment_);
}

void Exchange::watch(std::vector<int> sockets, int64_t patience_ns) {
  sockets_ = std::move(sockets);
  patience_ns_ = patience_ns;
}

std::atomic<int64_t>& Exchange::time_of(int32_t worker, uint32_t count) const {
  return times_[static_cast<size_t>(worker) * kTimes + count % kTimes];
}

void Exchange::publish(int32_t worker, uint32_t count) {
  if (seat_.delay_ns > 0) time_of(worker, count).store(now_ns(), std::memory_order_relaxed);
  progress_[worker].publish(count);
}

bool Exchange::await(int32_t worker, uint32_t count) {
  if (!progress_[worker].spin(count) && !sleep(worker, count)) return false;
  if (seat_.delay_ns > 0 && rank_of(worker) != seat_.rank) {
    const int64_t seen = time_of(worker, count).load(std::memory_order_relaxed) + seat_.delay_ns;
    while (now_ns() < seen) std::this_thread::yield();
  }
  return true;
}

bool Exchange::sleep(int32_t worker, uint32_t count) {
  // Slices, not a clock: while all ranks are stopped together, as by Ctrl-Z, none is late.
  int64_t waited = 0;
  uint32_t before = progress_[worker].count();
  while (!progress_[worker].await_for(count, kSlice)) {
    if (given_up()) return false;
    const uint32_t now = progress_[worker].count();
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
  int32_t none = 0;
  if (found >= 0) head_->lost.compare_exchange_strong(none, found + 1, std::memory_order_acq_rel);
}

// The rank of the worker that is furthest behind. Waits point backwards, so that one waits for no
// other: whoever else stands still does so because of it.
int32_t Exchange::last_rank() const {
  int32_t last = workers_each_;  // the first of rank 1
  for (int32_t i = last + 1; i < plan_workers_; ++i) {
    if (!progress_[i].reached(progress_[last].count())) last = i;
  }
  return rank_of(last);
}

}  // namespace monolane
