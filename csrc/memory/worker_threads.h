// The worker threads of an executor: made once, pinned to their cores, asleep between epochs.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "memory/progress.h"

namespace monolane {

class WorkerThreads {
 public:
  // Starts `count` workers; worker i runs on cores[i], or where it likes if there are fewer cores.
  // Throws std::system_error if the system has no more threads.
  WorkerThreads(int count, const std::vector<int>& cores) {
    threads_.reserve(count);
    try {
      for (int i = 0; i < count; ++i) {
        const int core = count <= static_cast<int>(cores.size()) ? cores[i] : -1;
        threads_.emplace_back([this, i, core] { serve(i, core); });
      }
    } catch (...) {  // the system has no more threads: those that there are leave
      dismiss();
      throw;
    }
  }

  ~WorkerThreads() { dismiss(); }

  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Begins `job(worker)` on every worker and returns at once; the previous job must be over.
  void start(std::function<void(int)> job) {
    job_ = std::move(job);
    running_.store(size(), std::memory_order_relaxed);
    started_.publish(++round_);
  }

  bool finished() const { return finished_.reached(round_); }

  // Waits for the end of the job.
  void join() { finished_.await(round_); }

  // The same for at most `nanoseconds`; returns whether the job is over.
  bool join_for(int64_t nanoseconds) { return finished_.await_for(round_, nanoseconds); }

 private:
  void dismiss() {
    job_ = nullptr;  // the word to leave
    started_.publish(++round_);
    for (std::thread& thread : threads_) thread.join();
  }

  void serve(int worker, int core) {
    if (core >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(core, &set);
      pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a wish: failing costs speed only
    }
    for (uint32_t round = 1;; ++round) {
      started_.await(round);  // reads job_, written before the publish
      if (!job_) return;
      job_(worker);
      // The last one out publishes the end, and with it what all of them wrote.
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) finished_.publish(round);
    }
  }

  std::vector<std::thread> threads_;
  std::function<void(int)> job_;
  std::atomic<int> running_{0};
  Progress started_;
  Progress finished_;
  uint32_t round_ = 0;
};

}  // namespace monolane
