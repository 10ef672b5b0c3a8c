// The emulated tiles (csrc/kernels/isa/tiles.h): against plain loops, and what a processor would
// fault at.
#define MONOLANE_ISA tiles_test
#include <utility>
#include <vector>

#include "expect.h"
#include "kernels/isa/tiles.h"

namespace monolane {
namespace {

using tiles_test::Tiles;
using tiles_test::TileShape;

constexpr TileShape kUnused{1, 4};

// Whether shapes of a sum, a left and a right side are refused, when they are set or multiplied.
bool refused(TileShape sum, TileShape left, TileShape right) {
  try {
    Tiles tiles({sum, left, right, kUnused, kUnused, kUnused, kUnused, kUnused});
    tiles.dot<0, 1, 2>();
  } catch (const std::logic_error&) {
    return true;
  }
  return false;
}

void test_shapes() {
  EXPECT(!refused({16, 64}, {16, 64}, {16, 64}));
  EXPECT(!refused({3, 20}, {3, 8}, {2, 20}));
  EXPECT(refused({17, 64}, {17, 64}, {16, 64}));  // more rows than there are
  EXPECT(refused({16, 68}, {16, 64}, {16, 68}));  // longer rows
  EXPECT(refused({16, 62}, {16, 64}, {16, 62}));  // half a number
  EXPECT(refused({0, 64}, {0, 64}, {16, 64}));
  EXPECT(refused({3, 20}, {4, 8}, {2, 20}));   // other tokens
  EXPECT(refused({3, 20}, {3, 12}, {2, 20}));  // other columns
  EXPECT(refused({3, 20}, {3, 8}, {2, 24}));   // other rows
}

// Sums begin with what is there; nothing beside a tile is read or written.
void test_dot() {
  constexpr int kRows = 3, kQuads = 2, kSums = 5;
  int8_t left[kRows][4 * kQuads], right[kQuads][4 * kSums];
  int32_t sums[kRows][kSums + 1], expected[kRows][kSums + 1];
  int next = -128;
  for (auto& row : left) {
    for (int8_t& x : row) x = static_cast<int8_t>(next += 11);
  }
  for (auto& row : right) {
    for (int8_t& x : row) x = static_cast<int8_t>(next -= 37);
  }
  left[0][0] = right[0][0] = -128;
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n <= kSums; ++n) {
      sums[m][n] = expected[m][n] = 1000 * m - n;
      if (n == kSums) continue;  // beside the tile
      for (int k = 0; k < 4 * kQuads; ++k)
        expected[m][n] += left[m][k] * right[k / 4][4 * n + k % 4];
    }
  }
  Tiles tiles({{kRows, 4 * kSums},
               {kRows, 4 * kQuads},
               {kQuads, 4 * kSums},
               kUnused,
               kUnused,
               kUnused,
               kUnused,
               kUnused});
  const int64_t before = Tiles::emulated_dots();
  tiles.load<0>(sums, sizeof sums[0]);
  tiles.load<1>(left, sizeof left[0]);
  tiles.load<2>(right, sizeof right[0]);
  tiles.dot<0, 1, 2>();
  tiles.store<0>(sums, sizeof sums[0]);
  EXPECT(std::memcmp(sums, expected, sizeof sums) == 0);
  EXPECT(Tiles::emulated_dots() == before + 1);
  tiles.zero<0>();
  tiles.store<0>(sums, sizeof sums[0]);
  EXPECT(sums[2][4] == 0 && sums[2][5] == expected[2][5]);
}

float in_pairs(const std::vector<std::pair<float, float>>& columns, float sum) {
  uint16_t left[1][32] = {}, right[16][2] = {};
  for (size_t i = 0; i < columns.size(); ++i) {
    left[0][i] = float_to_bf16(columns[i].first);
    right[i / 2][i % 2] = float_to_bf16(columns[i].second);
  }
  Tiles tiles({{1, 4}, {1, 64}, {16, 4}, kUnused, kUnused, kUnused, kUnused, kUnused});
  tiles.load<0>(&sum, 4);
  tiles.load<1>(left, 64);
  tiles.load<2>(right, 4);
  tiles.dot_pairs<0, 1, 2>();
  tiles.store<0>(&sum, 4);
  return sum;
}

// Even columns are summed apart from odd ones, each from zero, and both before the sum so far.
void test_order_of_pairs() {
  constexpr float kBig = 0x1p24f;  // beside which 1 is half of the last place, and tied to even
  EXPECT(in_pairs({{1, 2}, {3, 4}}, 100) == 114);
  EXPECT(in_pairs({{kBig, 1}, {1, 1}, {1, 1}}, 0) == kBig);  // 1 is lost twice
  EXPECT(in_pairs({{kBig, 1}, {1, 1}, {0, 0}, {1, 1}}, 0) == kBig + 2);
  EXPECT(in_pairs({{1, 1}, {1, 1}}, kBig) == kBig + 2);  // not one after the other
  EXPECT(in_pairs({{kBig, 1}, {0, 0}, {1, 1}, {0, 0}, {-kBig, 1}}, 0) == 0);
}

// What is subnormal is zero: numbers, steps, sums, and what the sum was before.
void test_small_pairs() {
  constexpr float kTiny = 0x1p-126f;
  EXPECT(in_pairs({{kTiny, 1}}, 0) == kTiny);
  EXPECT(in_pairs({{kTiny / 2, 8}}, 0) == 0);
  EXPECT(in_pairs({{kTiny, 0.5f}, {kTiny, 0.5f}, {kTiny, 0.5f}}, 0) == 0);
  EXPECT(in_pairs({{kTiny, 1}}, kTiny / 2) == kTiny);
  EXPECT(in_pairs({{-kTiny, 1}}, 1.5f * kTiny) == 0);
}

}  // namespace

void test_tiles() { test_shapes(), test_dot(), test_order_of_pairs(), test_small_pairs(); }

}  // namespace monolane
