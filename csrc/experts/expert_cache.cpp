#include "experts/expert_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <system_error>

namespace monolane {
namespace {

constexpr double kHalf = 16;     // uses of each expert, on average, after which one counts half
constexpr double kMost = 1e100;  // of a weight, before all are made smaller

size_t line_up(size_t bytes) { return (bytes + 63) / 64 * 64; }
size_t page_up(size_t bytes) {
  return (bytes + FileReader::kAlign - 1) / FileReader::kAlign * FileReader::kAlign;
}

// Where an expert's matrix begins, from the beginning of the expert.
size_t begin_of(const ExpertCache::Expert& expert, int matrix) {
  if (matrix == 0) return 0;
  const size_t up = line_up(expert[0].bytes);
  return matrix == 1 ? up : page_up(up + expert[1].bytes);
}

size_t place_bytes_of(const std::vector<ExpertCache::Expert>& experts) {
  size_t most = 0;
  for (const ExpertCache::Expert& expert : experts) {
    most = std::max(most, begin_of(expert, 2) + page_up(expert[2].bytes));
  }
  return std::max(most, FileReader::kAlign);
}

}  // namespace

ExpertCache::ExpertCache(std::vector<Expert> experts, size_t memory, int64_t chosen)
    : experts_(std::move(experts)),
      stretches_(experts_.size()),
      place_bytes_(place_bytes_of(experts_)),
      passing_(chosen),
      staying_(static_cast<int64_t>(std::min(memory / place_bytes_, experts_.size()))),
      memory_(static_cast<size_t>(staying_ + passing_) * place_bytes_),
      uses_(experts_.size()),
      place_(experts_.size(), -1),
      holds_(staying_ + passing_, -1),
      used_(experts_.size(), -1),
      growth_(std::exp2(1 / (kHalf * static_cast<double>(std::max<size_t>(experts_.size(), 1))))) {
  for (size_t i = 0; i < experts_.size(); ++i) {
    const size_t inner = begin_of(experts_[i], 2), outer = page_up(experts_[i][2].bytes);
    stretches_[i] = {file_bytes_, {inner, outer}};
    file_bytes_ += inner + outer;
  }
}

ExpertCache::~ExpertCache() {
  if (file_ >= 0) close(file_);
}

void ExpertCache::open(int file, size_t offset) {
  file_ = dup(file);
  file_offset_ = offset;
  reader_ = std::make_unique<FileReader>(file, 2 * static_cast<int64_t>(holds_.size()));
}

void ExpertCache::write(int64_t expert, int matrix, const void* rows) {
  const Expert& of = experts_[expert];
  const size_t begin = file_offset_ + stretches_[expert].offset + begin_of(of, matrix);
  const char* from = static_cast<const char*>(rows);
  for (size_t at = 0; at < of[matrix].bytes;) {
    const ssize_t count =
        pwrite(file_, from + at, of[matrix].bytes - at, static_cast<off_t>(begin + at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw std::system_error(count < 0 ? errno : EIO, std::generic_category(),
                              "expert_memory: expected to write the experts' file");
    }
    at += static_cast<size_t>(count);
  }
}

void ExpertCache::written() {
  const auto begin = static_cast<off_t>(file_offset_), bytes = static_cast<off_t>(file_bytes_);
  sync_file_range(file_, begin, bytes,
                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  posix_fadvise(file_, begin, bytes, POSIX_FADV_DONTNEED);
}

std::span<const int64_t> ExpertCache::use(int64_t first, std::span<const int64_t> chosen) {
  free_.clear();
  for (int64_t place = static_cast<int64_t>(holds_.size()) - 1; place >= staying_; --place) {
    leave(place);
    free_.push_back(place);
  }
  order_.clear();
  coming_.clear();
  first_ = first;
  ++layers_;
  if (weight_ > kMost) {
    for (double& uses : uses_) uses /= weight_;
    weight_ = 1;
  }
  for (const int64_t number : chosen) {
    uses_[first + number] += weight_;
    used_[first + number] = layers_;
    weight_ *= growth_;
  }
  int64_t passing = 0;
  for (const int64_t number : chosen) {
    const int64_t expert = first + number;
    if (place_[expert] >= 0) {
      ++counts_.found;
      order_.push_back(number);
      continue;
    }
    ++counts_.missed;
    coming_.push_back(number);
    if (const int64_t place = place_for(expert); place >= 0) {
      ++counts_.brought;
      take(expert, place);
    } else {
      ++passing;
    }
  }
  order_.insert(order_.end(), coming_.begin(), coming_.end());
  crowded_ = passing > passing_;
  begin_half(kInner);
  if (!crowded_) begin_half(kOuter);
  return order_;
}

void ExpertCache::begin_outer() {
  if (crowded_) begin_half(kOuter);
}

void ExpertCache::begin_half(Half half) {
  next_ = 0;
  begin_next(half);
}

// A place that nobody has, or that of the expert which is used least, if this one was used once
// more at least: what is used in turn must not take each other's places. Else -1.
int64_t ExpertCache::place_for(int64_t expert) const {
  int64_t least = -1;
  for (int64_t place = 0; place < staying_; ++place) {
    const int64_t other = holds_[place];
    if (other < 0) return place;
    if (used_[other] == layers_) continue;
    if (least < 0 || uses_[other] < uses_[holds_[least]]) least = place;
  }
  return least >= 0 && uses_[holds_[least]] + weight_ < uses_[expert] ? least : -1;
}

void ExpertCache::take(int64_t expert, int64_t place) {
  leave(place);
  holds_[place] = expert;
  place_[expert] = place;
  const char* at = memory_.as<char>() + static_cast<size_t>(place) * place_bytes_;
  for (int i = 0; i < kMatrices; ++i) {
    const void** read = experts_[expert][i].read;  // null: there is no gate
    if (read != nullptr) *read = at + begin_of(experts_[expert], i);
  }
}

// Nothing is under way to it unless a pass was given up.
void ExpertCache::leave(int64_t place) {
  if (holds_[place] < 0) return;
  for (const Half half : {kInner, kOuter}) reader_->await(2 * place + half);
  place_[holds_[place]] = -1;
  holds_[place] = -1;
}

void ExpertCache::begin_read(int64_t expert, Half half) {
  const Stretch& from = stretches_[expert];
  const size_t skipped = half == kOuter ? from.bytes[kInner] : 0;
  char* to = memory_.as<char>() + static_cast<size_t>(place_[expert]) * place_bytes_;
  reader_->begin(2 * place_[expert] + half, file_offset_ + from.offset + skipped, from.bytes[half],
                 to + skipped);
}

// Asks for a half of those that come, in turn, as long as there are places.
void ExpertCache::begin_next(Half half) {
  for (; next_ < coming_.size(); ++next_) {
    const int64_t expert = first_ + coming_[next_];
    if (place_[expert] < 0) {
      if (free_.empty()) return;
      take(expert, free_.back());
      free_.pop_back();
    }
    begin_read(expert, half);
  }
}

void ExpertCache::await(int64_t chosen, Half half) {
  reader_->await(2 * place_[first_ + chosen] + half);
}

void ExpertCache::release(int64_t chosen, Half half) {
  const int64_t place = place_[first_ + chosen];
  if (!crowded_ || !passes(place)) return;
  leave(place);
  free_.push_back(place);
  begin_next(half);
}

}  // namespace monolane
