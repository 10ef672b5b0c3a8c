// What only one worker of an executor touches: residual streams, activations, scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "abi/epoch_abi.h"
#include "experts/router.h"
#include "ops/forward.h"
#include "ops/packed_weights.h"
#include "ranks/simulated_time.h"
#include "state/saved_kv.h"

namespace monolane {

// Rows of the group's lanes, [lanes][T][...], and scratch. Lane indices here are within the group.
struct Worker {
  // `expert_memory`: see PackedWeights, which throws.
  Worker(const Forward& f, int worker, std::optional<size_t> expert_memory);

  void* packed_lane(Activation activation, int64_t lane, int64_t width) const {
    const int kind = static_cast<int>(activation);
    return packed->as<char>() + first_byte[kind] + lane * width * token_bytes[kind];
  }

  int index;
  int group;
  int64_t first_lane, first_worker;
  PackedWeights weights;
  Router router;                        // of the layer that is computed
  std::vector<int64_t> chosen;          // experts of any token, ascending
  std::span<const int64_t> order;       // of these, in which gate and up are multiplied
  static constexpr int kKinds = 3;      // of Activation
  int64_t token_bytes[kKinds] = {};     // of one packed token; 0: no matrix is of that kind
  int64_t first_byte[kKinds] = {};      // of a kind within `packed`
  uint32_t passes = 0;                  // laid out since construction, empty ones included
  uint32_t finished = 0;                // phases since construction
  uint32_t base = 0;                    // `finished` of everybody at the beginning of this pass
  std::unique_ptr<Arena> x;             // [lanes, T, D] residual streams
  std::unique_ptr<Arena> streams;       // [A, T, D] of AltUp
  std::unique_ptr<Arena> predicted;     // [A, D], of one token
  std::unique_ptr<Arena> normed;        // [T, columns]
  std::unique_ptr<Arena> packed;        // of each kind [lanes, T, packed]
  std::unique_ptr<Arena> gathered;      // [T, packed] of those that an expert serves
  std::unique_ptr<Arena> product;       // [T, rows], twice
  std::unique_ptr<Arena> sum;           // [D], twice: what a stream gains, and what is held
  std::unique_ptr<Arena> scores;        // [kAttendQueries, chunk]
  std::unique_ptr<Arena> scratch;       // of the module that needs most; see Scratch
  std::unique_ptr<Arena> cosine, sine;  // [PlanRotary, max_width, most_angles], times amplitude
  AdapterRoom adapter_room;             // where there are adapters
  SavedKv kept;                         // of the group, in its first worker
  std::vector<Span> spans;
  SimulatedStream stream;  // where phases are timed
};

// Cuts pieces off a worker's scratch, of which an operation's `scratch` of spec.py says how much
// there is. They hold nothing that another phase may count on.
class Scratch {
 public:
  explicit Scratch(const Worker& w) : next_(w.scratch->as<float>()) {}

  // Of so many floats, from the beginning of a cache line on.
  float* take(int64_t count) {
    float* piece = next_;
    next_ += (count + kPlanScratchStep - 1) / kPlanScratchStep * kPlanScratchStep;
    return piece;
  }

 private:
  float* next_;
};

}  // namespace monolane
