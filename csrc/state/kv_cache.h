// Keys and values of every sequence, per layer, lane and KV head; or latents, which are both.
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
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

constexpr int64_t kChunk = 256;  // keys per partial sum: 48 KB of BF16 keys of head_dim 96

class KvCache {
 public:
  // `windows[i]`: keys visible in layer i, 0 for all, -1 where it has none; `heads`: KV heads, of
  // those of all lanes the ones from `first_head` on. `lists`: 2, keys and values; 1, keys that are
  // values too.
  KvCache(const std::vector<int64_t>& windows, int64_t first_head, int64_t heads, int64_t head_dim,
          int64_t lists, int64_t context, int64_t max_width, int64_t slots, Format format)
      : windows_(windows),
        first_head_(first_head),
        heads_(heads),
        head_dim_(head_dim),
        lists_(lists),
        format_(format) {
    size_t at = 0;
    whole_ = in_chunks(context);
    for (const int64_t window : windows) {
      // The oldest key that the first token of a pass sees, and the last that the pass writes, are
      // window + max_width - 1 apart.
      const int64_t needed = window > 0 ? std::min(context, window + max_width) : context;
      capacity_.push_back(window < 0 ? 0 : in_chunks(needed));
      rings_ += is_ring(capacity_.size() - 1);
      without_ += window < 0;
      offset_.push_back(at);
      at += lists * head_bytes(capacity_.size() - 1) * heads;
    }
    slot_bytes_ = at;
    try {
      memory_ = std::make_unique<Arena>(at * slots, -1, 0, false);
    } catch (const std::bad_alloc&) {
      throw std::runtime_error("expected room for keys and values of " + std::to_string(slots) +
                               " sequences of " + std::to_string(context) +
                               " tokens, got a refusal of the system to " +
                               std::to_string(at * slots) +
                               " bytes; use a smaller context, fewer sequences or a smaller "
                               "cache dtype");
    }
  }

  int64_t capacity(int64_t layer) const { return capacity_[layer]; }

  // Key (or value) of a position: head_dim elements; the following positions follow it, up to the
  // wrap.
  void* key(int64_t slot, int64_t layer, int64_t head, int64_t position) const {
    return row(slot, layer, lists_ * (head - first_head_), position);
  }
  void* value(int64_t slot, int64_t layer, int64_t head, int64_t position) const {
    return row(slot, layer, lists_ * (head - first_head_) + lists_ - 1, position);
  }

  // Says that a slot will hold so many positions before long. Attention reads huge pages faster,
  // but the first key of a head then takes a whole one. So a layer has them once a head needs a
  // quarter of its room or half a page, which at worst is one on either side of a page's edge:
  // nothing takes more than four times what it needs.
  void reach(int64_t slot, int64_t positions) const {
    for (size_t layer = 0; layer < capacity_.size(); ++layer) {
      const size_t room = head_bytes(layer);
      const auto needed = static_cast<size_t>(std::min(positions, capacity_[layer]) *
                                              row_bytes(format_, head_dim_));
      if (4 * needed < room && 2 * needed < Arena::kHugePage) continue;
      const size_t begin = slot * slot_bytes_ + offset_[layer];
      memory_->prefer_huge(begin, begin + lists_ * heads_ * room);
    }
  }

  // KV heads of all lanes, `first` and those behind it.
  struct Heads {
    int64_t first, count;
  };
  Heads all_heads() const { return {first_head_, heads_}; }

  // Makes the first `positions` ever written in one slot those of another, too, of some heads.
  void copy(int64_t source, int64_t target, int64_t positions, Heads heads) {
    for (size_t layer = 0; layer < capacity_.size(); ++layer) {
      const int64_t rows = std::min(positions, capacity_[layer]);  // the whole ring once it is full
      for (int64_t i = first_of(heads); i < end_of(heads) && rows > 0; ++i) {
        std::memcpy(row(target, layer, i, 0), row(source, layer, i, 0),
                    static_cast<size_t>(rows * row_bytes(format_, head_dim_)));
      }
    }
  }

  // What a sequence is kept as outside its slot; see monolane.epoch.Kept. A layer that holds every
  // position of the context gives rows, [lists * heads][positions][row]; one whose ring is smaller
  // gives a tail: the positions before `end` that the token at `end` sees, as `windows` says.
  int64_t rings() const { return rings_; }  // layers that give a tail
  int64_t kept_rows(int64_t heads) const {  // of each position
    return lists_ * heads * (static_cast<int64_t>(capacity_.size()) - rings_ - without_);
  }
  int64_t kept_row_bytes() const { return row_bytes(format_, head_dim_); }
  int64_t tail_bytes(int64_t end, int64_t heads) const;
  void save_rows(int64_t slot, int64_t begin, int64_t end, Heads heads, char* rows) const;
  void save_tail(int64_t slot, int64_t end, Heads heads, char* tail) const;
  // `stride`: positions from one row's list to the next; `end - begin` of each are restored.
  void restore_rows(int64_t slot, int64_t begin, int64_t end, int64_t stride, Heads heads,
                    const char* rows);
  void restore_tail(int64_t slot, int64_t end, Heads heads, const char* tail);

  Format format() const { return format_; }
  size_t bytes() const { return memory_->bytes(); }

 private:
  static int64_t in_chunks(int64_t positions) { return (positions + kChunk - 1) / kChunk * kChunk; }
  bool is_ring(size_t layer) const { return windows_[layer] >= 0 && capacity_[layer] < whole_; }
  bool is_whole(size_t layer) const { return windows_[layer] >= 0 && !is_ring(layer); }
  int64_t first_in_tail(size_t layer, int64_t end) const {
    return std::max<int64_t>(0, end - windows_[layer] + 1);
  }
  template <typename Move>
  void for_tail(int64_t slot, int64_t end, Heads heads, Move move) const;
  // Of their keys and values, in a slot's layer.
  int64_t first_of(Heads heads) const { return lists_ * (heads.first - first_head_); }
  int64_t end_of(Heads heads) const { return first_of(heads) + lists_ * heads.count; }
  size_t head_bytes(int64_t layer) const {
    return static_cast<size_t>(capacity_[layer] * row_bytes(format_, head_dim_));
  }
  void* row(int64_t slot, int64_t layer, int64_t index, int64_t position) const {
    const size_t at = slot * slot_bytes_ + offset_[layer] + index * head_bytes(layer) +
                      position % capacity_[layer] * row_bytes(format_, head_dim_);
    return memory_->as<char>() + at;
  }

  std::vector<int64_t> windows_;
  int64_t first_head_, heads_, head_dim_, lists_;
  Format format_;
  int64_t whole_ = 0;                // capacity of a layer that holds every position
  int64_t rings_ = 0, without_ = 0;  // layers that are rings; that have no keys
  std::vector<int64_t> capacity_;
  std::vector<size_t> offset_;
  size_t slot_bytes_ = 0;
  std::unique_ptr<Arena> memory_;
};

}  // namespace monolane
