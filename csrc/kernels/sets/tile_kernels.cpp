// Products by tiles of panels and of bfloat16 and attention over bfloat16, into the namespace
// MONOLANE_ISA, over the vectors of the set MONOLANE_BASE, which computes everything else. Compiled
// with AMX, and twice with the emulator: with AVX-512, the same kernel but for the tiles, and
// portably, for any machine.
#include "kernels/tile_kernels.h"

#include "kernels/attention/tile_attend.h"
#include "kernels/products/tile_dot.h"
#include "kernels/products/tile_pairs.h"

namespace monolane::MONOLANE_BASE {
extern const Kernels kKernels;
}

namespace monolane::MONOLANE_ISA {

template <Format kFormat>
static void multiply_format(const Matrix& w, int64_t row_begin, int64_t row_end, const void* packed,
                            int64_t width, Output out) {
  const PanelDot<kFormat> dot(w);
  const char* tokens = static_cast<const char*>(packed);
  if (width < kTileRows) {
    return multiply_tiles<PanelDot<kFormat>, kTileRows / 2>(dot, row_begin, row_end, tokens, width,
                                                            out);
  }
  multiply_tiles<PanelDot<kFormat>, kTileRows>(dot, row_begin, row_end, tokens, width, out);
}

static int64_t packed_bytes(Activation kind, int64_t cols) {
  return kind == Activation::kBf16 ? pair_token_bytes(cols)
                                   : MONOLANE_BASE::kKernels.packed_bytes(kind, cols);
}

static void pack(Activation kind, const float* x, int64_t cols, int64_t width, void* packed) {
  if (kind == Activation::kBf16) return pack_pairs(x, cols, width, packed);
  MONOLANE_BASE::kKernels.pack(kind, x, cols, width, packed);
}

static void multiply(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                     const void* packed, int64_t width, float* y, int64_t y_stride) {
  const auto run = [&](auto format) {
    multiply_format<format>(w, row_begin, row_end, packed, width, {y, y_stride});
  };
  if (row_begin < row_end && w.format == Format::kBf16 && kind == Activation::kBf16) {
    return multiply_pairs(w, row_begin, row_end, packed, width, {y, y_stride});
  }
  if (row_begin < row_end && width >= kTileTokens && for_panels(w.format, run)) return;
  MONOLANE_BASE::kKernels.multiply(w, row_begin, row_end, kind, packed, width, y, y_stride);
}

static void attend(const Queries& queries, const void* keys, const void* values, Format kv,
                   int64_t stride, int64_t head_dim, float scale, const void* next, float* scores,
                   float* partial) {
  if (kv == Format::kBf16) {
    return attend_pairs(queries, keys, values, stride, head_dim, scale, scores, partial);
  }
  MONOLANE_BASE::kKernels.attend(queries, keys, values, kv, stride, head_dim, scale, next, scores,
                                 partial);
}

extern const TileKernels kTileKernels;
const TileKernels kTileKernels = {.packed_bytes = packed_bytes,
                                  .pack = pack,
                                  .multiply = multiply,
                                  .attend = attend,
                                  .emulated_dots = Tiles::emulated_dots};

}  // namespace monolane::MONOLANE_ISA
