// What only one worker of an executor touches: residual streams, activations, scratch.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "run/executor.h"
#include "state/saved_kv.h"
#include "experts/router.h"
#include "ranks/simulated_time.h"
#include "ops/packed_weights.h"

namespace monolane {

inline size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

// Rows of the group's lanes, [lanes][T][...], and scratch. Lane indices here are within the group.
struct Executor::Worker {
  Worker(const Plan& plan, const ModelWeights& weights, const Kernels& kernels,
         Activation activation, int worker, std::optional<size_t> expert_memory)
      : index(worker),
        group(worker / plan.header.group_workers),
        weights(plan, weights, worker, expert_memory),
        routing(plan.header) {
    const PlanHeader& h = plan.header;
    const int64_t lanes = h.group_lanes, width = h.max_width;
    first_lane = group * lanes;
    first_worker = group * h.group_workers;
    const int64_t concat = h.head == PlanHead::kConcat ? int64_t{h.lanes} * h.hidden : 0;
    int64_t columns = std::max<int64_t>({h.hidden, concat, h.latent});  // of any activations
    for (const PlanPhase& phase : plan.phases) {
      for (int32_t i = 0; i < phase.num_matrices; ++i) {
        columns = std::max<int64_t>(columns, phase.matrices[i].columns);
      }
    }
    // The kinds in which activations are packed: one, unless formats are mixed.
    int64_t packed_bytes = 0;
    for (const PlanPhase& phase : plan.phases) {
      for (int32_t i = 0; i < phase.num_matrices; ++i) {
        const WeightRole role = phase.matrices[i].role;
        const Weight& weight = weights.weight(role, phase.layer);
        const Activation wanted = role == WeightRole::kRouter ? Activation::kF32 : activation;
        token_bytes[static_cast<int>(activation_for(weight.format, wanted))] = 1;
      }
    }
    for (int kind = 0; kind < kKinds; ++kind) {
      if (token_bytes[kind] == 0) continue;
      first_byte[kind] = packed_bytes;
      token_bytes[kind] = kernels.packed_bytes(static_cast<Activation>(kind), columns);
      packed_bytes += lanes * width * token_bytes[kind];
    }
    if (h.experts > 0) {
      const int64_t most = *std::max_element(token_bytes, token_bytes + kKinds);
      gathered = std::make_unique<Arena>(static_cast<size_t>(width * most));
    }
    int64_t rows = 0;  // of the largest share of any phase
    for (const PlanShare& part : plan.shares) rows = std::max<int64_t>(rows, part.end - part.begin);

    x = std::make_unique<Arena>(floats(lanes * width * h.hidden));
    normed = std::make_unique<Arena>(
        floats(std::max<int64_t>(width * columns, int64_t{h.heads} * h.head_dim)));
    packed = std::make_unique<Arena>(static_cast<size_t>(packed_bytes));
    product = std::make_unique<Arena>(floats(2 * width * std::max<int64_t>(rows, 1)));
    sum = std::make_unique<Arena>(floats(h.hidden));
    const int64_t group = h.heads / h.kv_heads;
    scores =
        std::make_unique<Arena>(floats(kAttendQueries * scores_of(std::max<int64_t>(h.chunk, 1))));
    // 24 queries are whole tiles of 8, 6 and 4, whose partial sums stay in the first-level cache.
    attend_tokens = std::clamp<int64_t>(24 / group, 1, kMaxWidth);
    partial = std::make_unique<Arena>(
        floats(std::max<int64_t>(attend_tokens * group * (h.head_dim + 2), h.delta_value)));
    const DeltaSizes d(h);
    const int64_t tokens = d.before + 2 * int64_t{kPlanMaxWidth};
    inputs = std::make_unique<Arena>(floats(tokens * d.columns));
    channels = std::make_unique<Arena>(floats(d.channels));
    tried = std::make_unique<Arena>(floats(d.state));
    cosine = std::make_unique<Arena>(floats(kPlanRotaries * width * h.rotary_dim / 2));
    sine = std::make_unique<Arena>(floats(kPlanRotaries * width * h.rotary_dim / 2));
  }

  void* packed_lane(Activation activation, int64_t lane, int64_t width) const {
    const int kind = static_cast<int>(activation);
    return packed->as<char>() + first_byte[kind] + lane * width * token_bytes[kind];
  }

  int index;
  int group;
  int64_t first_lane, first_worker;
  int64_t attend_tokens;  // whose attention to a chunk is asked for at once, at most
  WorkerRows weights;
  Routing routing;                      // of the layer that is computed
  std::vector<int64_t> chosen;          // experts of any token, ascending
  std::span<const int64_t> order;       // of these, in which gate and up are multiplied
  static constexpr int kKinds = 3;      // of Activation
  int64_t token_bytes[kKinds] = {};     // of one packed token; 0: no matrix is of that kind
  int64_t first_byte[kKinds] = {};      // of a kind within `packed`
  uint32_t passes = 0;                  // laid out since construction, empty ones included
  uint32_t finished = 0;                // phases since construction
  uint32_t base = 0;                    // `finished` of everybody at the beginning of this pass
  std::unique_ptr<Arena> x;             // [lanes, T, D] residual streams
  std::unique_ptr<Arena> normed;        // [T, columns], or all heads of a token
  std::unique_ptr<Arena> packed;        // of each kind [lanes, T, packed]
  std::unique_ptr<Arena> gathered;      // [T, packed] of those that an expert serves
  std::unique_ptr<Arena> product;       // [T, rows], twice
  std::unique_ptr<Arena> sum;           // [D]
  std::unique_ptr<Arena> scores;        // [kAttendQueries, chunk]
  std::unique_ptr<Arena> partial;       // [attend_tokens, H/K, h + 2], or [d_v]
  std::unique_ptr<Arena> cosine, sine;  // [PlanRotary, max_width, rotary_dim/2], times amplitude
  // Of one key head and one sequence: inputs of tokens [C - 1 + 2 kPlanMaxWidth, columns], the
  // channels of one token, and states of which some tokens may be taken back; see delta_states.h.
  std::unique_ptr<Arena> inputs, channels, tried;
  KeptParts kept;  // of the group, in its first worker
  std::vector<Span> spans;
  Stream stream;  // where phases are timed
};

// Multiplies the worker's share of a matrix with the packed activations of each lane it falls on,
// piece by piece: place(lane of the group, first row within the lane, rows) says where the products
// go, and store(the same, y) is told when they are there.
template <typename Place, typename Store>
void Executor::multiply(Worker& w, const PlanPhase& phase, int64_t index, Place place,
                        Store store) {
  const PlanMatrix& part = phase.matrices[index];
  const Matrix& matrix = rows(w, phase, index);
  const PlanShare own = share(w, part.share);
  const Activation kind = activation_of(matrix);
  for (int64_t row = own.begin; row < own.end;) {
    const int64_t lane = row / part.rows, first = row % part.rows;
    const int64_t count = std::min<int64_t>(own.end - row, part.rows - first);
    const int64_t begin = row - own.begin;
    const Products to = place(lane, first, count);
    product(matrix, begin, begin + count, kind, w.packed_lane(kind, lane, pass_.width), pass_.width,
            to.y, to.stride);
    store(lane, first, count, to.y);
    row += count;
  }
}

// The same into the worker's own `product`: y [T, rows].
template <typename Store>
void Executor::multiply(Worker& w, const PlanPhase& phase, int64_t index, Store store) {
  const auto place = [&](int64_t, int64_t, int64_t count) {
    return Products{w.product->as<float>(), count};
  };
  multiply(w, phase, index, place, store);
}

}  // namespace monolane
