// What a group of workers keeps of sequences outside its slots, by names that the leader gives:
// where lanes are spread over ranks, the keys of each lane stay in the memory of its own. What is
// known by which name, and what is worth keeping, only rank 0 knows (monolane.cpu._ranked_kv).
//
// Touched by the first worker of a group alone, at the ends of epochs, and by rank 0's caller
// between them.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "abi/pass.h"
#include "state/kv_cache.h"

namespace monolane {

class SavedKv {
 public:
  // Positions of a name; -1: there is none.
  int64_t positions(int64_t name) const {
    const auto found = parts_.find(name);
    return found == parts_.end() ? -1 : found->second.positions;
  }

  // Bytes of the tail of a name that is kept, 0 without any.
  int64_t tail_bytes(int64_t name) const {
    return static_cast<int64_t>(parts_.at(name).tail.size());
  }

  // Does what a chore says for these heads. Throws std::out_of_range if the name is not there.
  void run(const Chore& chore, KvCache& cache, HeadPart heads) {
    switch (chore.kind) {
      case Chore::kNone:
        return;
      case Chore::kCopy:
        return cache.copy(chore.slot, chore.target, chore.end, heads);
      case Chore::kSave:
        return save(chore, cache, heads);
      case Chore::kRestore:
        return restore(chore, cache, heads);
      case Chore::kCut:
        return cut(chore, cache.kept_rows(heads), cache.kept_row_bytes());
      case Chore::kDrop:
        parts_.erase(chore.name);
        return;
    }
  }

 private:
  struct Part {
    int64_t positions = 0;
    std::vector<char> rows = {};  // [kept_rows][positions][row]
    std::vector<char> tail = {};
  };

  void save(const Chore& chore, const KvCache& cache, HeadPart heads) {
    Part part{.positions = chore.end - chore.begin};
    part.rows.resize(part.positions * cache.kept_rows(heads) * cache.kept_row_bytes());
    cache.save_rows(chore.slot, chore.begin, chore.end, heads, part.rows.data());
    if (chore.has_tail != 0) {
      part.tail.resize(cache.tail_bytes(chore.end, heads));
      cache.save_tail(chore.slot, chore.end, heads, part.tail.data());
    }
    parts_[chore.name] = std::move(part);
  }

  void restore(const Chore& chore, KvCache& cache, HeadPart heads) {
    const Part& part = parts_.at(chore.name);
    cache.restore_rows(chore.slot, chore.begin, chore.end, part.positions, heads, part.rows.data());
    if (chore.has_tail != 0) cache.restore_tail(chore.slot, chore.end, heads, part.tail.data());
  }

  // A copy: a part of what is dropped later must not keep all of it.
  void cut(const Chore& chore, int64_t lists, int64_t row) {
    const Part& from = parts_.at(chore.from);
    Part part{.positions = chore.end - chore.begin};
    const int64_t bytes = part.positions * row;
    part.rows.resize(lists * bytes);
    for (int64_t i = 0; i < lists && bytes > 0; ++i) {
      std::memcpy(part.rows.data() + i * bytes,
                  from.rows.data() + (i * from.positions + chore.begin) * row,
                  static_cast<size_t>(bytes));
    }
    if (chore.tail_from >= 0) part.tail = parts_.at(chore.tail_from).tail;
    parts_[chore.name] = std::move(part);
  }

  std::map<int64_t, Part> parts_;
};

}  // namespace monolane
