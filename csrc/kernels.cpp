// One set of kernels, compiled once per instruction set (CMakeLists.txt) into the namespace
// MONOLANE_ISA, and the table that dispatch.cpp finds there. Everything here is in headers and
// `static`: a template that the linker may merge across sets would run AVX-512 on a machine
// without.
#include "kernels.h"

#include "attend.h"
#include "multiply.h"
#include "pack.h"
#include "plane_dot.h"
#include "pointwise.h"

#ifdef __AVX512BF16__
namespace monolane::avx512 {
extern const Kernels kKernels;
}
#endif

namespace monolane::MONOLANE_ISA {

#ifdef __AVX512BF16__
// This set has one product of its own. The others are those of AVX-512 without it, to the
// instruction: compiling them twice would take a third of the time that the whole core takes.
static void multiply(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                     const void* packed, int64_t width, float* y, int64_t y_stride) {
  if (w.format != Format::kBf16 || kind == Activation::kF32) {
    return avx512::kKernels.multiply(w, row_begin, row_end, kind, packed, width, y, y_stride);
  }
  const PairDot dot{static_cast<const Bf16*>(w.data), w.cols, w.cols};
  multiply_by(dot, row_begin, row_end, packed, width, {y, y_stride});
}
#else
template <class W>
static FloatDot<W> float_dot(const Matrix& w) {
  return {static_cast<const W*>(w.data), w.cols, w.cols};
}

static void multiply(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                     const void* packed, int64_t width, float* y, int64_t y_stride) {
  const auto run = [&](const auto& dot) {
    multiply_by(dot, row_begin, row_end, packed, width, {y, y_stride});
  };
  // At one token the scales are what costs: those of a super-block at once, where that is a step of
  // more than one block of the token. The sums are the same, in the same order.
  constexpr int kSuperBlocks = kElements == 16 ? 2 : 1;
  const auto run_one = [&](const auto& dot) {
    if constexpr (kElements == 16) {
      multiply_one(dot, row_begin, row_end, static_cast<const char*>(packed), {y, y_stride});
    } else {
      run(dot);
    }
  };
  switch (w.format) {
    case Format::kF32:
      return run(float_dot<float>(w));
    case Format::kF16:
      return run(float_dot<F16>(w));
    case Format::kBf16:
      if (kind == Activation::kF32) return run(float_dot<Bf16>(w));
      return run(Bf16Dot{static_cast<const Bf16*>(w.data), w.cols, w.cols});
    case Format::kI8:
      return run(GroupDot<Int8>{static_cast<const Int8*>(w.data), w.cols, w.scales});
    case Format::kI4:
      return run(GroupDot<Int4>{static_cast<const Int4*>(w.data), w.cols, w.scales});
    case Format::kQ41p:
      return run(PlaneDot<Format::kQ41p>(w));
    case Format::kQ50p:
      return run(PlaneDot<Format::kQ50p>(w));
    case Format::kQ51p:
      return run(PlaneDot<Format::kQ51p>(w));
    case Format::kQ4Kp:
      if (width == 1) return run_one(PlaneDot<Format::kQ4Kp, kSuperBlocks>(w));
      return run(PlaneDot<Format::kQ4Kp>(w));
    case Format::kQ5Kp:
      if (width == 1) return run_one(PlaneDot<Format::kQ5Kp, kSuperBlocks>(w));
      return run(PlaneDot<Format::kQ5Kp>(w));
    case Format::kQ6Kp:
      return run(PlaneDot<Format::kQ6Kp>(w));
    default:
      return;  // refused before it comes here
  }
}
#endif

// Eight vectors at a time, prefetched as far ahead as `multiply` does it: without, a product of one
// token outran its own yardstick by 8 %.
static float read(const void* data, int64_t bytes) {
  const float* x = static_cast<const float*>(data);
  Floats acc[8];
  for (Floats& a : acc) a = zero();
  for (int64_t i = 0; i + 8 * kElements <= bytes / 4; i += 8 * kElements) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      const float* vector = x + i + v * kElements;
      prefetch(reinterpret_cast<const char*>(vector) + kAhead);
      acc[v] = add(acc[v], load(vector));
    }
  }
  Floats all = zero();
  for (const Floats& a : acc) all = add(all, a);
  return sum(all);
}

#define MONOLANE_TEXT(x) #x
#define MONOLANE_NAME(x) MONOLANE_TEXT(x)

extern const Kernels kKernels;
const Kernels kKernels = {
    .name = MONOLANE_NAME(MONOLANE_ISA),
    .packed_bytes = packed_bytes,
    .pack = pack,
    .multiply = multiply,
    .rms_norm = rms_norm,
    .silu_times = gate_times<silu>,
    .gelu_tanh_times = gate_times<gelu_tanh>,
    .attend = attend,
    .store_kv = store_kv,
    .add = add_floats,
    .widen = widen,
    .read = read,
};

}  // namespace monolane::MONOLANE_ISA
