// The matrix instructions. Products are exact in float (bf16, f16: 16 significant bits at most and
// 22) and added in ascending order of k to their sum, which then is added to C; hardware adds them
// in an order of its own.
#include "numbers.h"

namespace emulator {

template <float (*DECODE)(u32)>
static void multiply_tile(Posts& posts) {
  float a[16][16], b[16][8];  // [row][k], [k][column]
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32* word = posts.words[lane];
    for (u32 i = 0; i < 4; ++i) {
      u32 row = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
      a[row][k] = DECODE(word[i] & 0xffff), a[row][k + 1] = DECODE(word[i] >> 16);
    }
    for (u32 i = 0; i < 2; ++i) {
      u32 column = lane / 4, k = lane % 4 * 2 + i * 8;
      b[k][column] = DECODE(word[4 + i] & 0xffff), b[k + 1][column] = DECODE(word[4 + i] >> 16);
    }
  }
  for (u32 row = 0; row < 16; ++row) {
    float sum[8] = {};
    for (u32 k = 0; k < 16; ++k) {
      for (u32 column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
    }
    for (u32 column = 0; column < 8; ++column) {
      posts.product[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2] = sum[column];
    }
  }
}

void multiply_bf16(Posts& posts) { multiply_tile<bf16_to_float>(posts); }
void multiply_f16(Posts& posts) { multiply_tile<half_to_float>(posts); }

}  // namespace emulator
