// Counter-based noise for sampling. One draw depends on (seed, position, token) alone, so every
// worker can perturb its own slice of the vocabulary, and a drafted token is verified by drawing
// again. A stateful generator would tie the draw to the order of execution.
//
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// The Python twin, and the test that holds the two together: src/monolane/reference/_noise.py.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace monolane {

// First output word of Philox4x32-10 for counter (token, position, 0, 0) under a 64-bit key.
inline uint32_t philox_word(uint64_t seed, uint32_t position, uint32_t token) {
  uint32_t counter[4] = {token, position, 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = 0xD2511F53ull * counter[0];
    const uint64_t right = 0xCD9E8D57ull * counter[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(right),
        static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(left)};
    for (int i = 0; i < 4; ++i) counter[i] = next[i];
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter[0];
}

// Standard Gumbel noise of one word. The logarithms are taken in double and rounded once: in float
// the top 2^23 values of u would tie in pairs and the last would round to 1, whose noise is +inf.
inline float gumbel(uint32_t word) {
  const double u = (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;  // (0, 1), exact
  return static_cast<float>(-std::log(-std::log(u)));
}

// An upper bound of it, without logarithms: of noise above 2 less than 1 too high, but for one word
// in 2^24. With z = 2^24 - 1 - (w >> 8) and 2^k <= z: -log(u) >= 1 - u > 2^k / 2^24, so the noise
// is below (24 - k) ln 2. z = 0 has k = -127 here: any bound will do. The last term is for the
// rounding of noise to float.
inline float gumbel_bound(uint32_t word) {
  const auto z = static_cast<float>(static_cast<int32_t>(0xFFFFFF - (word >> 8)));
  const auto k = static_cast<int32_t>(std::bit_cast<uint32_t>(z) >> 23) - 127;
  return static_cast<float>(24 - k) * 0.693148f + 1e-4f;
}

// noise[i] = noise of token `first_token + i`.
inline void fill_gumbel(uint64_t seed, uint32_t position, uint32_t first_token, float* noise,
                        size_t count) {
  for (size_t i = 0; i < count; ++i) {
    noise[i] = gumbel(philox_word(seed, position, first_token + static_cast<uint32_t>(i)));
  }
}

}  // namespace monolane
