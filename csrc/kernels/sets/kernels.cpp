// One set of kernels, compiled once per instruction set (CMakeLists.txt) into the namespace
// MONOLANE_ISA, and the table that dispatch.cpp finds there. Everything here is in headers and
// `static`: a template that the linker may merge across sets would run AVX-512 on a machine
// without. What takes longest to compile is in files of its own: attention.cpp and panels.cpp.
#include "kernels/kernels.h"

#include "kernels/pointwise.h"
#include "kernels/products/multiply.h"
#include "kernels/products/pack.h"
#include "kernels/products/widened.h"
#include "kernels/sets/parts.h"

namespace monolane::MONOLANE_ISA {

template <class W>
static FloatDot<W> float_dot(const Matrix& w) {
  return {static_cast<const W*>(w.data), w.cols, w.cols};
}

static void multiply(const Matrix& w, int64_t row_begin, int64_t row_end, Activation kind,
                     const void* packed, int64_t width, float* y, int64_t y_stride) {
  const auto run = [&](const auto& dot) {
    if constexpr (kIsWidened<std::remove_cvref_t<decltype(dot)>>) {
      if (width >= kWidenFrom) {
        return multiply_widened(dot, row_begin, row_end, static_cast<const char*>(packed), width,
                                {y, y_stride});
      }
    }
    multiply_by(dot, row_begin, row_end, packed, width, {y, y_stride});
  };
  switch (w.format) {
    case Format::kF32:
      return run(float_dot<float>(w));
    case Format::kF16:
      return run(float_dot<F16>(w));
    case Format::kBf16:
      if (kind == Activation::kF32) return run(float_dot<Bf16>(w));
      return run(Bf16Dot{static_cast<const Bf16*>(w.data), w.cols, w.cols});
    default:
      multiply_codes(w, row_begin, row_end, packed, width, y, y_stride);
  }
}

// Eight vectors at a time. AVX2: of four streams, fetched by the hardware, which on two cores of
// Zen 3 read 50 GB/s where one stream reads 39, and 33 with prefetches. The others: of one stream,
// prefetched as far ahead as `multiply` does it; without, a product of one token outran its own
// yardstick by 8 %.
static float read(const void* data, int64_t bytes) {
  constexpr int kStreams = kElements == 8 ? 4 : 1, kVectors = 8 / kStreams;
  const float* x = static_cast<const float*>(data);
  const int64_t part = bytes / 4 / kStreams, ahead = far_ahead();
  Floats acc[8];
  for (Floats& a : acc) a = zero();
  for (int64_t i = 0; i + kVectors * kElements <= part; i += kVectors * kElements) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) {
      const float* vector = x + v / kVectors * part + i + v % kVectors * kElements;
      if constexpr (kStreams == 1) prefetch_far(reinterpret_cast<const char*>(vector) + ahead);
      acc[v] = add(acc[v], load(vector));
    }
  }
  Floats all = zero();
  for (const Floats& a : acc) all = add(all, a);
  return sum(all);
}

// As many chains as keep two multipliers busy, of four cycles each, in the registers of AVX2.
static int64_t multiply_registers(int64_t rounds, float* out) {
  constexpr int kChains = 12;
  Floats x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = splat(static_cast<float>(i));
  const Floats half = splat(0.5f), one = splat(1.0f);  // x goes to 2
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) x[i] = fma(x[i], half, one);
  }
  Floats all = zero();
  for (const Floats& each : x) all = add(all, each);
  *out = sum(all);
  return rounds * kChains * kElements * 2;
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
    .silu_times = gate_up<times<silu>>,
    .sigmoid_times = gate_up<times<sigmoid>>,
    .gelu_tanh_times = gate_up<times<gelu_tanh>>,
    .clamped_swiglu = gate_up<clamped_swiglu>,
    .attend = attend_cache,
    .store_kv = store_kv,
    .add = add_floats,
    .widen = widen,
    .read = read,
    .multiply_registers = multiply_registers,
};

}  // namespace monolane::MONOLANE_ISA
