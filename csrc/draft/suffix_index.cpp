#include "draft/suffix_index.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

namespace monolane {
namespace {

constexpr uint64_t kBase = 0x9E3779B97F4A7C15;  // odd: a rolling hash modulo 2^64
constexpr uint64_t kMix = 0xD6E8FEB86659FD93;

uint64_t value(int32_t token) { return static_cast<uint32_t>(token) + uint64_t{1}; }

}  // namespace

SuffixIndex::SuffixIndex(size_t max_tokens) {
  if (max_tokens < 2 * kDeepest || max_tokens > (size_t{1} << 30)) {
    throw std::invalid_argument("max_tokens: expected 128 to 2**30");
  }
  const size_t ring = std::bit_ceil(max_tokens);
  mask_ = static_cast<uint32_t>(ring - 1);
  shift_ = 64 - static_cast<uint32_t>(std::countr_zero(ring));
  text_.resize(ring);
  for (size_t o = 0; o < kOrders.size(); ++o) {
    for (uint32_t i = 0; i < kOrders[o]; ++i) orders_[o].drop *= kBase;
    orders_[o].newest.resize(ring);
    orders_[o].earlier.resize(ring);
  }
}

void SuffixIndex::clear() {
  end_ = 0;
  for (Order& order : orders_) {
    order.hash = 0;
    std::fill(order.newest.begin(), order.newest.end(), 0);
  }
}

void SuffixIndex::append(int32_t token) {
  if (end_ == std::numeric_limits<uint32_t>::max()) clear();  // places are 32 bits wide
  const uint32_t at = end_++;
  for (size_t o = 0; o < kOrders.size(); ++o) {
    Order& order = orders_[o];
    order.hash = order.hash * kBase + value(token);
    if (at >= kOrders[o]) order.hash -= order.drop * value(this->token(at - kOrders[o]));
    uint32_t& newest = order.newest[(order.hash * kMix) >> shift_];
    order.earlier[end_ & mask_] = newest;
    newest = end_;
  }
  text_[at & mask_] = token;
}

uint32_t SuffixIndex::match(uint32_t at) const {
  const uint32_t most = std::min(kDeepest, at - std::min(at, begin()));
  uint32_t count = 0;
  while (count < most) {
    const int32_t here = token(at - 1 - count);
    if (here != token(end_ - 1 - count) || here == kTextEnd) break;
    ++count;
  }
  steps_ += count + 1;
  return count;
}

size_t SuffixIndex::find(Matches& matches) const {
  size_t found = 0;
  for (size_t o = kOrders.size(); o-- > 0;) {
    uint32_t at = end_;
    for (size_t step = 0; step < kWalk; ++step) {
      const uint32_t earlier = orders_[o].earlier[at & mask_];
      ++steps_;
      if (earlier >= at || earlier <= begin()) break;  // an entry that the ring has forgotten
      at = earlier;
      const auto* end = matches.begin() + found;
      if (std::any_of(matches.cbegin(), end, [&](const auto& m) { return m.at == at; })) continue;
      const uint32_t count = match(at);
      if (count > 0) matches[found++] = {at, count};  // 0: another text with the same hash
    }
  }
  std::stable_sort(matches.begin(), matches.begin() + found, [](const auto& a, const auto& b) {
    return a.count != b.count ? a.count > b.count : a.at > b.at;
  });
  return found;
}

size_t SuffixIndex::bytes() const {
  size_t bytes = text_.size() * sizeof(int32_t);
  for (const Order& order : orders_) {
    bytes += (order.newest.size() + order.earlier.size()) * sizeof(uint32_t);
  }
  return bytes;
}

}  // namespace monolane
