// Keys and values on their way between a slot and what is kept of sequences outside.
#include "state/kv_cache.h"

namespace monolane {

int64_t KvCache::tail_bytes(int64_t end, int64_t heads) const {
  int64_t positions = 0;
  for (size_t layer = 0; layer < capacity_.size(); ++layer) {
    if (is_ring(layer)) positions += end - first_in_tail(layer, end);
  }
  return positions * lists_ * heads * kept_row_bytes();
}

// Calls move(row of the cache, bytes) for each run of the tail that lies in one piece, in order.
template <typename Move>
void KvCache::for_tail(int64_t slot, int64_t end, Heads heads, Move move) const {
  for (size_t layer = 0; layer < capacity_.size(); ++layer) {
    if (!is_ring(layer)) continue;
    for (int64_t i = first_of(heads); i < end_of(heads); ++i) {
      for (int64_t at = first_in_tail(layer, end); at < end;) {
        const int64_t wrap = (at / capacity_[layer] + 1) * capacity_[layer];
        const int64_t until = std::min(end, wrap);
        move(row(slot, layer, i, at), static_cast<size_t>((until - at) * kept_row_bytes()));
        at = until;
      }
    }
  }
}

void KvCache::save_rows(int64_t slot, int64_t begin, int64_t end, Heads heads, char* rows) const {
  const size_t bytes = static_cast<size_t>((end - begin) * kept_row_bytes());
  for (size_t layer = 0; layer < capacity_.size(); ++layer) {
    if (!is_whole(layer)) continue;
    for (int64_t i = first_of(heads); i < end_of(heads); ++i, rows += bytes) {
      std::memcpy(rows, row(slot, layer, i, begin), bytes);
    }
  }
}

void KvCache::save_tail(int64_t slot, int64_t end, Heads heads, char* tail) const {
  for_tail(slot, end, heads, [&](const void* inside, size_t bytes) {
    std::memcpy(tail, inside, bytes);
    tail += bytes;
  });
}

void KvCache::restore_rows(int64_t slot, int64_t begin, int64_t end, int64_t stride, Heads heads,
                           const char* rows) {
  const size_t bytes = static_cast<size_t>((end - begin) * kept_row_bytes());
  for (size_t layer = 0; layer < capacity_.size(); ++layer) {
    if (!is_whole(layer)) continue;
    for (int64_t i = first_of(heads); i < end_of(heads); ++i, rows += stride * kept_row_bytes()) {
      std::memcpy(row(slot, layer, i, begin), rows, bytes);
    }
  }
}

void KvCache::restore_tail(int64_t slot, int64_t end, Heads heads, const char* tail) {
  for_tail(slot, end, heads, [&](void* inside, size_t bytes) {
    std::memcpy(inside, tail, bytes);
    tail += bytes;
  });
}

}  // namespace monolane
