// The matrix instructions, bit for bit as a Hopper GPU's are said to be (arXiv 2511.10909; held to
// its authors' package by tests/cuda/test_matrix_unit.py): the 16 products and the addend of a sum
// are added at once. All are cut off, toward zero, at 25 bits below the largest one's exponent, and
// the exact sum of what is left is cut off to a float. The exponent of a product is the sum of its
// factors', each with one digit before the point; that of a zero is kZero.
#include "numbers.h"

namespace emulator {
namespace {

constexpr i32 kKept = 25;    // bits below the largest exponent
constexpr i32 kZero = -133;  // exponent of a summand that is zero
constexpr u32 NOT_A_NUMBER = 0x7fffffffu;
using Wide = long long;  // holds any sum exactly

// A number as mantissa * 2^(exponent - FRACTION); subnormal ones have the smallest exponent.
struct Parts {
  i32 mantissa, exponent;
};
template <u32 BITS, u32 FRACTION>  // of the format
Parts parts_of(u32 bits) {
  constexpr u32 EXPONENTS = BITS - 1 - FRACTION, BIAS = (1u << (EXPONENTS - 1)) - 1;
  const u32 stored = bits >> FRACTION & ((1u << EXPONENTS) - 1);
  const i32 size =
      static_cast<i32>((bits & ((1u << FRACTION) - 1)) | (stored ? 1u << FRACTION : 0));
  const i32 exponent = static_cast<i32>(stored ? stored : 1) - static_cast<i32>(BIAS);
  return {bits >> (BITS - 1) & 1 ? -size : size, exponent};
}
template <u32 BITS, u32 FRACTION>
bool is_special(u32 bits) {  // an infinity or no number
  constexpr u32 ALL = (1u << (BITS - 1 - FRACTION)) - 1;
  return (bits >> FRACTION & ALL) == ALL;
}

// size * 2^shift, toward zero.
Wide shifted(i32 size, i32 shift) {
  if (shift >= 0) return static_cast<Wide>(size) << shift;
  if (shift <= -32) return 0;
  const Wide cut = (size < 0 ? -static_cast<Wide>(size) : size) >> -shift;
  return size < 0 ? -cut : cut;
}

// sum * 2^exponent as a float, toward zero.
float cut_off(Wide sum, i32 exponent) {
  if (sum == 0) return 0.0f;
  u64 size = static_cast<u64>(sum < 0 ? -sum : sum);
  const i32 top = 63 - __builtin_clzll(size);
  i32 cut = top - 23;
  if (cut < -149 - exponent) cut = -149 - exponent;  // subnormal numbers have no finer steps
  if (cut >= 64) return 0.0f;
  if (cut > 0) size = size >> cut << cut;
  const float value = static_cast<float>(__builtin_ldexp(static_cast<double>(size), exponent));
  return sum < 0 ? -value : value;
}

// What is left where summands are infinite or no numbers: no order of additions changes that.
template <float (*DECODE)(u32)>
float special(const u32* a, const u32* b, float c) {
  double sum = c;
  for (u32 k = 0; k < 16; ++k) sum += static_cast<double>(DECODE(a[k])) * DECODE(b[k]);
  return sum != sum ? float_of(NOT_A_NUMBER) : static_cast<float>(sum);
}

template <u32 FRACTION>
float sum_of(const Parts* a_parts, const Parts* b_parts, u32 c) {
  constexpr i32 POINT = 2 * static_cast<i32>(FRACTION);
  i32 size[17], exponent[17], largest = kZero;
  for (u32 k = 0; k < 16; ++k) {
    size[k] = a_parts[k].mantissa * b_parts[k].mantissa;
    exponent[k] = size[k] ? a_parts[k].exponent + b_parts[k].exponent : kZero;
  }
  const Parts addend = parts_of<32, 23>(c);
  size[16] = addend.mantissa;
  exponent[16] = addend.mantissa ? addend.exponent : kZero;
  for (u32 k = 0; k < 17; ++k) largest = exponent[k] > largest ? exponent[k] : largest;
  Wide sum = shifted(size[16], exponent[16] - largest + kKept - 23);
  for (u32 k = 0; k < 16; ++k) sum += shifted(size[k], exponent[k] - largest + kKept - POINT);
  return cut_off(sum, largest - kKept);
}

// A row of A or a column of B, along the products.
template <u32 FRACTION>
struct Factors {
  u32 bits[16];
  Parts parts[16];
  bool special;

  void take() {
    special = false;
    for (u32 k = 0; k < 16; ++k) {
      parts[k] = parts_of<16, FRACTION>(bits[k]);
      special |= is_special<16, FRACTION>(bits[k]);
    }
  }
};

template <u32 FRACTION, float (*DECODE)(u32)>
void multiply_tile(Posts& posts) {
  Factors<FRACTION> a[16], b[8];
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32* word = posts.words[lane];
    for (u32 i = 0; i < 4; ++i) {
      u32 row = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
      a[row].bits[k] = word[i] & 0xffff, a[row].bits[k + 1] = word[i] >> 16;
    }
    for (u32 i = 0; i < 2; ++i) {
      u32 column = lane / 4, k = lane % 4 * 2 + i * 8;
      b[column].bits[k] = word[4 + i] & 0xffff, b[column].bits[k + 1] = word[4 + i] >> 16;
    }
  }
  for (Factors<FRACTION>& row : a) row.take();
  bool repeats[8] = {};  // a pass of few rows has the same column often
  for (u32 column = 0; column < 8; ++column) {
    b[column].take();
    repeats[column] = column && !memcmp(b[column].bits, b[column - 1].bits, sizeof b[column].bits);
  }
  for (u32 row = 0; row < 16; ++row) {
    u32 addend = 0;
    float sum = 0;
    for (u32 column = 0; column < 8; ++column) {
      const u32 lane = row % 8 * 4 + column / 2, i = row / 8 * 2 + column % 2;
      const u32 c = posts.words[lane][6 + i];
      if (!repeats[column] || c != addend) {
        const bool plain = !a[row].special && !b[column].special && !is_special<32, 23>(c);
        sum = plain ? sum_of<FRACTION>(a[row].parts, b[column].parts, c)
                    : special<DECODE>(a[row].bits, b[column].bits, float_of(c));
      }
      addend = c;
      posts.product[lane][i] = sum;
    }
  }
}

}  // namespace

void multiply_bf16(Posts& posts) { multiply_tile<7, bf16_to_float>(posts); }
void multiply_f16(Posts& posts) { multiply_tile<10, half_to_float>(posts); }

}  // namespace emulator
