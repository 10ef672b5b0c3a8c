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
  kQ80 = 6,
  kQ40 = 7,
  kQ41 = 8,
  kQ50 = 9,
  kQ51 = 10,
  kQ4K = 11,
  kQ5K = 12,
  kQ6K = 13,
  kQ41p = 14,
  kQ50p = 15,
  kQ51p = 16,
  kQ4Kp = 17,
  kQ5Kp = 18,
  kQ6Kp = 19,
  kQ80p = 20,
  kQ40p = 21,
  kMxfp4 = 22,
  kMxfp4p = 23,
};

enum class Activation : int32_t {
  kF32 = 0,
  kBf16 = 1,
  kI8 = 2,
};

struct FormatRow {
  const char* name;
  int32_t bits;         // of one number, or of one code
  int32_t group;        // columns of a row that share a scale; 0: none do
  int32_t block;        // columns of a block that has its scales in it; 0: none has
  int32_t block_bytes;  // scales included
  int32_t repacked;     // code of the format made of it to multiply by; -1: none
  bool on_cpu;          // whether this library takes it
};

// clang-format off
constexpr FormatRow kFormats[] = {
    {"f32", 32, 0, 0, 0, -1, true},
    {"bf16", 16, 0, 0, 0, -1, true},
    {"f16", 16, 0, 0, 0, -1, true},
    {"i8", 8, 32, 0, 0, 20, true},
    {"i4", 4, 32, 0, 0, 21, true},
    {"f8", 8, 0, 0, 0, -1, false},
    {"q8_0", 8, 32, 32, 34, 20, true},
    {"q4_0", 4, 32, 32, 18, 21, true},
    {"q4_1", 4, 32, 32, 20, 14, true},
    {"q5_0", 5, 32, 32, 22, 15, true},
    {"q5_1", 5, 32, 32, 24, 16, true},
    {"q4_k", 4, 32, 256, 144, 17, true},
    {"q5_k", 5, 32, 256, 176, 18, true},
    {"q6_k", 6, 16, 256, 210, 19, true},
    {"q4_1p", 4, 32, 32, 20, -1, true},
    {"q5_0p", 5, 32, 32, 22, -1, true},
    {"q5_1p", 5, 32, 32, 24, -1, true},
    {"q4_kp", 4, 32, 256, 148, -1, true},
    {"q5_kp", 5, 32, 256, 180, -1, true},
    {"q6_kp", 6, 16, 256, 210, -1, true},
    {"q8_0p", 8, 32, 32, 34, -1, true},
    {"q4_0p", 4, 32, 32, 18, -1, true},
    {"mxfp4", 4, 32, 32, 17, 23, true},
    {"mxfp4p", 4, 32, 32, 17, -1, true},
};
// clang-format on

}  // namespace monolane
