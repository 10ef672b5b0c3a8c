// Choosing the next token, as docs/sampling.md defines it for every backend; the oracle is
// src/monolane/reference/_choose.py, and a test compares the two draw for draw.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "abi/epoch_abi.h"
#include "memory/parallel_for.h"
#include "sample/token_counts.h"

namespace monolane {

// A token, and its scaled logit with its noise.
struct Candidate {
  int32_t id;
  float value;
};

// What `choose` works with: reusable memory, so that nothing is allocated while decoding, and who
// helps in loops over the vocabulary.
struct SamplerScratch {
  ParallelFor parallel;
  std::vector<float> limited;       // [V] with biases and penalties, -infinity without a mask's bit
  std::vector<float> scaled;        // [V]
  std::vector<int32_t> found;       // [V] room for ids
  std::vector<int32_t> ranked;      // ids whose order matters
  std::vector<double> probability;  // [V] unnormalised: the most probable token's is 1
  std::vector<double> mass;         // sums of that, of each slice's buckets
  std::vector<float> peaks;         // of slices
  std::vector<Candidate> winners;   // of slices
};

constexpr int32_t mask_words(int32_t vocab) { return (vocab + 31) / 32; }

// Returns the id of the next token, or kNoToken where the row has no finite peak: `logits` has NaN,
// or its largest is infinite. `position` is the one that it will take, and `seen` has noted
// those before it. Bit t % 32 of word
// t / 32 of `mask` says whether token t may come: at least one may. Null: all may.
int32_t choose(const float* logits, int32_t vocab, const Draw& draw,
               std::span<const LogitBias> biases, const TokenCounts& seen, uint32_t position,
               const uint32_t* mask, SamplerScratch& scratch);

// Fills logprob and the `count` best alternatives of an event.
void report_logprobs(const float* logits, int32_t vocab, int32_t count, SamplerScratch& scratch,
                     TokenEvent& event);

}  // namespace monolane
