#include "state/sequences.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace monolane {
namespace {

std::vector<KvLayer> kept_of(const Plan& plan) {
  std::vector<KvLayer> layers(plan.header.layers);
  for (const PlanModule& module : plan.modules) {
    const PlanAttention& a = module.attention;
    if (a.heads == 0 || a.keys_of >= 0) continue;
    layers.at(module.layer) = {a.window, a.kv_heads, a.head_dim, module.latent.rank > 0 ? 1 : 2};
  }
  return layers;
}

}  // namespace

Sequences::Sequences(const Plan& plan, int rank, int ranks, int slots, Format kv_format)
    : cache(kept_of(plan), {rank, ranks}, plan.header.context, plan.header.max_width, slots,
            kv_format),
      states(plan.modules, slots),
      lengths_(slots),
      highest_(slots, 0),
      restored_(slots, 0) {}

int64_t Sequences::length(int slot) const {
  if (slot < 0 || slot >= slots()) {
    throw std::invalid_argument("slot: expected 0 to " + std::to_string(slots() - 1) + ", got " +
                                std::to_string(slot));
  }
  return lengths_[slot].load(std::memory_order_relaxed);
}

void Sequences::truncate(int slot, int64_t length) {
  const int64_t now = this->length(slot);
  if (length < 0 || length > now) {
    throw std::invalid_argument("length: expected 0 to " + std::to_string(now) +
                                ", the tokens in this slot, got " + std::to_string(length));
  }
  if (length > 0 && !resumable(slot, length)) {
    throw std::invalid_argument(
        "length: windowed layers have dropped the keys that the next token would see, or states "
        "are beyond it; expected 0 or at least " +
        std::to_string(first_resumable(slot)) + ", got " + std::to_string(length));
  }
  lengths_[slot] = length;
  if (length == 0) {
    highest_[slot] = restored_[slot] = 0;
    states.set_position(slot, 0);
  }
}

int64_t Sequences::first_resumable(int slot) const {
  // Restored without its states, a slot goes on from nowhere.
  if (lacks_states(slot)) return lengths_[slot] + 1;
  return std::max(
      {restored_[slot], cache.first_resumable(highest_[slot]), states.first_resumable(slot)});
}

void Sequences::save(int slot, int64_t begin, int64_t end, char* rows, char* tail) const {
  cache.save_rows(slot, begin, end, cache.own(), rows);
  if (tail == nullptr) return;
  cache.save_tail(slot, end, cache.own(), tail);
  states.save_tail(slot, end, tail + cache.tail_bytes(end, cache.own()));
}

int64_t Sequences::tail_bytes(int slot, int64_t end) const {
  return cache.tail_bytes(end, cache.own()) + states.tail_bytes(slot, end);
}

bool Sequences::takes_tail(int64_t end, int64_t bytes) const {
  return has_tails() && states.takes_tail(end, bytes - cache.tail_bytes(end, cache.own()));
}

void Sequences::restore(int slot, int64_t count, int64_t stride, const char* rows, const char* tail,
                        int64_t tail_bytes) {
  const int64_t begin = lengths_[slot], end = begin + count;
  cache.reach(slot, end);
  cache.restore_rows(slot, begin, end, stride, cache.own(), rows);
  if (tail != nullptr) {
    const int64_t rings = cache.tail_bytes(end, cache.own());
    cache.restore_tail(slot, end, cache.own(), tail);
    states.restore_tail(slot, end, tail_bytes - rings, tail + rings);
  } else if (count > 0) {
    states.set_position(slot, -1);
  }
  restored(slot, end);
}

void Sequences::restored(int slot, int64_t end) {
  lengths_[slot] = highest_[slot] = end;
  if (cache.rings() > 0) restored_[slot] = end;
}

void Sequences::copied(int source, int target) {
  lengths_[target] = lengths_[source].load(std::memory_order_relaxed);
  highest_[target] = highest_[source];
  restored_[target] = restored_[source];
  states.copy(source, target);
}

}  // namespace monolane
