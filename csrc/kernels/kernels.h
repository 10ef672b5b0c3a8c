// The arithmetic of one worker, for every instruction set: a table of functions per set, filled by
// compiling kernels/sets once per set (kernels_<isa>) and chosen at run time by `select_kernels`.
//
// The contract that everything above rests on: a result depends on its own row and its own token
// alone, bit by bit. Each (row, token) is summed over k in one fixed order, whatever the number of
// rows or tokens in the call, so decode (width 1), verification, batching and chunked prefill give
// the same bits on the same instruction set.
//
// Shape legend: T tokens (width), R rows, K columns, h head_dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "abi/formats_abi.h"

namespace monolane {

// `Format` says how a weight matrix is stored. Plain numbers are row-major [R, K] and multiplied as
// the file has them, mapped. Codes are repacked once, by `repack_rows`, into panels of 16 rows
// (panels.h). Before that, code c of a group: I8 byte c; I4 the low nibble of byte c for c < 16
// (value + 8), the high nibble of byte c - 16 otherwise; one float16 scale a group.
//
// `Activation` is the type in which activations are multiplied: kF32 is exact, any format of plain
// numbers is widened; kBf16 is rounded, for BF16 weights, accumulated in float; kI8 is quantised
// per group of 32 with a float scale, for weights that are codes.

constexpr int kGroup = 32;  // columns that share a scale, in every format that has codes here
constexpr int64_t kPanelRows = 16;
constexpr int kMaxWidth = 96;  // tokens of one product: as many as kPlanPromptWidth
constexpr int kMaxHeadDim = 1024;
constexpr int64_t kAttendQueries = 8;  // that attention takes through their keys together, at most

// Floats of scratch for the scores of one query: whole steps of tiles.
constexpr int64_t scores_of(int64_t keys) { return (keys + 31) / 32 * 32; }

// The queries that attend the same keys: token t has `heads` of them, [heads, h] at q + t * stride
// floats, and sees the first counts[t] keys, at least one.
struct Queries {
  const float* q;
  int64_t tokens, heads, stride;
  const int64_t* counts;
  float cap = 0.0f;  // c: scores, scaled, become c tanh(score / c); 0: they stay
};

struct Matrix {
  const void* data;        // values of row 0; panels are 64-byte aligned
  const uint16_t* scales;  // float16 [R, K / kGroup] where `scales_apart`, else null
  int64_t rows;            // R
  int64_t cols;            // K; any for float formats, a multiple of the block of all others
  Format format;
};

constexpr const FormatRow& row_of(Format format) { return kFormats[static_cast<int>(format)]; }

// Whether a matrix holds codes, which mean something only with the scales of their groups.
constexpr bool is_coded(Format format) { return row_of(format).group > 0; }

// Whether the scales of a coded format are an array of their own, not among its codes.
constexpr bool scales_apart(Format format) { return is_coded(format) && row_of(format).block == 0; }

// Whether a format is one that no product reads: `repack_rows` makes of it the one that is
// multiplied by, `repacked_of`.
constexpr bool is_repacked(Format format) { return row_of(format).repacked >= 0; }
constexpr Format repacked_of(Format format) { return static_cast<Format>(row_of(format).repacked); }

// Whether a format is one of panels of rows.
constexpr bool is_panels(Format format) { return is_coded(format) && !is_repacked(format); }

// Whether keys and values may be cached in a format: plain numbers, or codes in blocks of a group.
constexpr bool is_cached(Format format) {
  return format == Format::kF32 || format == Format::kBf16 || format == Format::kF16 ||
         format == Format::kQ80 || format == Format::kQ40;
}

// Columns that a row of a format has a multiple of.
constexpr int64_t column_step(Format format) {
  const FormatRow& row = row_of(format);
  return row.block > 0 ? row.block : row.group > 0 ? row.group : 1;
}

// Bytes of one row of values, and of its scales where they are not apart; of panels on average.
constexpr int64_t row_bytes(Format format, int64_t cols) {
  const FormatRow& row = row_of(format);
  return row.block > 0 ? cols / row.block * row.block_bytes : cols * row.bits / 8;
}

// Whether activations of a kind may be multiplied with weights of a format.
constexpr bool accepts(Format format, Activation kind) {
  switch (kind) {
    case Activation::kF32:
      return !is_coded(format);
    case Activation::kBf16:
      return format == Format::kBf16;
    case Activation::kI8:
      return is_panels(format);
  }
  return false;
}

// The kind for a matrix of a model whose arithmetic has `wanted`: that, or where it does not fit
// the format, the one that does.
constexpr Activation activation_for(Format format, Activation wanted) {
  if (accepts(format, wanted)) return wanted;
  return is_coded(format) ? Activation::kI8 : Activation::kF32;
}

// Symmetric quantisation of rows [R, K], K a multiple of kGroup, from a float format to kI8 or kI4.
// Per group the scale is max |x| / 127, or for kI4 whichever of max |x| / 7 and m / -8 (m the
// number of largest size, so that it takes code -8) leaves the smaller squared error; codes are
// nearest to x / scale for the scale as float16, ties to even. Throws std::invalid_argument if a
// scale would not be finite.
void quantize_rows(Format to, Format from, const void* x, int64_t rows, int64_t cols, void* values,
                   uint16_t* scales);

// A row of a cache in codes: the same codes as `quantize_rows` makes, each group behind its scale
// as GGUF's blocks have them. `to`: kQ80 or kQ40. A group whose scale is not finite means NaN.
void quantize_blocks(Format to, const float* x, int64_t cols, void* out);

// Bytes that R rows take as panels: the last one is whole.
constexpr int64_t panels_bytes(Format format, int64_t rows, int64_t cols) {
  return (rows + kPanelRows - 1) / kPanelRows * kPanelRows * row_bytes(format, cols);
}

// Rows of codes [R, K] as panels of `repacked_of`, bit for bit the same numbers: `panels` has
// panels_bytes. is_repacked(from.format).
void repack_rows(const Matrix& from, void* panels);

// One row of codes as float [K]; is_repacked(w.format).
void widen_row(const Matrix& w, int64_t row, float* out);

// One instruction set's functions. Bits may differ between sets, never within one.
struct Kernels {
  const char* name;
  bool wide_bf16 = false;  // by bfloat16, passes of more than 64 tokens take less time a token

