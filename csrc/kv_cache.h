// Keys and values of every sequence, per layer, lane and KV head.
//
// Positions live at `position % capacity` of their layer: a layer with a window keeps only as many
// as the window and a pass need. Capacities are multiples of the chunk in which attention sums, so
// that a chunk is never cut by the wrap and sums run over the same keys in the same order wherever
// a sequence stands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "arena.h"
#include "kernels.h"

namespace monolane {

constexpr int64_t kChunk = 256;  // keys per partial sum: 48 KB of BF16 keys of head_dim 96

class KvCache {
 public:
  // `windows[i]`: keys visible in layer i, 0 for all; `heads`: KV heads, of those of all lanes the
  // ones from `first_head` on.
  KvCache(const std::vector<int64_t>& windows, int64_t first_head, int64_t heads, int64_t head_dim,
          int64_t context, int64_t slots, Format format)
      : first_head_(first_head), head_dim_(head_dim), format_(format) {
    size_t at = 0;
    for (const int64_t window : windows) {
      // The oldest key that the first token of a pass sees, and the last that the pass writes, are
      // window + kMaxWidth - 1 apart.
      const int64_t needed = window > 0 ? std::min(context, window + kMaxWidth) : context;
      capacity_.push_back((needed + kChunk - 1) / kChunk * kChunk);
      offset_.push_back(at);
      at += 2 * head_bytes(capacity_.size() - 1) * heads;
    }
    slot_bytes_ = at;
    memory_ = std::make_unique<Arena>(at * slots);
  }

  int64_t capacity(int64_t layer) const { return capacity_[layer]; }

  // Key (or value) of a position: head_dim elements; the following positions follow it, up to the
  // wrap.
  void* key(int64_t slot, int64_t layer, int64_t head, int64_t position) const {
    return row(slot, layer, 2 * (head - first_head_), position);
  }
  void* value(int64_t slot, int64_t layer, int64_t head, int64_t position) const {
    return row(slot, layer, 2 * (head - first_head_) + 1, position);
  }

  // Makes the first `positions` ever written in one slot those of another, too, of some heads.
  void copy(int64_t source, int64_t target, int64_t positions, int64_t head, int64_t heads) {
    const int64_t first = 2 * (head - first_head_);
    for (size_t layer = 0; layer < capacity_.size(); ++layer) {
      const int64_t rows = std::min(positions, capacity_[layer]);  // the whole ring once it is full
      for (int64_t i = first; i < first + 2 * heads && rows > 0; ++i) {
        std::memcpy(row(target, layer, i, 0), row(source, layer, i, 0),
                    static_cast<size_t>(rows * row_bytes(format_, head_dim_)));
      }
    }
  }

  Format format() const { return format_; }
  size_t bytes() const { return memory_->bytes(); }

 private:
  size_t head_bytes(int64_t layer) const {
    return static_cast<size_t>(capacity_[layer] * row_bytes(format_, head_dim_));
  }
  void* row(int64_t slot, int64_t layer, int64_t index, int64_t position) const {
    const size_t at = slot * slot_bytes_ + offset_[layer] + index * head_bytes(layer) +
                      position % capacity_[layer] * row_bytes(format_, head_dim_);
    return memory_->as<char>() + at;
  }

  int64_t first_head_, head_dim_;
  Format format_;
  std::vector<int64_t> capacity_;
  std::vector<size_t> offset_;
  size_t slot_bytes_ = 0;
  std::unique_ptr<Arena> memory_;
};

}  // namespace monolane
