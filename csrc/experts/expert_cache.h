// One worker's rows of a mixture's experts, where they are more than memory holds: all lie in a
// file, those that are used most in memory, and of the others those that a layer's router just
// chose.
//
// Why not the page cache: it drops what was used longest ago, and each token uses experts of every
// layer, one layer after the other. Of a little less than it holds that drops everything just
// before it is needed. Here an expert takes another's place only if it was used more often.
//
// An expert is read in two halves, since its matrices are used in two phases: gate and up, and
// down. All that a layer misses is asked for at once, and used in the order in which it comes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "experts/file_reader.h"
#include "memory/arena.h"

namespace monolane {

class ExpertCache {
 public:
  static constexpr int kMatrices = 3;  // gate, up and down
  enum Half { kInner, kOuter };        // gate and up; down

  // Rows of a matrix: how long they are, and the pointer by which they are read.
  struct Rows {
    size_t bytes = 0;
    const void** read = nullptr;  // null where there is no such matrix
  };
  using Expert = std::array<Rows, kMatrices>;

  // What so many uses came to.
  struct Counts {
    int64_t found = 0;    // experts that were in memory
    int64_t missed = 0;   // that were read from the file
    int64_t brought = 0;  // of these, that stay in memory
  };

  // `experts`: layer by layer, all pointers valid as long as this lives. `memory`: bytes for those
  // that stay. Beside them is room for as many as a token has `chosen` in a layer.
  ExpertCache(std::vector<Expert> experts, size_t memory, int64_t chosen);
  ~ExpertCache();
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  // ---- The file ----
  size_t file_bytes() const { return file_bytes_; }
  // It begins at `offset` of a file that is long enough, which may be closed afterwards.
  void open(int file, size_t offset);
  void write(int64_t expert, int matrix, const void* rows);  // Throws std::system_error
  void written();  // So far: nothing of it need stay in memory

  // ---- A layer of a pass: use, then await each expert's halves, one half after the other ----

  // Has experts first + `chosen`, ascending, be read that are not in memory. They are best used in
  // the order that is returned, of the same numbers, in the phase of kInner; in that of kOuter in
  // ascending order.
  std::span<const int64_t> use(int64_t first, std::span<const int64_t> chosen);
  void begin_outer();  // between the phases
  void await(int64_t chosen, Half half);
  void release(int64_t chosen, Half half);  // after its products: another may be read there

  const Counts& counts() const { return counts_; }
  size_t bytes() const { return memory_.bytes(); }

 private:
  // Where an expert lies in the file, and how long its halves are: gate, up, pages, down, pages.
  struct Stretch {
    size_t offset = 0;
    std::array<size_t, 2> bytes = {};
  };

  bool passes(int64_t place) const { return place >= staying_; }
  int64_t place_for(int64_t expert) const;
  void take(int64_t expert, int64_t place);
  void leave(int64_t place);
  void begin_read(int64_t expert, Half half);
  void begin_half(Half half);
  void begin_next(Half half);

  std::vector<Expert> experts_;
  std::vector<Stretch> stretches_;  // of each expert
  size_t file_bytes_ = 0, place_bytes_ = 0;
  int64_t passing_, staying_ = 0;  // places; those that stay come first
  Arena memory_;
  int file_ = -1;  // that is written
  size_t file_offset_ = 0;
  std::unique_ptr<FileReader> reader_;  // reads 2 * place + half

  std::vector<double> uses_;     // of each expert, those long ago for less
  std::vector<int64_t> place_;   // of each expert; -1: in the file alone
  std::vector<int64_t> holds_;   // of each place, the expert; -1: none
  std::vector<int64_t> used_;    // of each expert, the layer of a pass that used it last
  int64_t layers_ = 0;           // of passes, so far
  double weight_ = 1;            // of a use: later ones count more
  double growth_;                // of it, from use to use
  int64_t first_ = 0;            // of the layer that is computed, its first expert
  std::vector<int64_t> order_;   // of the layer: those in memory, then those that come
  std::vector<int64_t> coming_;  // of the layer: what is read, ascending
  std::vector<int64_t> free_;    // passing places
  bool crowded_ = false;         // more of them pass than there are places
  size_t next_ = 0;              // of `coming_`, whose half is asked for next
  Counts counts_;
};

}  // namespace monolane
