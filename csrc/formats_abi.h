// How numbers are stored. Generated: do not edit. To write it anew: scripts/headers.
// Described in src/monolane/model/_formats.py.
#pragma once

#include <cstdint>

namespace monolane {

enum class Format : int32_t {
  kF32 = 0,
  kBf16 = 1,
  kF16 = 2,
  kI8 = 3,
  kI4 = 4,
  kF8 = 5,
};

enum class Activation : int32_t {
  kF32 = 0,
  kBf16 = 1,
  kI8 = 2,
};

struct FormatRow {
  const char* name;
  int32_t bits;   // of one number, or of one code
  int32_t group;  // columns of a row that share a scale; 0: none do
  bool on_cpu;    // whether the kernels of this library multiply by it
};

// clang-format off
constexpr FormatRow kFormats[] = {
    {"f32", 32, 0, true},
    {"bf16", 16, 0, true},
    {"f16", 16, 0, true},
    {"i8", 8, 32, true},
    {"i4", 4, 32, true},
    {"f8", 8, 0, false},
};
// clang-format on

}  // namespace monolane
