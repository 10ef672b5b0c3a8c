// The device primitives that kernels and probes are written against: identity, clocks, memory
// accesses with a stated order and scope, mbarriers, bulk copies, matrix instructions, numbers.
// Plain instructions instead of the toolkits' headers, so that a run-time compiler needs no include
// path but this folder, and so that a host build can run the very same kernels. This file holds the
// types, chooses the implementation, and adds what all of them share:
//
//   CUDA                primitives_cuda.cuh   sm_80 and later; HOPPER marks what needs sm_90
//   HIP                 primitives_hip.cuh    gfx942
//   MONOLANE_EMULATED   emulator.h            the host, from tests/cuda/emulation
//
// A warp has 32 threads everywhere. A lane is the model's.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct alignas(16) Vec4 {
  u32 x, y, z, w;
};

// A value that carries its own readiness: it is there once its stamp is the one awaited. Published
// and loaded as one 8-byte access, so no fence and no re-arming is needed.
struct alignas(8) Word {
  u32 value, stamp;
};
struct alignas(16) WordPair {
  Word a, b;
};

#if defined(MONOLANE_EMULATED)
#include "emulator.h"
#elif defined(__HIP__)
#include "primitives_hip.cuh"
#else
#include "primitives_cuda.cuh"
#endif

// ---- identity ----------------------------------------------------------------------------------
DEVICE u32 warp_thread() { return thread_index() & 31; }  // within its warp
DEVICE u32 warp_index() { return thread_index() >> 5; }

// ---- sums of a warp: every thread gets them, added in the same order ---------------------------
DEVICE u32 warp_sum(u32 value) {
  for (u32 mask = 16; mask; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}
DEVICE float warp_sum(float value) {
  for (u32 mask = 16; mask; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}

// ---- numbers -----------------------------------------------------------------------------------
// A bf16 is the upper half of a float, so decoding is a shift or a mask.
DEVICE float bf16_low(u32 pair) { return float_of_bits(pair << 16); }
DEVICE float bf16_high(u32 pair) { return float_of_bits(pair & 0xffff0000u); }
DEVICE float f16_low(u32 pair) {
  float low, high;
  floats_of_f16x2(pair, low, high);
  return low;
}
DEVICE float f16_high(u32 pair) {
  float low, high;
  floats_of_f16x2(pair, low, high);
  return high;
}

// 2^x within one ulp, with the same bits on every architecture and in the emulator, which the
// matrix unit's neighbours (ex2.approx, v_exp_f32) do not promise: 2^n times a polynomial of what
// is left of x, -1/2 to 1/2. Subnormal results are zero.
DEVICE float exp2_fast(float x) {
  constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: beside it a float is a whole number
  const float shifted = x + ROUNDER, rest = x - (shifted - ROUNDER);
  float y = 1.5353362e-4f;  // the least largest relative error of degree 6: 2^-28.9
  y = fma(y, rest, 1.3398875e-3f);
  y = fma(y, rest, 9.618437e-3f);
  y = fma(y, rest, 5.5503324e-2f);
  y = fma(y, rest, 0.24022648f);
  y = fma(y, rest, 0.6931472f);
  y = fma(y, rest, 1.0f);
  y = float_of_bits(bits_of_float(y) + (bits_of_float(shifted) << 23));
  if (x < -126.0f) y = 0.0f;
  if (x >= 128.0f) y = float_of_bits(0x7f800000u);
  return x != x ? x : y;
}

// The nearest e4m3, ties to even, of a number of at most 464 in size: a shift of the float's bits,
// or, where steps are 2^-9, the mantissa of a sum whose last bit is worth that. In whole numbers on
// every architecture, for weights are rounded once, while a model is loaded.
DEVICE u32 e4m3_of_float(float value) {
  u32 bits = bits_of_float(value), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (size < 0x3c800000u) {  // below 2^-6, the smallest normal number
    return sign | (bits_of_float(float_of_bits(size) + 16384.0f) - bits_of_float(16384.0f));
  }
  u32 code = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120u << 3);  // biases 127 and 7
  return sign | (code < 0x7eu ? code : 0x7eu);
}

// A word of test data: a counter hash, so that any word's value is known without reading memory.
DEVICE u32 test_word(u64 index, u32 seed) {
  u32 v =
      static_cast<u32>(index) * 0x9e3779b1u + static_cast<u32>(index >> 32) * 0x85ebca77u + seed;
  v = (v ^ (v >> 16)) * 0x7feb352du;
  v = (v ^ (v >> 15)) * 0x846ca68bu;
  return v ^ (v >> 16);
}

// ---- waits that give up ------------------------------------------------------------------------
// Every spin asks its watchdog; the first that starves says which wait it was. The deadline belongs
// to the kernel, not to the wait, so that all blocks of a starved kernel give up together.
struct Watchdog {
  u32* fault;  // [4] wait id (0: none), block, SM, detail
  u64 start;
  u64 limit;  // SM cycles
};
DEVICE Watchdog watchdog(u32* fault, u64 limit) { return Watchdog{fault, clock_cycles(), limit}; }
// For waits that end when another wait has given up: they must not be the first to complain.
DEVICE Watchdog patient(Watchdog dog) {
  dog.limit *= 2;
  return dog;
}
DEVICE bool starved(const Watchdog& dog, u32 wait, u32 detail) {
  if (clock_cycles() - dog.start < dog.limit) return false;
  if (swap_if(dog.fault, 0, wait) == 0) {
    store_relaxed(dog.fault + 1, block_index());
    store_relaxed(dog.fault + 2, sm_id());
    store_relaxed(dog.fault + 3, detail);
  }
  return true;
}

enum Wait : u32 {
  WAIT_RING_FULL = 1,
  WAIT_RING_EMPTY = 2,
  WAIT_SENTINEL = 3,
  WAIT_COUNTER = 4,
  WAIT_REMOTE_BARRIER = 5,
  WAIT_FINISHED = 6,
  WAIT_MAILBOX = 7,
  WAIT_PEERS_STARTED = 8,
  WAIT_HOST = 9,
  WAIT_CANDIDATES = 10,
};
