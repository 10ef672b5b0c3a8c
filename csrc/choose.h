// Choosing the next token, as docs/sampling.md defines it for every backend; the oracle is
// src/monolane/reference/_choose.py, and a test compares the two draw for draw.
#pragma once

#include <cstdint>
#include <vector>

#include "token_ring.h"

namespace monolane {

struct Draw {
  float temperature;  // 0: the largest logit
  int32_t top_k;      // 0: all
  double top_p;
  double min_p;
  uint64_t seed;
};

// Reusable memory of `choose`: no allocation while decoding.
struct ChooseScratch {
  std::vector<float> scaled;        // [V]
  std::vector<int32_t> ranked;      // ids by rank
  std::vector<double> probability;  // by rank, unnormalised: the first is 1
};

// Returns the id of the next token; `position` is the one that it will take.
int32_t choose(const float* logits, int32_t vocab, const Draw& draw, uint32_t position,
               ChooseScratch& scratch);

// Fills logprob and the `count` best alternatives of an event.
void report_logprobs(const float* logits, int32_t vocab, int32_t count, TokenEvent& event);

}  // namespace monolane
