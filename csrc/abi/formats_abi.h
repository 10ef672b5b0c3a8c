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
  kIq4Nl = 24,
  kIq4Xs = 25,
  kIq3S = 26,
  kIq3Xxs = 27,
  kQ3K = 28,
  kIq2S = 29,
  kIq2Xs = 30,
  kIq2Xxs = 31,
  kIq1M = 32,
  kIq1S = 33,
  kTq10 = 34,
  kTq20 = 35,
  kQ2K = 36,
  kNvfp4 = 37,
  kIq4Nlp = 38,
  kIq4Xsp = 39,
  kIq3Sp = 40,
  kIq3Xxsp = 41,
  kQ3Kp = 42,
  kIq2p = 43,
  kIq1p = 44,
  kQ2Kp = 45,
  kNvfp4p = 46,
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
    {"iq4_nl", 4, 32, 32, 18, 38, true},
    {"iq4_xs", 4, 32, 256, 136, 39, true},
    {"iq3_s", 4, 32, 256, 110, 40, true},
    {"iq3_xxs", 4, 32, 256, 98, 41, true},
    {"q3_k", 3, 16, 256, 110, 42, true},
    {"iq2_s", 3, 32, 256, 82, 43, true},
    {"iq2_xs", 3, 32, 256, 74, 43, true},
    {"iq2_xxs", 3, 32, 256, 66, 43, true},
    {"iq1_m", 3, 32, 256, 56, 44, true},
    {"iq1_s", 3, 32, 256, 50, 44, true},
    {"tq1_0", 3, 32, 256, 54, 42, true},
    {"tq2_0", 3, 32, 256, 66, 42, true},
    {"q2_k", 2, 16, 256, 84, 45, true},
    {"nvfp4", 4, 16, 64, 36, 46, true},
    {"iq4_nlp", 4, 32, 32, 18, -1, true},
    {"iq4_xsp", 4, 32, 256, 138, -1, true},
    {"iq3_sp", 4, 32, 256, 138, -1, true},
    {"iq3_xxsp", 4, 32, 256, 138, -1, true},
    {"q3_kp", 3, 16, 256, 114, -1, true},
    {"iq2p", 3, 16, 256, 114, -1, true},
    {"iq1p", 3, 16, 256, 114, -1, true},
    {"q2_kp", 2, 16, 256, 84, -1, true},
    {"nvfp4p", 4, 16, 64, 36, -1, true},
};
// clang-format on

}  // namespace monolane
