// Keys and values of every sequence, per layer, lane and KV head; or latents, which are both.
//
// Positions live at `position % capacity` of their layer: a layer with a window keeps only as many
// as the window and a pass need. Capacities are multiples of the chunk in which attention sums, so
// that a chunk is never cut by the wrap and sums run over the same keys in the same order wherever
// a sequence stands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

constexpr int64_t kChunk = 256;  // keys per partial sum: 48 KB of BF16 keys of head_dim 96

// Which KV heads of every layer: the index-th of so many equal parts.
struct HeadPart {
  int64_t index, of;

  int64_t count(int64_t heads) const { return heads / of; }
  int64_t first(int64_t heads) const { return index * count(heads); }
};

// What a layer keeps of a token.
struct KvLayer {
  int64_t window = -1;  // keys visible to a query, 0 for all, -1 where it has none
  int64_t heads = 0;    // KV heads of all lanes
  int64_t head_dim = 0;
  int64_t lists = 0;  // 2, keys and values; 1, keys that are values too
};

class KvCache {
 public:
  // Of a part of the KV heads of these layers.
  KvCache(const std::vector<KvLayer>& layers, HeadPart own, int64_t context, int64_t max_width,
          int64_t slots, Format format);

  // The least positions that a slot may be cut to, beside none, of which `highest` were written:
  // windowed layers still hold the keys that the next token sees.
  int64_t first_resumable(int64_t highest) const;

  // Key (or value) of a position: head_dim elements; the following positions follow it, up to the
  // wrap.
  void* key(int64_t slot, int64_t layer, int64_t head, int64_t position) const {
    const Layer& x = layers_[layer];
    return row(slot, x, x.lists * (head - x.first), position);
  }
  void* value(int64_t slot, int64_t layer, int64_t head, int64_t position) const {
    const Layer& x = layers_[layer];
    return row(slot, x, x.lists * (head - x.first) + x.lists - 1, position);
  }

  // Says that a slot will hold so many positions before long. Attention reads huge pages faster,
  // but the first key of a head then takes a whole one. So a layer has them once a head needs a
  // quarter of its room or half a page, which at worst is one on either side of a page's edge:
  // nothing takes more than four times what it needs.
  void reach(int64_t slot, int64_t positions) const;

  HeadPart own() const { return own_; }

  // Makes the first `positions` ever written in one slot those of another, too, of some heads.
  void copy(int64_t source, int64_t target, int64_t positions, HeadPart heads);

  // What a sequence is kept as outside its slot; see monolane.executor_api.Kept. A layer that holds
  // every position of the context gives rows, [kept_rows][positions][kept_row_bytes], where a key
  // that is wider than another layer's is several; one whose ring is smaller gives a tail: the
  // positions before `end` that the token at `end` sees, as `window` says.
  int64_t rings() const { return rings_; }  // layers that give a tail
  int64_t kept_rows(HeadPart heads) const;  // of each position
  int64_t kept_row_bytes() const { return unit_; }
  int64_t tail_bytes(int64_t end, HeadPart heads) const;
  void save_rows(int64_t slot, int64_t begin, int64_t end, HeadPart heads, char* rows) const;
  void save_tail(int64_t slot, int64_t end, HeadPart heads, char* tail) const;
  // `stride`: positions from one row's list to the next; `end - begin` of each are restored.
  void restore_rows(int64_t slot, int64_t begin, int64_t end, int64_t stride, HeadPart heads,
                    const char* rows);
  void restore_tail(int64_t slot, int64_t end, HeadPart heads, const char* tail);

  Format format() const { return format_; }
  size_t bytes() const { return memory_->bytes(); }

 private:
  struct Layer : KvLayer {
    int64_t first = 0;     // of its KV heads that are here
    int64_t here = 0;      // how many
    int64_t row = 0;       // bytes of a key
    int64_t capacity = 0;  // positions; 0: it has no keys
    size_t offset = 0;     // within a slot

    size_t head_bytes() const { return static_cast<size_t>(capacity * row); }
    // Of keys and values of some heads, those in this layer's place of a slot.
    int64_t begin_of(HeadPart part) const { return lists * (part.first(heads) - first); }
    int64_t end_of(HeadPart part) const { return begin_of(part) + lists * part.count(heads); }
    int64_t first_in_tail(int64_t end) const { return std::max<int64_t>(0, end - window + 1); }
  };

  static int64_t in_chunks(int64_t positions) { return (positions + kChunk - 1) / kChunk * kChunk; }
  bool is_ring(const Layer& x) const { return x.window >= 0 && x.capacity < whole_; }
  bool is_whole(const Layer& x) const { return x.window >= 0 && !is_ring(x); }
  template <typename Move>
  void for_rows(int64_t slot, int64_t begin, int64_t end, int64_t stride, HeadPart heads,
                Move move) const;
  template <typename Move>
  void for_tail(int64_t slot, int64_t end, HeadPart heads, Move move) const;
  char* row(int64_t slot, const Layer& x, int64_t index, int64_t position) const {
    return memory_->as<char>() + slot * slot_bytes_ + x.offset + index * x.head_bytes() +
           position % x.capacity * x.row;
  }

  std::vector<Layer> layers_;
  HeadPart own_;
  Format format_;
  int64_t whole_ = 0;  // capacity of a layer that holds every position
  int64_t rings_ = 0;  // layers that are rings
  int64_t unit_ = 0;   // bytes: what all keys of whole layers are a multiple of
  size_t slot_bytes_ = 0;
  std::unique_ptr<Arena> memory_;
};

}  // namespace monolane
