// Blocks whose codes name several numbers at once, IQ1 to IQ3 and TQ, into planes with a code for
// each number: what the numbers are is in panels.h. Exact, as repack.cpp.
//
// Layouts: ggml's ggml-common.h, and gguf.quants of the Python package. A group's 32 columns are
// four words here, a byte each.
#include "kernels/products/codebook_grids.h"
#include "kernels/products/planes.h"

namespace monolane {
namespace {

constexpr uint64_t kOnes = 0x0101010101010101u;

MONOLANE_PART uint32_t half_word(const uint8_t* p) { return p[0] | uint32_t{p[1]} << 8; }

// Pair of bits j of 16 to byte j.
MONOLANE_PART uint64_t spread_pairs(uint64_t x) {
  x = (x | x << 24) & 0x000000FF000000FFu;
  x = (x | x << 12) & 0x000F000F000F000Fu;
  return (x | x << 6) & 0x0303030303030303u;
}

// Nibble j of 16 bits to byte j.
MONOLANE_PART uint64_t spread_nibbles(uint64_t x) {
  x = (x | x << 8) & 0x00FF00FFu;
  return (x | x << 4) & 0x0F0F0F0Fu;
}

// Bit j of 8 to byte j, as 1.
MONOLANE_PART uint64_t spread_bits(uint64_t bits) {
  const uint64_t each = bits * kOnes & 0x8040201008040201u;
  return (each + 0x7F7F7F7F7F7F7F7Fu) >> 7 & kOnes;
}

// Seven signs, and an eighth that makes the number of negative ones even.
MONOLANE_PART uint64_t spread_signs(uint32_t seven) {
  seven &= 127;
  uint32_t parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity = (parity ^ parity >> 1) & 1;
  return spread_bits(seven | parity << 7);
}

// Codes of three bits.
MONOLANE_PART void put_threes(const uint64_t (&words)[4], int64_t group, const Cursor& to) {
  store(to.low + group * 8, join_pairs(words));
  uint8_t bytes[32];
  copy(bytes, words, sizeof bytes);
  store(to.high + group * 4, gather_bits(bytes, 2));
}

// Codes of four bits.
MONOLANE_PART void put_fours(const uint64_t (&words)[4], int64_t group, const Cursor& to) {
  store(to.low + group * 16, words[0] | words[2] << 4);
  store(to.low + group * 16 + 8, words[1] | words[3] << 4);
}

// A scale of 4 bits means that many steps of 2, and 1.
MONOLANE_PART uint8_t odd(int steps) { return static_cast<uint8_t>(2 * steps + 1); }

// Of 8 columns a code of 8 bits; of 32 four times seven signs and a scale behind them.
MONOLANE_CLONES void repack_iq2_xxs(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 66) {
    copy(to.super + s * 2, block, 2);
    for (int64_t g = 0; g < 8; ++g) {
      const uint8_t* codes = block + 2 + 8 * g;
      const uint32_t signs = word(codes + 4);
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        words[i] = spread_pairs(kIq2XxsGrid[codes[i]]) | spread_signs(signs >> 7 * i) << 2;
      }
      put_threes(words, s * 8 + g, to);
      uint8_t* scales = to.scale + (s * 8 + g) * 2;
      scales[0] = scales[1] = odd(static_cast<int>(signs >> 28));
    }
  }
}

// Of 8 columns 9 bits of a code and seven signs; scales of 16 columns in nibbles.
MONOLANE_CLONES void repack_iq2_xs(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 74) {
    copy(to.super + s * 2, block, 2);
    for (int64_t g = 0; g < 8; ++g) {
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        const uint32_t both = half_word(block + 2 + 8 * g + 2 * i);
        words[i] = spread_pairs(kIq2XsGrid[both & 511]) | spread_signs(both >> 9) << 2;
      }
      put_threes(words, s * 8 + g, to);
      uint8_t* scales = to.scale + (s * 8 + g) * 2;
      scales[0] = odd(block[66 + g] & 15), scales[1] = odd(block[66 + g] >> 4);
    }
  }
}

// Of 8 columns 8 bits of a code, its upper two elsewhere, and eight signs.
MONOLANE_CLONES void repack_iq2_s(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 82) {
    copy(to.super + s * 2, block, 2);
    const uint8_t *codes = block + 2, *signs = block + 34, *upper = block + 66;
    for (int64_t g = 0; g < 8; ++g) {
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        const int code = codes[4 * g + i] | (upper[g] >> 2 * i & 3) << 8;
        words[i] = spread_pairs(kIq2SGrid[code]) | spread_bits(signs[4 * g + i]) << 2;
      }
      put_threes(words, s * 8 + g, to);
      uint8_t* scales = to.scale + (s * 8 + g) * 2;
      scales[0] = odd(block[74 + g] & 15), scales[1] = odd(block[74 + g] >> 4);
    }
  }
}

// Of 4 columns a code of 8 bits; of 32 four times seven signs and a scale behind all codes.
MONOLANE_CLONES void repack_iq3_xxs(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 98) {
    copy(to.super + s * 2, block, 2);
    for (int64_t g = 0; g < 8; ++g) {
      const uint8_t* codes = block + 2 + 8 * g;
      const uint32_t signs = word(block + 66 + 4 * g);
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        words[i] = spread_nibbles(kIq3XxsGrid[codes[2 * i]]) |
                   spread_nibbles(kIq3XxsGrid[codes[2 * i + 1]]) << 32 |
                   spread_signs(signs >> 7 * i) << 3;
      }
      put_fours(words, s * 8 + g, to);
      to.scale[s * 8 + g] = odd(static_cast<int>(signs >> 28));
    }
  }
}

