// Brings weights into the formats in which they are multiplied, each worker its own rows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "experts/expert_cache.h"
#include "memory/worker_threads.h"
#include "ops/worker.h"

namespace monolane {

// Where experts are that are not in memory; see expert_cache.h.
struct ExpertFile {
  int file = -1;      // an empty one, which may be closed afterwards; -1: there is none
  size_t memory = 0;  // bytes for those that are used most, of all workers together
};

class WeightLoader {
 public:
  using Workers = std::vector<std::unique_ptr<Worker>>;

  // Throws std::runtime_error if a file has no room for the experts.
  WeightLoader(const Forward& f, const Workers& workers, WorkerThreads& threads,
               const ExpertFile& experts);

  // Brings a phase's matrix into the format in which it is multiplied, each worker its own rows
  // into its own memory; to be called once for every matrix of which `converts` is true, before the
  // first epoch. Afterwards what the loader handed over for it is not read again. Throws
  // std::invalid_argument if a weight has no code in that format.
  void convert(int64_t phase, int64_t matrix);
  bool converts(int64_t phase, int64_t matrix) const;
  int64_t left() const { return left_; }  // matrices that `convert` has not been called for

  ExpertCache::Counts expert_counts() const;  // of all workers of this process
  size_t converted_bytes() const;             // of the workers' own copies of weights

 private:
  const PlanMatrix& matrix_of(int64_t phase, int64_t matrix) const;
  void open_experts(int file);

  const Forward& f_;
  const Workers& workers_;
  WorkerThreads& threads_;
  int64_t left_ = 0;
};

}  // namespace monolane
