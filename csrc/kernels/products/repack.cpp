// Rows of codes, our own or GGUF's blocks, into the panels that `multiply` reads: panels.h. Exact:
// bits change their places, and no number is rounded. Plain loops that compilers vectorise, as in
// quantize.cpp, since this runs once per load.
//
// Layouts of blocks: ggml's ggml-common.h, and gguf.quants of the Python package.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/isa/half.h"
#include "kernels/products/planes.h"

namespace monolane {
namespace {

// Codes of 8 bits, of whole groups, get a bias of 128.
MONOLANE_PART void copy_biased(uint8_t* to, const uint8_t* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 16) store(to + i, load<Octets>(from + i) ^ uint8_t{0x80});
}

MONOLANE_CLONES void repack_i8(const uint8_t* codes, int64_t groups, uint8_t* low) {
  copy_biased(low, codes, groups * 32);
}

MONOLANE_CLONES void repack_q8_0(const uint8_t* block, int64_t groups, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += 34) {
    copy(to.scale + g * 2, block, 2);
    copy_biased(to.low + g * 32, block + 2, 32);
  }
}

MONOLANE_CLONES void repack_q4_0(const uint8_t* block, int64_t groups, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += 18) {
    copy(to.scale + g * 2, block, 2);
    copy(to.low + g * 16, block + 2, 16);
  }
}

MONOLANE_CLONES void repack_mxfp4(const uint8_t* block, int64_t groups, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += 17) {
    to.scale[g] = block[0];
    copy(to.low + g * 16, block + 1, 16);
  }
}

// Of 16 columns, four scales and then 8 bytes each, which hold columns c and c + 8. 0x7F, with
// which the standard means no number, is 0 in ggml, which does not look at the sign.
MONOLANE_CLONES void repack_nvfp4(const uint8_t* block, int64_t groups, Cursor to) {
  constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0Fu;
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* scales = block + g / 2 * 36 + g % 2 * 2;
    const uint8_t* codes = block + g / 2 * 36 + 4 + g % 2 * 16;
    for (int i = 0; i < 2; ++i) to.scale[g * 2 + i] = scales[i] == 0x7F ? 0 : scales[i] & 0x7F;
    const auto first = load<uint64_t>(codes), second = load<uint64_t>(codes + 8);
    store(to.low + g * 16, (first & kLow) | (second & kLow) << 4);
    store(to.low + g * 16 + 8, (first >> 4 & kLow) | (second & ~kLow));
  }
}

MONOLANE_CLONES void repack_q4_1(const uint8_t* block, int64_t groups, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += 20) {
    copy(to.scale + g * 2, block, 2);
    copy(to.minimum + g * 2, block + 2, 2);
    copy(to.low + g * 16, block + 4, 16);
  }
}

// Q5_0 and Q5_1: `scale` bytes of scale (and minimum), 32 high bits, low bits.
MONOLANE_CLONES void repack_q5(const uint8_t* block, int64_t groups, int64_t scale, Cursor to) {
  for (int64_t g = 0; g < groups; ++g, block += scale + 20) {
    copy(to.scale + g * 2, block, 2);
    if (scale == 4) copy(to.minimum + g * 2, block + 2, 2);
    const uint32_t bits = transpose(word(block + scale));
    copy(to.high + g * 4, &bits, 4);
    copy(to.low + g * 16, block + scale + 4, 16);
  }
}

// 64 bytes hold group 2 j in their low and group 2 j + 1 in their high halves, 32 bytes a pair.
MONOLANE_PART void repack_low(const uint8_t* pair, uint8_t* low) {
  const Octets first = load<Octets>(pair), second = load<Octets>(pair + 16);
  store(low, (first & 15) | (second << 4));
  store(low + 16, (first >> 4) | (second & 0xF0));
}

// The 6-bit scales and minima of 8 groups in 12 bytes, to bytes side by side.
MONOLANE_PART void repack_scales(const uint8_t* packed, uint8_t* scales, uint8_t* minima) {
  const uint32_t scale = word(packed), minimum = word(packed + 4), last = word(packed + 8);
  const uint32_t six = 0x3f3f3f3fu, four = 0x0f0f0f0fu, two = 0x30303030u;  // bits of each byte
  const uint32_t found[4] = {scale & six, (last & four) | (scale >> 2 & two), minimum & six,
                             (last >> 4 & four) | (minimum >> 2 & two)};
  copy(scales, found, 8);
  copy(minima, found + 2, 8);
}

