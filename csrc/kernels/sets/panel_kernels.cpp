// Products of panels by the integer dots of a newer instruction set, into the namespace
// MONOLANE_ISA, over the set MONOLANE_BASE, which computes everything else. All other kernels would
// be those of that set to the instruction, and compiling them takes longer than these.
#ifdef __ARM_FEATURE_MATMUL_INT8
#include "kernels/products/matrix_dot.h"
#else
#include "kernels/products/panel_blocks.h"
#endif

namespace monolane::MONOLANE_BASE {
extern const Kernels kKernels;
}

namespace monolane::MONOLANE_ISA {

template <Format kFormat>
static void multiply_format(const Matrix& w, int64_t row_begin, int64_t row_end, const void* packed,
                            int64_t width, Output out) {
  const PanelDot<kFormat> dot(w);
#ifdef __ARM_FEATURE_MATMUL_INT8
  if (width >= kMatrixTokens) {
    return multiply_tiles<PanelDot<kFormat>, kMatrixTokens, MatrixSums>(
        dot, row_begin, row_end, static_cast<const char*>(packed), width, out);
  }
#endif
  multiply_panels(dot, row_begin, row_end, packed, width, out);
}

static void multiply(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                     const void* packed, int64_t width, float* y, int64_t y_stride) {
  const auto run = [&](auto format) {
    multiply_format<format>(w, row_begin, row_end, packed, width, {y, y_stride});
  };
  if (for_panels(w.format, run)) return;
  MONOLANE_BASE::kKernels.multiply(w, row_begin, row_end, kind, packed, width, y, y_stride);
}

extern const decltype(Kernels::multiply) kMultiply;
const decltype(Kernels::multiply) kMultiply = multiply;

}  // namespace monolane::MONOLANE_ISA
