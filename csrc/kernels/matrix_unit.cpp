#include "kernels/matrix_unit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace monolane {
namespace {

constexpr int32_t kProducts = 16;  // that are added at once, with what is there
constexpr int32_t kKept = 25;      // bits below the largest summand's exponent
constexpr int32_t kZero = -133;    // exponent of a summand that is zero
constexpr uint32_t kNoNumber = 0x7fffffffu;

// Numbers as mantissa * 2^(exponent - fraction).
struct Factors {
  int32_t mantissa[kProducts], exponent[kProducts];
  bool special;  // one is infinite, or no number
};

template <uint32_t kFraction>
Factors factors_of(const uint16_t* bits, int64_t count) {
  constexpr uint32_t exponents = 15 - kFraction, all = (1u << exponents) - 1;
  Factors found = {};
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t stored = bits[k] >> kFraction & all;
    const auto size =
        static_cast<int32_t>((bits[k] & ((1u << kFraction) - 1)) | (stored ? 1u << kFraction : 0));
    found.mantissa[k] = bits[k] >> 15 ? -size : size;
    found.exponent[k] = static_cast<int32_t>(std::max(stored, 1u)) - static_cast<int32_t>(all / 2);
    found.special |= stored == all;
  }
  return found;
}

// size * 2^shift, toward zero.
int64_t shifted(int64_t size, int32_t shift) {
  if (shift >= 0) return size << shift;
  if (shift <= -32) return 0;
  return size < 0 ? -(-size >> -shift) : size >> -shift;
}

// sum * 2^exponent as a float, toward zero; subnormal numbers have steps of 2^-149.
float cut_off(int64_t sum, int32_t exponent) {
  if (sum == 0) return 0.0f;
  auto size = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  const int32_t top = 63 - std::countl_zero(size);
  const int32_t cut = std::max(top - 23, -149 - exponent);
  if (cut >= 64) return 0.0f;
  if (cut > 0) size = size >> cut << cut;
  const auto value = static_cast<float>(std::ldexp(static_cast<double>(size), exponent));
  return sum < 0 ? -value : value;
}

double number(const Factors& x, int32_t k, uint32_t fraction, const uint16_t* bits) {
  const uint32_t all = (1u << (15 - fraction)) - 1;
  if ((bits[k] >> fraction & all) != all) {
    return std::ldexp(x.mantissa[k], x.exponent[k] - static_cast<int32_t>(fraction));
  }
  if (bits[k] & ((1u << fraction) - 1)) return NAN;
  return bits[k] >> 15 ? -INFINITY : INFINITY;
}

template <uint32_t kFraction>
float special(const Factors& a, const uint16_t* a_bits, const Factors& b, const uint16_t* b_bits,
              int64_t count, float c) {
  double sum = c;
  for (int32_t k = 0; k < count; ++k) {
    sum += number(a, k, kFraction, a_bits) * number(b, k, kFraction, b_bits);
  }
  return std::isnan(sum) ? std::bit_cast<float>(kNoNumber) : static_cast<float>(sum);
}

template <uint32_t kFraction>
float sum_of(const Factors& a, const Factors& b, float c) {
  constexpr int32_t point = 2 * static_cast<int32_t>(kFraction);
  const auto bits = std::bit_cast<uint32_t>(c);
  const uint32_t stored = bits >> 23 & 0xff;
  auto own = static_cast<int64_t>((bits & 0x7fffffu) | (stored ? 0x800000u : 0));
  const int32_t own_exponent = own ? static_cast<int32_t>(std::max(stored, 1u)) - 127 : kZero;
  if (bits >> 31) own = -own;
  int32_t size[kProducts], exponent[kProducts], largest = std::max(own_exponent, kZero);
  for (int32_t k = 0; k < kProducts; ++k) {
    size[k] = a.mantissa[k] * b.mantissa[k];
    exponent[k] = size[k] ? a.exponent[k] + b.exponent[k] : kZero;
    largest = std::max(largest, exponent[k]);
  }
  int64_t sum = shifted(own, own_exponent - largest + kKept - 23);
  for (int32_t k = 0; k < kProducts; ++k) {
    sum += shifted(size[k], exponent[k] - largest + kKept - point);
  }
  return cut_off(sum, largest - kKept);
}

template <uint32_t kFraction>
void add(const MatrixFactors& factors, int64_t count, int64_t width, float* sums) {
  std::vector<Factors> shared;  // of the one column
  if (factors.one_column) {
    for (int64_t at = 0; at < width; at += kProducts) {
      const int64_t some = std::min<int64_t>(kProducts, width - at);
      shared.push_back(factors_of<kFraction>(factors.columns + at, some));
    }
  }
  for (int64_t n = 0; n < count; ++n) {
    const uint16_t* row = factors.rows + n * width;
    const uint16_t* column = factors.columns + (factors.one_column ? 0 : n * width);
    float sum = sums[n];
    for (int64_t at = 0; at < width; at += kProducts) {
      const int64_t some = std::min<int64_t>(kProducts, width - at);
      const Factors a = factors_of<kFraction>(row + at, some);
      const Factors b =
          factors.one_column ? shared[at / kProducts] : factors_of<kFraction>(column + at, some);
      const bool plain = !a.special && !b.special && std::isfinite(sum);
      sum = plain ? sum_of<kFraction>(a, b, sum)
                  : special<kFraction>(a, row + at, b, column + at, some, sum);
    }
    sums[n] = sum;
  }
}

}  // namespace

void add_products(const MatrixFactors& factors, int64_t count, int64_t width, float* sums) {
  factors.half ? add<10>(factors, count, width, sums) : add<7>(factors, count, width, sums);
}

}  // namespace monolane