// What q4_k and q5_k begin with: the super-block's scale; that of its minima, which are subtracted
// there and added here; the scales and minima themselves.
MONOLANE_PART void repack_head(const uint8_t* block, int64_t super, const Cursor& to) {
  copy(to.super + super * 2, block, 2);
  to.super_minimum[super * 2] = block[2];
  to.super_minimum[super * 2 + 1] = block[3] ^ 0x80;
  repack_scales(block + 4, to.scale + super * 8, to.minimum + super * 8);
}

// Bit pair g of each byte of 32 is column c of group g of four.
MONOLANE_PART void repack_pairs(const uint8_t* block, int64_t g, uint8_t* low) {
  uint64_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = load<uint64_t>(block + g / 4 * 32 + 8 * i) >> g % 4 * 2;
  store(low, join_pairs(words));
}

// A byte has the scale of 16 columns and that of their minimum, as in panels.
MONOLANE_CLONES void repack_q2_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 84) {
    copy(to.scale + s * 16, block, 16);
    for (int64_t g = 0; g < 8; ++g) repack_pairs(block + 16, g, to.low + (s * 8 + g) * 8);
    copy(to.super + s * 2, block + 80, 2);
    to.super_minimum[s * 2] = block[82];
    to.super_minimum[s * 2 + 1] = block[83] ^ 0x80;
  }
}

// Bit g of byte c of the first 32 is the third bit of column c of group g. Scales of 6 bits: the
// low halves of 8 bytes, then their high ones, and then the upper bits by pairs.
MONOLANE_CLONES void repack_q3_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 110) {
    for (int64_t g = 0; g < 8; ++g) {
      repack_pairs(block + 32, g, to.low + (s * 8 + g) * 8);
      store(to.high + (s * 8 + g) * 4, gather_bits(block, static_cast<int>(g)));
    }
    const uint8_t *packed = block + 96, *upper = packed + 8;
    for (int i = 0; i < 16; ++i) {
      const int lower = packed[i % 8] >> i / 8 * 4 & 15;
      to.scale[s * 16 + i] =
          static_cast<uint8_t>((lower | (upper[i % 4] >> i / 4 * 2 & 3) << 4) - 32);
    }
    copy(to.super + s * 2, block + 108, 2);
  }
}

// 8 scales of 6 bits: the upper ones in two bytes, the lower ones in four.
MONOLANE_CLONES void repack_iq4_xs(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 136) {
    copy(to.super + s * 2, block, 2);
    const int upper = block[2] | block[3] << 8;
    for (int g = 0; g < 8; ++g) {
      const int lower = block[4 + g / 2] >> g % 2 * 4 & 15;
      to.scale[s * 8 + g] = static_cast<uint8_t>((lower | (upper >> 2 * g & 3) << 4) - 32);
    }
    copy(to.low + s * 128, block + 8, 128);
  }
}

MONOLANE_CLONES void repack_q4_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 144) {
    repack_head(block, s, to);
    for (int j = 0; j < 4; ++j) repack_low(block + 16 + 32 * j, to.low + s * 128 + 32 * j);
  }
}

// Bit g of byte c of 32 is the fifth bit of column c of group g.
MONOLANE_CLONES void repack_q5_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 176) {
    repack_head(block, s, to);
    for (int g = 0; g < 8; ++g) store(to.high + (s * 8 + g) * 4, gather_bits(block + 16, g));
    for (int j = 0; j < 4; ++j) repack_low(block + 48 + 32 * j, to.low + s * 128 + 32 * j);
  }
}

// Of each 128 columns, 64 bytes hold group 0 and then 1 in their low, 2 and then 3 in their high
// halves; bit pair g of 32 bytes is the upper bits of group g.
constexpr uint64_t kTwoBits = 0x0303030303030303u;  // the lowest of each byte

