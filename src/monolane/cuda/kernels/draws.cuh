// What a draw is made of wherever a kernel draws: random words, and keys that order as logits do.
#pragma once
#include "primitives.cuh"

// First word of Philox4x32-10(key = seed, counter = (token, position, 0, 0)).
DEVICE u32 philox_word(u32 key0, u32 key1, u32 token, u32 position) {
  u32 c0 = token, c1 = position, c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u32 high0 = multiply_high(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    u32 high1 = multiply_high(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return c0;
}

DEVICE u32 ordered_key(f32 value) {  // keys order as the values do, as unsigned integers
  u32 bits = bits_of_float(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE f32 value_of_key(u32 key) {
  return float_of_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
