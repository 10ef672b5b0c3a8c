// The rows of every matrix that one worker multiplies: where they lie, and its own copies of those
// that are not stored in the format in which they are multiplied, or not one behind the other.
//
// Why one arena per worker, and not one per matrix: of a matrix a worker may own less than a huge
// page, and a page has one NUMA node. In the order of the plan, a worker's copies are one stretch
// of memory, which it alone writes and reads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena.h"
#include "kernels.h"
#include "plan.h"
#include "weights.h"

namespace monolane {

class WorkerRows {
 public:
  // Reserves the copies and touches none of them. Throws std::invalid_argument if a matrix is not
  // of the plan's shape, or its rows cannot be converted.
  WorkerRows(const Plan& plan, const ModelWeights& weights, int64_t worker);

  // The rows of a phase's matrix: row 0 is the first of the worker's share.
  const Matrix& of(int64_t phase, int64_t matrix, int64_t expert = 0) const {
    return parts_[first_part(phase, matrix) + expert].used;
  }

  // Makes the copy of a phase's matrix, of all experts; on the worker's own thread, whose NUMA node
  // the memory then is. Nothing to do where rows are used as they are stored. Reads what the loader
  // handed over, for the last time. Throws std::invalid_argument if a weight has no code.
  void convert(const Kernels& kernels, int64_t phase, int64_t matrix);

  size_t bytes() const { return arena_ == nullptr ? 0 : arena_->bytes(); }

 private:
  struct Part {
    const Weight* stored = nullptr;  // null where there is nothing to convert, or no longer
    int64_t first = 0;               // of its rows, all lanes one below the other
    Matrix used;
    void* values = nullptr;  // what `used` reads, in the arena
  };
  int64_t first_part(int64_t phase, int64_t matrix) const {
    return first_parts_[static_cast<size_t>(phase) * kPlanMaxMatrices + matrix];
  }
  void copy(const Kernels& kernels, Part& part);

  std::vector<int64_t> first_parts_;  // [phases * kPlanMaxMatrices + 1]
  std::vector<Part> parts_;           // of each matrix one, or one for each expert
  std::unique_ptr<Arena> arena_;
};

}  // namespace monolane