  // Bytes that one packed token of K activations takes: a multiple of 64.
  int64_t (*packed_bytes)(Activation kind, int64_t cols);

  // Brings activations x [T, K] (row stride K) into the form that `multiply` reads; `packed` is
  // 64-byte aligned, token t at packed + t * packed_bytes(kind, K).
  void (*pack)(Activation kind, const float* x, int64_t cols, int64_t width, void* packed);

  // y[t * y_stride + r - row_begin] = sum over k of w[r, k] * x[t, k], r in [row_begin, row_end).
  // Streams each weight once per call for width <= kMaxWidth. accepts(w.format, kind).
  void (*multiply)(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                   const void* packed, int64_t width, float* y, int64_t y_stride);

  // out[t, k] = x[t, k] / sqrt(mean_k(x^2) + eps) * scale[k]; strides in elements.
  void (*rms_norm)(const float* x, int64_t x_stride, const float* scale, float eps, int64_t cols,
                   int64_t width, float* out, int64_t out_stride);

  // out[i] = f(gate[i]) * up[i], f the activation of the gate; may be in place on gate. Clamped:
  // g * sigmoid(1.702 g) * (u + 1), g = min(gate[i], 7), u = up[i] within -7 .. 7.
  void (*silu_times)(const float* gate, const float* up, int64_t count, float* out);
  void (*sigmoid_times)(const float* gate, const float* up, int64_t count, float* out);
  void (*gelu_tanh_times)(const float* gate, const float* up, int64_t count, float* out);
  void (*clamped_swiglu)(const float* gate, const float* up, int64_t count, float* out);

  // Query heads over the first `count` of the keys that they share, each for itself:
  // scores[j] = scale * dot(q, keys[j]), keys at keys + j * stride elements of `kv`, one of those
  // that a cache may have (`is_cached`), then the online-softmax partials, [tokens, heads, h + 2]:
  //   sum_j e_j * values[j][c], c in [0, h); peak = max_j scores[j]; sum_j e_j,
  // where e_j = exp(scores[j] - peak). Summed in the order of j; over codes queries and weights may
  // be rounded to 16 bits first, and sums are of integers (attend_quantized_kv.h); by tiles
  // bfloat16 is summed in another order (tile_attend.h). The bits of a head depend neither on other
  // heads nor on other tokens. `scores` is scratch for kAttendQueries times as many floats as
  // `scores_of` of the largest count. `next`: keys that will be asked for next, to be prefetched,
  // or null. head_dim <= kMaxHeadDim. All scores -inf: the peak is -inf, the sums are 0.
  void (*attend)(const Queries& queries, const void* keys, const void* values, Format kv,
                 int64_t stride, int64_t head_dim, float scale, const void* next, float* scores,
                 float* partial);

  // Converts float -> kv format (round to nearest even; codes: `quantize_blocks`), for the cache.
  void (*store_kv)(const float* x, int64_t count, Format kv, void* out);

  // out[i] = a[i] + b[i]; and the read of embedding rows into float.
  void (*add)(const float* a, const float* b, int64_t count, float* out);
  void (*widen)(const Matrix& w, int64_t row, float* out);  // one row [K] to float, any format

  // Reads `bytes` (a multiple of 512) and does nothing else: the yardstick of bandwidth. Returns
  // their sum as floats, so that no compiler drops it.
  float (*read)(const void* data, int64_t bytes);

  // Fused multiply-adds of registers alone: what a core does where memory is not asked. Returns how
  // many operations that were, two each; `out` gets a sum of them, so that no compiler drops them.
  int64_t (*multiply_registers)(int64_t rounds, float* out);
};

enum class Isa : int32_t {
  kPortable = 0,
  kAvx2 = 1,
  kAvx512 = 2,
  kAvx512Bf16 = 3,
  kNeon = 4,
  kAmx = 5,
  kTilesPortable = 6,
  kTilesAvx512 = 7,
  kNeonDot = 8,
  kNeonI8mm = 9,
};

// Sets that machines have, better ones later; and those whose tiles are emulated, for tests.
constexpr Isa kNativeIsas[] = {Isa::kPortable, Isa::kNeon,   Isa::kNeonDot,    Isa::kNeonI8mm,
                               Isa::kAvx2,     Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};
constexpr Isa kEmulatedIsas[] = {Isa::kTilesPortable, Isa::kTilesAvx512};

// Whether this machine and this build can run a set.
bool supported(Isa isa);
// The best supported set that is not emulated.
Isa best_isa();
const char* isa_name(Isa isa);
// The table of a set; throws std::invalid_argument with what is supported if it cannot run here.
const Kernels& select_kernels(Isa isa);
const Kernels& select_kernels(const std::string& name);
// Products of tiles that this thread had emulated by a set; 0 of sets without.
int64_t emulated_dots(Isa isa);

// Whether the processor has tiles, and why they are not used; empty: they are. The kernel is asked
// for its permission, once.
struct AmxState {
  bool present;
  std::string refusal;
};
const AmxState& amx_state();

}  // namespace monolane