// Of 4 columns 8 bits of a code, and its ninth elsewhere; of 8 columns eight signs.
MONOLANE_CLONES void repack_iq3_s(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 110) {
    copy(to.super + s * 2, block, 2);
    const uint8_t *codes = block + 2, *ninth = block + 66, *signs = block + 74;
    for (int64_t g = 0; g < 8; ++g) {
      const auto four = [&](int i) {
        return spread_nibbles(kIq3SGrid[codes[8 * g + i] | (ninth[g] >> i & 1) << 8]);
      };
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        words[i] = four(2 * i) | four(2 * i + 1) << 32 | spread_bits(signs[4 * g + i]) << 3;
      }
      put_fours(words, s * 8 + g, to);
      to.scale[s * 8 + g] = odd(block[106 + g / 2] >> g % 2 * 4 & 15);
    }
  }
}

// Of 8 columns 8 bits of a code; of 32 its upper three bits each, a scale, and whether an eighth is
// taken off.
MONOLANE_CLONES void repack_iq1_s(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 50) {
    copy(to.super + s * 2, block, 2);
    for (int64_t g = 0; g < 8; ++g) {
      const uint32_t upper = half_word(block + 34 + 2 * g);
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        const uint32_t code = block[2 + 4 * g + i] | (upper >> 3 * i & 7) << 8;
        words[i] = spread_pairs(kIq1Grid[code]) | (upper >> 15) * kOnes << 2;
      }
      put_threes(words, s * 8 + g, to);
      uint8_t* scales = to.scale + (s * 8 + g) * 2;
      scales[0] = scales[1] = odd(static_cast<int>(upper >> 12 & 7));
    }
  }
}

// The same, with the eighth for each 8 columns and scales of 16; the float16 of all is in the upper
// nibbles of the scales.
MONOLANE_CLONES void repack_iq1_m(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 56) {
    uint32_t super = 0;
    for (int i = 0; i < 4; ++i) super |= half_word(block + 48 + 2 * i) >> 12 << 4 * i;
    store(to.super + s * 2, static_cast<uint16_t>(super));
    for (int64_t g = 0; g < 8; ++g) {
      uint64_t words[4];
      for (int i = 0; i < 4; ++i) {
        const uint32_t upper = block[32 + 2 * g + i / 2] >> i % 2 * 4;
        const uint32_t code = block[4 * g + i] | (upper & 7) << 8;
        words[i] = spread_pairs(kIq1Grid[code]) | (upper >> 3 & 1) * kOnes << 2;
      }
      put_threes(words, s * 8 + g, to);
      for (int64_t i = 2 * g; i < 2 * g + 2; ++i) {
        to.scale[s * 16 + i] = odd(half_word(block + 48 + i / 4 * 2) >> 3 * (i % 4) & 7);
      }
    }
  }
}

// Numbers -1, 0 and 1, to which a code of 3 bits adds 4; one scale for all columns.
MONOLANE_PART void put_ternary(const uint8_t (&codes)[256], const uint8_t* scale, int64_t super,
                               const Cursor& to) {
  copy(to.super + super * 2, scale, 2);
  std::memset(to.scale + super * 16, 1, 16);
  for (int64_t g = 0; g < 8; ++g) {
    uint64_t words[4];
    copy(words, codes + 32 * g, sizeof words);
    put_threes(words, super * 8 + g, to);
  }
}

// Digits to the base of 3 of a byte that is a fraction of 256, rounded up: five in each of 32, then
// of 16 bytes, four in each of 4.
MONOLANE_CLONES void repack_tq1_0(const uint8_t* block, int64_t supers, Cursor to) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  for (int64_t s = 0; s < supers; ++s, block += 54) {
    uint8_t codes[256];
    uint8_t* out = codes;
    const auto put = [&](const uint8_t* bytes, int count, int digits) {
      for (int d = 0; d < digits; ++d) {
        for (int i = 0; i < count; ++i) {
          const auto fraction = static_cast<uint8_t>(bytes[i] * kPowers[d]);
          *out++ = static_cast<uint8_t>((fraction * 3 >> 8) + 3);
        }
      }
    };
    put(block, 32, 5), put(block + 32, 16, 5), put(block + 48, 4, 4);
    put_ternary(codes, block + 52, s, to);
  }
}

// Pair of bits g of 32 bytes is group g, of four.
MONOLANE_CLONES void repack_tq2_0(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 66) {
    uint8_t codes[256];
    for (int c = 0; c < 256; ++c) {
      codes[c] = static_cast<uint8_t>((block[c / 128 * 32 + c % 32] >> c / 32 % 4 * 2 & 3) + 3);
    }
    put_ternary(codes, block + 64, s, to);
  }
}

}  // namespace

void repack_codebook(Format from, const uint8_t* block, int64_t supers, const Cursor& to) {
  switch (from) {
    case Format::kIq2Xxs:
      return repack_iq2_xxs(block, supers, to);
    case Format::kIq2Xs:
      return repack_iq2_xs(block, supers, to);
    case Format::kIq2S:
      return repack_iq2_s(block, supers, to);
    case Format::kIq3Xxs:
      return repack_iq3_xxs(block, supers, to);
    case Format::kIq3S:
      return repack_iq3_s(block, supers, to);
    case Format::kIq1S:
      return repack_iq1_s(block, supers, to);
    case Format::kIq1M:
      return repack_iq1_m(block, supers, to);
    case Format::kTq10:
      return repack_tq1_0(block, supers, to);
    case Format::kTq20:
      return repack_tq2_0(block, supers, to);
    default:
      return;  // nothing to repack
  }
}

}  // namespace monolane
