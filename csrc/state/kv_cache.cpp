#include "state/kv_cache.h"

#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>

namespace monolane {

KvCache::KvCache(const std::vector<KvLayer>& layers, HeadPart own, int64_t context,
                 int64_t max_width, int64_t slots, Format format)
    : own_(own), format_(format), whole_(in_chunks(context)) {
  for (const KvLayer& kept : layers) {
    Layer& x = layers_.emplace_back(Layer{kept});
    x.first = own.first(x.heads);
    x.here = own.count(x.heads);
    x.row = row_bytes(format, x.head_dim);
    // The oldest key that the first token of a pass sees, and the last that the pass writes, are
    // window + max_width - 1 apart.
    const int64_t needed = x.window > 0 ? std::min(context, x.window + max_width) : context;
    x.capacity = x.window < 0 ? 0 : in_chunks(needed);
    x.offset = slot_bytes_;
    slot_bytes_ += x.lists * x.head_bytes() * x.here;
    rings_ += is_ring(x);
    if (is_whole(x)) unit_ = std::gcd(unit_, x.row);
  }
  const size_t bytes = slot_bytes_ * slots;
  try {
    memory_ = std::make_unique<Arena>(bytes, -1, 0, false);
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("expected room for keys and values of " + std::to_string(slots) +
                             " sequences of " + std::to_string(context) +
                             " tokens, got a refusal of the system to " + std::to_string(bytes) +
                             " bytes; use a smaller context, fewer sequences or a smaller cache "
                             "dtype");
  }
}

void KvCache::reach(int64_t slot, int64_t positions) const {
  for (const Layer& x : layers_) {
    const auto needed = static_cast<size_t>(std::min(positions, x.capacity) * x.row);
    if (4 * needed < x.head_bytes() && 2 * needed < Arena::kHugePage) continue;
    const size_t begin = slot * slot_bytes_ + x.offset;
    memory_->prefer_huge(begin, begin + x.lists * x.here * x.head_bytes());
  }
}

int64_t KvCache::first_resumable(int64_t highest) const {
  int64_t first = 0;
  for (const Layer& x : layers_) {
    const int64_t oldest = highest - x.capacity;  // key kept
    if (x.window > 0 && oldest > 0) first = std::max(first, oldest + x.window - 1);
  }
  return first;
}

void KvCache::copy(int64_t source, int64_t target, int64_t positions, HeadPart heads) {
  for (const Layer& x : layers_) {
    const int64_t rows = std::min(positions, x.capacity);  // the whole ring once it is full
    for (int64_t i = x.begin_of(heads); i < x.end_of(heads) && rows > 0; ++i) {
      std::memcpy(row(target, x, i, 0), row(source, x, i, 0), static_cast<size_t>(rows * x.row));
    }
  }
}

int64_t KvCache::kept_rows(HeadPart heads) const {
  int64_t rows = 0;
  for (const Layer& x : layers_) {
    if (is_whole(x)) rows += x.lists * heads.count(x.heads) * (x.row / unit_);
  }
  return rows;
}

int64_t KvCache::tail_bytes(int64_t end, HeadPart heads) const {
  int64_t bytes = 0;
  for (const Layer& x : layers_) {
    if (!is_ring(x)) continue;
    bytes += (end - x.first_in_tail(end)) * x.lists * heads.count(x.heads) * x.row;
  }
  return bytes;
}

// Calls move(piece of the cache, where that is in rows, bytes) for all pieces that lie one behind
// the other in both: a list of keys, or where keys are several rows each of these.
template <typename Move>
void KvCache::for_rows(int64_t slot, int64_t begin, int64_t end, int64_t stride, HeadPart heads,
                       Move move) const {
  if (begin == end) return;  // then there may be no rows to point to
  int64_t at = 0;
  for (const Layer& x : layers_) {
    if (!is_whole(x)) continue;
    for (int64_t i = x.begin_of(heads); i < x.end_of(heads); ++i) {
      char* keys = row(slot, x, i, begin);
      const int64_t each = x.row / unit_;
      if (each == 1) move(keys, at, (end - begin) * unit_);
      for (int64_t t = 0; t < end - begin && each > 1; ++t) {
        for (int64_t part = 0; part < each; ++part) {
          move(keys + (t * each + part) * unit_, at + (part * stride + t) * unit_, unit_);
        }
      }
      at += each * stride * unit_;
    }
  }
}

// Calls move(row of the cache, bytes) for each run of the tail that lies in one piece, in order.
template <typename Move>
void KvCache::for_tail(int64_t slot, int64_t end, HeadPart heads, Move move) const {
  for (const Layer& x : layers_) {
    if (!is_ring(x)) continue;
    for (int64_t i = x.begin_of(heads); i < x.end_of(heads); ++i) {
      for (int64_t at = x.first_in_tail(end); at < end;) {
        const int64_t wrap = (at / x.capacity + 1) * x.capacity;
        const int64_t until = std::min(end, wrap);
        move(row(slot, x, i, at), static_cast<size_t>((until - at) * x.row));
        at = until;
      }
    }
  }
}

void KvCache::save_rows(int64_t slot, int64_t begin, int64_t end, HeadPart heads,
                        char* rows) const {
  for_rows(slot, begin, end, end - begin, heads, [&](const char* inside, int64_t at, int64_t n) {
    std::memcpy(rows + at, inside, static_cast<size_t>(n));
  });
}

void KvCache::save_tail(int64_t slot, int64_t end, HeadPart heads, char* tail) const {
  for_tail(slot, end, heads, [&](const void* inside, size_t bytes) {
    std::memcpy(tail, inside, bytes);
    tail += bytes;
  });
}

void KvCache::restore_rows(int64_t slot, int64_t begin, int64_t end, int64_t stride, HeadPart heads,
                           const char* rows) {
  for_rows(slot, begin, end, stride, heads, [&](char* inside, int64_t at, int64_t n) {
    std::memcpy(inside, rows + at, static_cast<size_t>(n));
  });
}

void KvCache::restore_tail(int64_t slot, int64_t end, HeadPart heads, const char* tail) {
  for_tail(slot, end, heads, [&](void* inside, size_t bytes) {
    std::memcpy(inside, tail, bytes);
    tail += bytes;
  });
}

}  // namespace monolane
