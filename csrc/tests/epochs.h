// Requests of the tests, and what epochs draw for them.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cases.h"

namespace monolane {

inline void convert_all(Executor& executor) {
  for (size_t p = 0; p < executor.plan().phases.size(); ++p) {
    for (int32_t i = 0; i < executor.plan().phases[p].num_matrices; ++i)
      executor.loader().convert(p, i);
  }
}

constexpr int kSlots = 3;

inline std::vector<int32_t> prompt(int count, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back((seed = seed * 1664525u + 1013904223u) >> 24 & 63);
  return tokens;
}

// One rank, which has every expert in memory.
inline Setup setup_of(const Arithmetic& arithmetic) {
  Setup setup = {};
  setup.activation = static_cast<int32_t>(arithmetic.activation);
  setup.kv_format = static_cast<int32_t>(arithmetic.kv);
  setup.ranks = 1;
  setup.segment = setup.expert_file = -1;
  setup.max_sequences = kSlots;
  return setup;
}

inline Advance advance(int slot, std::vector<int32_t> tokens, int budget) {
  Draw draw = kPlainDraw;
  draw.seed = 5;
  draw.temperature = 1.1f;
  draw.top_k = 30;
  draw.top_p = 0.95;
  draw.min_p = 0.02;
  return {.slot = slot,
          .tokens = std::move(tokens),
          .budget = budget,
          .draw = draw,
          .biases = {{7, 1.5f}, {9, -INFINITY}},
          .stop_ids = {},
          .logprobs = slot == 1 ? 2 : -1};
}

inline Advance penalised(Advance advance, int32_t prompt) {
  advance.draw.frequency_penalty = 0.5f;
  advance.draw.presence_penalty = 0.25f;
  advance.draw.repetition_penalty = 1.25f;
  advance.prompt = prompt;
  return advance;
}

using Drawn = std::map<int, std::vector<int32_t>>;  // by slot

// Reads an epoch to its end; from `stop_after` tokens on it asks for that end.
inline Drawn drain(Executor& executor, size_t stop_after = SIZE_MAX) {
  Drawn drawn;
  std::vector<TokenEvent> events;
  size_t count = 0;
  for (bool over = false; !over;) {
    events.clear();
    over = executor.read(events, 20);
    for (const TokenEvent& event : events) drawn[event.slot].push_back(event.token);
    count += events.size();
    if (count >= stop_after) executor.interrupt();
  }
  return drawn;
}

inline Drawn draw(Executor& executor, std::vector<Advance> advances) {
  executor.start(std::move(advances));
  return drain(executor);
}

inline void clear(Executor& executor) {
  for (int slot = 0; slot < kSlots; ++slot) executor.truncate(slot, 0);
}

}  // namespace monolane
