// Products of panels of one set of kernels: a part of kernels.cpp.
#include "kernels/products/panel_blocks.h"
#include "kernels/sets/parts.h"

namespace monolane::MONOLANE_ISA {

void multiply_codes(const Matrix& w, int64_t row_begin, int64_t row_end, const void* packed,
                    int64_t width, float* y, int64_t y_stride) {
  const auto run = [&](auto format) {
    multiply_panels(PanelDot<format>(w), row_begin, row_end, packed, width, {y, y_stride});
  };
  for_panels(w.format, run);
}

}  // namespace monolane::MONOLANE_ISA
