// How far a worker has come, for others to wait on: spin first, then sleep.
//
// One counter per worker instead of one barrier per phase: a barrier makes everybody wait for
// everybody, while a plan's wait names just the phase that must be over and the workers whose part
// is read. Spinning alone would starve the other workers where there are more threads than cores;
// sleeping alone costs microseconds at each of ~75 waits per token.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace monolane {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();  // <immintrin.h> would be 47,000 lines in every unit
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounds of pause before a waiter sleeps: at least 44 us, measured on a Zen 5 virtual machine; far
// longer than a wake-up through the kernel, far shorter than a scheduler's time slice. Builds under
// a sanitizer say fewer: csrc/tests/CMakeLists.txt.
#ifndef MONOLANE_SPINS
#define MONOLANE_SPINS 2000
#endif
constexpr int kSpins = MONOLANE_SPINS;

// A 32-bit count that only grows; it may wrap, so it is compared by difference.
// It may lie in memory that several processes share, so its futexes are not private ones.
class alignas(64) Progress {  // a cache line of its own: neighbours must not share the polling
 public:
  // Publishes everything that the caller wrote before: release, read by `await`'s acquire.
  void publish(uint32_t count) {
    count_.store(count, std::memory_order_release);
    wake();
  }

  // The same with a count one higher, for a counter that several threads publish.
  void advance() {
    count_.fetch_add(1, std::memory_order_release);
    wake();
  }

  bool reached(uint32_t count) const {
    return static_cast<int32_t>(count_.load(std::memory_order_acquire) - count) >= 0;
  }

  uint32_t count() const { return count_.load(std::memory_order_acquire); }

  // Returns once `count` has been published, and with it what was written before.
  void await(uint32_t count) {
    if (spin(count)) return;
    while (!sleep(count, nullptr)) {
    }
  }

  // The same for as long as spinning is cheaper than sleeping; returns whether it was published.
  bool spin(uint32_t count) const {
    for (int i = 0; i < kSpins; ++i) {
      if (reached(count)) return true;
      pause_briefly();
    }
    return false;
  }

  // The same for at most `nanoseconds`, without spinning; returns whether `count` was published.
  bool await_for(uint32_t count, int64_t nanoseconds) {
    const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    return reached(count) || sleep(count, &limit);
  }

 private:
  // The waiter counts itself before it looks at the count a last time, and this thread looks for
  // waiters after it stored: the two fences let one see the other.
  void wake() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_relaxed) != 0) futex(FUTEX_WAKE, INT_MAX, nullptr);
  }

  // Sleeps until woken, for at most `limit`; returns whether `count` has been published.
  bool sleep(uint32_t count, const timespec* limit) {
    sleepers_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t seen = count_.load(std::memory_order_acquire);
    if (static_cast<int32_t>(seen - count) < 0) futex(FUTEX_WAIT, seen, limit);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return reached(count);
  }

  // Not std::atomic::wait: it knows no time limit.
  void futex(int operation, uint32_t value, const timespec* limit) {
    static_assert(sizeof(count_) == 4 && std::atomic<uint32_t>::is_always_lock_free);
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&count_), operation, value, limit, nullptr, 0);
  }

  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace monolane
