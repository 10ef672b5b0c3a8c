// A matrix of a drafter in int8, in memory of its own, of whatever it was stored in: what drafts
// need not be exact.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "memory/arena.h"

namespace monolane {

struct Int8Matrix {
  // `values`: [rows, columns] in a format of plain numbers. Throws std::invalid_argument if columns
  // are no whole groups, or a weight has no code.
  Int8Matrix(const void* values, Format format, int64_t rows, int64_t columns) {
    const Format used = repacked_of(Format::kI8);
    if (columns % column_step(Format::kI8) != 0) {
      throw std::invalid_argument("heads: expected rows of a multiple of " +
                                  std::to_string(column_step(Format::kI8)) + " columns, got " +
                                  std::to_string(columns));
    }
    std::vector<char> codes(static_cast<size_t>(rows * row_bytes(Format::kI8, columns)));
    std::vector<uint16_t> scales(static_cast<size_t>(rows * (columns / kGroup)));
    quantize_rows(Format::kI8, format, values, rows, columns, codes.data(), scales.data());
    data = std::make_unique<Arena>(static_cast<size_t>(panels_bytes(used, rows, columns)));
    repack_rows({codes.data(), scales.data(), rows, columns, Format::kI8}, data->as<char>());
    matrix = {data->as<char>(), nullptr, rows, columns, used};
  }

  std::unique_ptr<Arena> data;
  Matrix matrix;
};

// So many floats.
inline std::unique_ptr<Arena> room_of(int64_t count) {
  return std::make_unique<Arena>(static_cast<size_t>(count) * sizeof(float));
}

// Where a worker's rows begin: whole panels.
inline int64_t share_begin(int64_t rows, int worker, int workers) {
  if (worker == workers) return rows;
  return rows / kPanelRows * worker / workers * kPanelRows;
}

}  // namespace monolane