MONOLANE_CLONES void repack_q6_k(const uint8_t* block, int64_t supers, Cursor to) {
  for (int64_t s = 0; s < supers; ++s, block += 210) {
    copy(to.scale + s * 16, block + 192, 16);
    copy(to.super + s * 2, block + 208, 2);
    for (int half = 0; half < 2; ++half) {
      const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
      uint8_t *out = to.low + s * 128 + 64 * half, *bits = to.high + (s * 2 + half) * 32;
      const auto pair = [&](int i) -> uint64_t {  // words i and i + 2
        return word(high + 4 * i) | uint64_t{word(high + 4 * i + 8)} << 32;
      };
      const uint64_t pairs[4] = {pair(0), pair(1), pair(4), pair(5)};
      for (int g = 0; g < 4; ++g) {
        const uint8_t* from = low + 32 * (g % 2);
        const Octets first = load<Octets>(from), second = load<Octets>(from + 16);
        store(out + 16 * g, g < 2 ? (first & 15) | (second << 4) : (first >> 4) | (second & 0xF0));
        uint64_t found = 0;
        for (int i = 0; i < 4; ++i) found |= (pairs[i] >> 2 * g & kTwoBits) << 2 * i;
        store(bits + 8 * g, found);
      }
    }
  }
}

// One row into planes.
void make_planes(const Matrix& from, int64_t row, uint8_t* planes) {
  const int64_t cols = from.cols, groups = cols / kGroup, supers = cols / kSuper;
  const auto* x = static_cast<const uint8_t*>(from.data) + row * row_bytes(from.format, cols);
  const Cursor to = cursor_of(repacked_of(from.format), cols, planes);
  if (scales_apart(from.format)) copy(to.scale, from.scales + row * groups, groups * 2);
  switch (from.format) {
    case Format::kI8:
      return repack_i8(x, groups, to.low);
    case Format::kI4:
      return copy(to.low, x, groups * 16);
    case Format::kQ80:
      return repack_q8_0(x, groups, to);
    case Format::kQ40:
      return repack_q4_0(x, groups, to);
    case Format::kQ41:
      return repack_q4_1(x, groups, to);
    case Format::kQ50:
      return repack_q5(x, groups, 2, to);
    case Format::kQ51:
      return repack_q5(x, groups, 4, to);
    case Format::kQ4K:
      return repack_q4_k(x, supers, to);
    case Format::kQ5K:
      return repack_q5_k(x, supers, to);
    case Format::kQ6K:
      return repack_q6_k(x, supers, to);
    case Format::kMxfp4:
      return repack_mxfp4(x, groups, to);
    case Format::kNvfp4:
      return repack_nvfp4(x, groups, to);
    case Format::kIq4Nl:
      return repack_q4_0(x, groups, to);
    case Format::kIq4Xs:
      return repack_iq4_xs(x, supers, to);
    case Format::kQ3K:
      return repack_q3_k(x, supers, to);
    case Format::kQ2K:
      return repack_q2_k(x, supers, to);
    default:
      return repack_codebook(from.format, x, supers, to);
  }
}

// Numbers of kPanelRows rows [kPanelRows, stride bytes], `count` of each, to [count, kPanelRows].
template <class Number>
MONOLANE_PART void interleave(const uint8_t* rows, int64_t stride, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      copy(out, rows + r * stride + i * sizeof(Number), sizeof(Number));
      out += sizeof(Number);
    }
  }
}

