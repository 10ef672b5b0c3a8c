// What kernels.cpp has of the other files of its set. Not `static`, as everything else there is,
// and no templates: the linker has one of each for each set.
#pragma once

#include "kernels/kernels.h"

namespace monolane::MONOLANE_ISA {

// attention.cpp: Kernels::attend.
void attend_cache(const Queries& queries, const void* keys, const void* values, Format kv,
                  int64_t stride, int64_t head_dim, float scale, const void* next, float* scores,
                  float* partial);

// panels.cpp: Kernels::multiply of a format of panels; other formats are refused before they come
// here.
void multiply_codes(const Matrix& w, int64_t row_begin, int64_t row_end, const void* packed,
                    int64_t width, float* y, int64_t y_stride);

}  // namespace monolane::MONOLANE_ISA
