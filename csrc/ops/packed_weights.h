// The rows of every matrix that one worker multiplies: where they lie, and its own copies of those
// that are not stored in the format in which they are multiplied, or not one behind the other.
//
// Why one arena per worker, and not one per matrix: of a matrix a worker may own less than a huge
// page, and a page has one NUMA node. In the order of the plan, a worker's copies are one stretch
// of memory, which it alone writes and reads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "abi/plan.h"
#include "experts/expert_cache.h"
#include "kernels/kernels.h"
#include "memory/arena.h"
#include "ops/weights.h"

namespace monolane {

class PackedWeights {
 public:
  // Bytes: what a core reads in half a microsecond. docs/log/cpu.md, The next rows ahead, has
  // others that were tried.
  static constexpr int64_t kPrefetched = 16 << 10;

  // Reserves the copies and touches none of them. `expert_memory`: bytes for those experts that are
  // used most, all of which go to a file; none: there is no such file. Throws std::invalid_argument
  // if a matrix is not of the plan's shape, or its rows cannot be converted.
  PackedWeights(const Plan& plan, const ModelWeights& weights, int64_t worker,
                std::optional<size_t> expert_memory);

  // The rows of a phase's matrix: row 0 is the first of the worker's share.
  const OwnRows& of(int64_t phase, int64_t matrix, int64_t expert = 0) const {
    return parts_[first_part(phase, matrix) + expert].used;
  }

  // Asks for the first of these rows, and does not wait for them: memory then works while the
  // worker waits for others or packs what it multiplies, and what is read next does not begin at a
  // standstill. A processor follows a stream by itself only once it has seen some of it. Does
  // nothing for experts that are in a file. Inlined, and so is who only calls it: gcc 12 drops
  // calls of a function that does nothing else, as free of effects.
  [[gnu::always_inline]] void prefetch(int64_t phase, int64_t matrix, int64_t expert = 0) const {
    const Part& part = parts_[first_part(phase, matrix) + expert];
    if (part.expert >= 0) return;
    const char* first = static_cast<const char*>(part.used.data);
    const int64_t bytes =
        std::min(kPrefetched, part.used.rows * row_bytes(part.used.format, part.used.cols));
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(first + b, 0, 2);
  }

  // Makes the copy of a phase's matrix, of all experts; on the worker's own thread, whose NUMA node
  // the memory then is. Nothing to do where rows are used as they are stored. Reads what the loader
  // handed over, for the last time. Throws std::invalid_argument if a weight has no code.
  void convert(const Kernels& kernels, int64_t phase, int64_t matrix);

  // Null: all experts are in memory. Else its file has to be open before anything is converted.
  ExpertCache* experts() const { return experts_.get(); }

  bool stows(int64_t phase, int64_t matrix) const {
    return parts_[first_part(phase, matrix)].expert >= 0;
  }

  // Has a layer's experts be read that are about to be used, ascending; see ExpertCache::use.
  std::span<const int64_t> use_experts(int64_t layer, std::span<const int64_t> chosen) {
    return experts_->use(first_expert_[static_cast<size_t>(layer)], chosen);
  }

  size_t bytes() const {
    return (arena_ == nullptr ? 0 : arena_->bytes()) +
           (experts_ == nullptr ? 0 : experts_->bytes());
  }

 private:
  struct Part {
    const Weight* stored = nullptr;  // null where there is nothing to convert, or no longer
    int64_t first = 0;               // of its rows, all lanes one below the other
    OwnRows used;
    void* values = nullptr;  // its copy, in the arena
    int64_t expert = -1;     // whose copy is in the file, among all of them
    int kind = 0;            // which of its matrices
  };
  using ExpertParts = std::array<Part*, ExpertCache::kMatrices>;
  int64_t first_part(int64_t phase, int64_t matrix) const {
    return first_parts_[static_cast<size_t>(phase) * kPlanMaxMatrices + matrix];
  }
  void stow_experts(const Plan& plan, size_t memory);
  void copy(const Kernels& kernels, Part& part, void* to);

  std::vector<int64_t> first_parts_;  // [phases * kPlanMaxMatrices + 1]
  std::vector<Part> parts_;           // of each matrix one, or one for each expert
  std::unique_ptr<Arena> arena_;
  // Where experts are in a file:
  std::vector<int64_t> first_expert_;  // of each layer, among all of them; -1: it has none
  std::unique_ptr<ExpertCache> experts_;
};

}  // namespace monolane
