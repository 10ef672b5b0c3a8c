// Attention of one set of kernels: a part of kernels.cpp.
#include "kernels/attention/attend.h"
#include "kernels/sets/parts.h"

namespace monolane::MONOLANE_ISA {

void attend_cache(const Queries& queries, const void* keys, const void* values, Format kv,
                  int64_t stride, int64_t head_dim, float scale, const void* next, float* scores,
                  float* partial) {
  attend(queries, keys, values, kv, stride, head_dim, scale, next, scores, partial);
}

}  // namespace monolane::MONOLANE_ISA
