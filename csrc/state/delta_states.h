// The states of gated delta rules (model/_delta.py) of every sequence, and what goes with them: of
// each layer that has one and of each key head the states of its value heads, and inputs.
//
// A state goes forward only. So what may be taken back is not in it yet: of drafted tokens, and of
// the token whose draw waits for a guide, the inputs are kept beside the state, and the sequence's
// next pass takes their steps first, as far as they were right. A step is the same arithmetic
// whenever it is taken: no bit depends on it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "abi/pass.h"
#include "abi/plan.h"
#include "memory/arena.h"

namespace monolane {

// Of one key head.
struct DeltaSizes {
  explicit DeltaSizes(const PlanDelta& d)
      : values(d.key_heads > 0 ? d.value_heads / d.key_heads : 0),
        key(d.key),
        value(d.value),
        before(d.kernel > 0 ? d.kernel - 1 : 0),
        channels(2 * key + values * value),
        columns(channels + 2 * values),
        state(values * key * value) {}

  int64_t values;      // value heads
  int64_t key, value;  // widths of a query and a key, and of a value
  int64_t before;      // inputs of earlier tokens that a token's sums need
  int64_t channels;    // numbers that are summed over tokens: of the query, the key, the values
  int64_t columns;     // these and, of each value head, b, and then a
  int64_t state;       // numbers of the states
};

class DeltaStates {
 public:
  DeltaStates(const Plan& plan, int64_t slots);

  bool any() const { return slot_floats_ > 0; }
  const DeltaSizes& sizes(int64_t layer) const { return layers_[layer].sizes; }

  // [values][key][value], behind the first `position` tokens of the sequence.
  float* state(int64_t slot, int64_t layer, int64_t head) const {
    const Layer& x = layers_[layer];
    return memory_->as<float>() + slot * slot_floats_ + x.offset + head * x.head_floats();
  }
  // [before + ..][columns]: of the last tokens of those, then of tokens behind them.
  float* inputs(int64_t slot, int64_t layer, int64_t head) const {
    return state(slot, layer, head) + layers_[layer].sizes.state;
  }

  // How many tokens of a sequence its states are of; -1: they were restored without states.
  int64_t position(int64_t slot) const { return positions_[slot]; }
  void set_position(int64_t slot, int64_t position) { positions_[slot] = position; }

  void copy(int64_t source, int64_t target);

  // What a sequence is kept as behind a token, with the inputs of so many tokens behind `position`.
  int64_t saved_bytes(int64_t inputs) const;
  void save(int64_t slot, int64_t inputs, char* out) const;
  // Puts back what was saved behind `end` tokens; of those bytes, as `saves` says, there may be.
  bool saves(int64_t bytes, int64_t end) const;
  void restore(int64_t slot, int64_t end, int64_t bytes, const char* saved);

  size_t bytes() const { return memory_ == nullptr ? 0 : memory_->bytes(); }

 private:
  struct Layer {
    DeltaSizes sizes;
    int64_t heads;   // key heads; 0: it has no states
    int64_t offset;  // floats, within a slot

    int64_t head_floats() const {
      return sizes.state + (sizes.before + kPlanMaxWidth) * sizes.columns;
    }
    // Of a head as it is saved.
    int64_t saved_floats(int64_t inputs) const {
      return sizes.state + (sizes.before + inputs) * sizes.columns;
    }
  };

  // Calls move(a head's numbers, bytes) for all that is saved of a slot, in order.
  template <typename Move>
  void for_heads(int64_t slot, int64_t inputs, Move move) const;
  int64_t saved_inputs(int64_t bytes) const {
    return (bytes - saved_bytes(0)) / (saved_bytes(1) - saved_bytes(0));
  }

  std::vector<Layer> layers_;
  int64_t slot_floats_ = 0;
  std::vector<int64_t> positions_;
  std::unique_ptr<Arena> memory_;
};

}  // namespace monolane
