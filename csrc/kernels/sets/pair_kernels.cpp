// Products of bfloat16 by the hardware's dots of pairs, into the namespace MONOLANE_ISA, over the
// set MONOLANE_BASE, which computes everything else. All other kernels would be those of that set
// to the instruction, and compiling them takes longer than these.
#include "kernels/products/multiply.h"
#include "kernels/products/pack.h"
#include "kernels/tile_kernels.h"

namespace monolane::MONOLANE_BASE {
extern const Kernels kKernels;
}

namespace monolane::MONOLANE_ISA {

static void multiply(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                     const void* packed, int64_t width, float* y, int64_t y_stride) {
  if (w.format != Format::kBf16 || kind == Activation::kF32) {
    return MONOLANE_BASE::kKernels.multiply(w, row_begin, row_end, kind, packed, width, y,
                                            y_stride);
  }
  const PairDot dot{static_cast<const Bf16*>(w.data), w.cols, w.cols};
  multiply_by(dot, row_begin, row_end, packed, width, {y, y_stride});
}

extern const PairKernels kPairKernels;
const PairKernels kPairKernels = {.packed_bytes = packed_bytes, .pack = pack, .multiply = multiply};

}  // namespace monolane::MONOLANE_ISA