// Word i of vector j becomes word j of vector i.
MONOLANE_PART void exchange_words(Words (&x)[4]) {
  const Words a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
  const Words b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
  const Words c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
  const Words d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
  x[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  x[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  x[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  x[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// `interleave` of words; four at a time.
MONOLANE_PART void interleave_words(const uint8_t* rows, int64_t stride, int64_t count,
                                    uint8_t* out) {
  const int64_t whole = count / 4 * 4;
  for (int64_t i = 0; i < whole; i += 4) {
    for (int64_t r = 0; r < kPanelRows; r += 4) {
      Words x[4];
      for (int64_t j = 0; j < 4; ++j) x[j] = load<Words>(rows + (r + j) * stride + i * 4);
      exchange_words(x);
      for (int64_t j = 0; j < 4; ++j) store(out + ((i + j) * kPanelRows + r) * 4, x[j]);
    }
  }
  interleave<uint32_t>(rows + whole * 4, stride, count - whole, out + whole * kPanelRows * 4);
}

// `interleave` of bytes; four at a time.
MONOLANE_PART void interleave_bytes(const uint8_t* rows, int64_t stride, int64_t count,
                                    uint8_t* out) {
  const int64_t whole = count / 4 * 4;
  for (int64_t i = 0; i < whole; i += 4) {
    Words x[4];
    for (int64_t j = 0; j < 4; ++j) {
      uint32_t four[4];
      for (int64_t r = 0; r < 4; ++r) four[r] = word(rows + (4 * j + r) * stride + i);
      Octets bytes;
      copy(&bytes, four, sizeof bytes);
      bytes = __builtin_shufflevector(bytes, bytes, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7,
                                      11, 15);
      copy(&x[j], &bytes, sizeof bytes);
    }
    exchange_words(x);
    copy(out + i * kPanelRows, x, sizeof x);
  }
  interleave<uint8_t>(rows + whole, stride, count - whole, out + whole * kPanelRows);
}

// Panel p of `panels`. `beside` has room for what a panel has beside its bits: it is interleaved
// plane by plane, since a record has few numbers of each.
MONOLANE_CLONES void make_panel(Format format, int64_t cols, const uint8_t* rows, uint8_t* beside,
                                int64_t panels, int64_t p, uint8_t* to) {
  const Planes planes = planes_of(format);
  const PlaneStarts starts = plane_starts(format, cols);
  const int64_t stride = row_bytes(format, cols);
  const uint8_t* from = rows + starts.scale;
  if (planes.number == 2) {
    interleave<uint16_t>(from, stride, (stride - starts.scale) / 2, beside);
  } else {
    const int64_t bytes = starts.super - starts.scale;
    interleave_bytes(from, stride, bytes, beside);
    interleave<uint16_t>(from + bytes, stride, (stride - starts.super) / 2,
                         beside + kPanelRows * bytes);
  }
  uint8_t* out = nullptr;
  const auto put_bits = [&](int64_t start, int64_t bytes) {
    interleave_words(rows + start, stride, bytes / 4, out);
    out += kPanelRows * bytes;
  };
  const auto put = [&](int64_t start, int64_t bytes) {
    copy(out, beside + kPanelRows * (start - starts.scale), kPanelRows * bytes);
    out += kPanelRows * bytes;
  };
  const int64_t groups = cols / kGroup, record = record_groups(format);
  for (int64_t g = 0; g < groups; g += record) {
    if (g % kBlockGroups == 0) out = to + group_at(format, panels, groups, p, g);
    if (planes.super > 0 && g % (kSuper / kGroup) == 0) {
      const int64_t at = g / (kSuper / kGroup) * 2;
      put(starts.super + at, 2);
      if (planes.super == 4) put(starts.super_minimum + at, 2);
    }
    const int64_t count = std::min(record, groups - g);
    put_bits(g * planes.low, count * planes.low);
    put_bits(starts.high + g * planes.high, count * planes.high);
    put(starts.scale + g * planes.scale, count * planes.scale);
    put(starts.minimum + g * planes.minimum, count * planes.minimum);
  }
}

// The code of column c of a group, by the layout of planes.
int code_of(const Planes& planes, const uint8_t* low, const uint8_t* high, int c) {
  if (planes.low == 32) return low[c];
  if (planes.low == 8) {
    const int pair = low[c % 8] >> c / 8 * 2 & 3;
    return planes.high == 0 ? pair : pair | (high[c % 4] >> c / 4 & 1) << 2;
  }
  const int nibble = c < 16 ? low[c] & 15 : low[c - 16] >> 4;
  if (planes.high == 0) return nibble;
  if (planes.high == 4) return nibble | (high[c % 4] >> c / 4 & 1) << 4;
  return nibble | (high[c % 16 / 8 * 4 + c % 4] >> (c / 4 % 2 + c / 16 * 2) * 2 & 3) << 4;
}

float half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return f16_to_float(bits);
}

// What the halves of a group bring beside their codes.
struct Halves {
  float scales[2], added[2];
};

// In the order of llama.cpp's own arithmetic: scales of super-blocks times those of groups.
Halves halves_of(Format format, const uint8_t* scale, const uint8_t* minimum, const uint8_t* super,
                 const uint8_t* super_minimum) {
  const Planes planes = planes_of(format);
  const Numbers* numbers = numbers_of(format);
  const int second = planes.scale == 2 * planes.number ? 1 : 0;
  const auto both = [&](const auto& of) -> Halves { return {{of(0), of(second)}, {0.0f, 0.0f}}; };
  if (format == Format::kMxfp4p) return both([&](int) { return half_power(scale[0]); });
  if (format == Format::kNvfp4p) {
    return both([&](int i) {
      const auto bits = static_cast<uint16_t>(scale[i] << 7);
      return f16_to_float(bits) * 0x1p8f * numbers->unit;
    });
  }
  if (planes.super == 0) {
    Halves found = both([&](int) { return half(scale); });
    if (planes.minimum > 0) found.added[0] = found.added[1] = half(minimum);
    return found;
  }
  if (planes.super == 2) {
    const float unit = half(super) * (numbers == nullptr ? 1.0f : numbers->unit);
    return both([&](int i) { return unit * static_cast<float>(static_cast<int8_t>(scale[i])); });
  }
  if (second == 0) {
    Halves found = both([&](int) { return half(super) * static_cast<float>(scale[0]); });
    found.added[0] = found.added[1] = half(super_minimum) * static_cast<float>(minimum[0]);
    return found;
  }
  Halves found = both([&](int i) { return half(super) * static_cast<float>(scale[i] & 15); });
  for (int i = 0; i < 2; ++i) {
    found.added[i] = half(super_minimum) * static_cast<float>(scale[i] >> 4);
  }
  return found;
}

// The scale times the code, and then the minimum.
void widen_planes(Format format, int64_t cols, const uint8_t* low, float* out) {
  const Planes planes = planes_of(format);
  const PlaneStarts starts = plane_starts(format, cols);
  const Numbers* numbers = numbers_of(format);
  const bool minima = planes.minimum > 0 || planes.super == 4;
  const uint8_t *high = low + starts.high, *scale = low + starts.scale;
  const uint8_t *minimum = low + starts.minimum, *super = low + starts.super;
  const uint8_t* super_minimum = low + starts.super_minimum;
  for (int64_t g = 0; g < cols / kGroup; ++g, out += kGroup) {
    const Halves halves = halves_of(format, scale, minimum, super, super_minimum);
    for (int c = 0; c < kGroup; ++c) {
      const int code = code_of(planes, low, high, c);
      const int number = (numbers == nullptr ? code : numbers->all[code]) - planes.bias;
      out[c] = halves.scales[c / 16] * static_cast<float>(number);
      if (minima) out[c] += halves.added[c / 16];
    }
    low += planes.low, high += planes.high, scale += planes.scale, minimum += planes.minimum;
    if (planes.super > 0 && (g + 1) % (kSuper / kGroup) == 0) super += 2, super_minimum += 2;
  }
}

}  // namespace

void repack_rows(const Matrix& from, void* panels) {
  const Format to = repacked_of(from.format);
  const int64_t stride = row_bytes(to, from.cols);
  // Not a vector: it would be zeroed for every panel, which costs as much as a copy.
  const std::unique_ptr<uint8_t[]> rows(new uint8_t[kPanelRows * stride]);
  const int64_t bits = plane_starts(to, from.cols).scale;
  const std::unique_ptr<uint8_t[]> beside(new uint8_t[kPanelRows * (stride - bits)]);
  const int64_t all = (from.rows + kPanelRows - 1) / kPanelRows;
  for (int64_t p = 0; p < all; ++p) {
    const int64_t first = p * kPanelRows;
    const int64_t count = std::min(kPanelRows, from.rows - first);
    for (int64_t r = 0; r < count; ++r) make_planes(from, first + r, rows.get() + r * stride);
    // Rows beyond the last: no product of them is kept, but none may meet an infinity in vain.
    std::fill(rows.get() + count * stride, rows.get() + kPanelRows * stride, uint8_t{0});
    make_panel(to, from.cols, rows.get(), beside.get(), all, p, static_cast<uint8_t*>(panels));
  }
}

void widen_row(const Matrix& w, int64_t row, float* out) {
  const Format to = repacked_of(w.format);
  std::vector<uint8_t> planes(row_bytes(to, w.cols));
  make_planes(w, row, planes.data());
  widen_planes(to, w.cols, planes.data(), out);
}

}  // namespace monolane
