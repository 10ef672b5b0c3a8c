// Choosing the next token, as docs/sampling.md defines it for every backend; the oracle is
// src/monolane/reference/_choose.py, and a test compares the two draw for draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "epoch_abi.h"
#include "seen.h"

namespace monolane {

// Reusable memory of `choose`: no allocation while decoding.
struct ChooseScratch {
  std::vector<float> limited;       // [V] with biases and penalties, -infinity without a mask's bit
  std::vector<float> scaled;        // [V]
  std::vector<int32_t> ranked;      // ids that top-k, top-p and min-p let through
  std::vector<double> probability;  // [V] unnormalised: the most probable token's is 1
};

constexpr int32_t mask_words(int32_t vocab) { return (vocab + 31) / 32; }

// Returns the id of the next token; `position` is the one that it will take, and `seen` has noted
// those before it. Bit t % 32 of word
// t / 32 of `mask` says whether token t may come: at least one may. Null: all may.
int32_t choose(const float* logits, int32_t vocab, const Draw& draw,
               std::span<const LogitBias> biases, const Seen& seen, uint32_t position,
               const uint32_t* mask, ChooseScratch& scratch);

// Fills logprob and the `count` best alternatives of an event.
void report_logprobs(const float* logits, int32_t vocab, int32_t count, TokenEvent& event);

}  // namespace monolane
