#include "worker_rows.h"

#include <stdexcept>
#include <string>

namespace monolane {
namespace {

size_t line_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows begin .. begin + count - 1 of a matrix as one of its own.
Matrix slice(const Matrix& whole, int64_t begin, int64_t count) {
  const char* data =
      static_cast<const char*>(whole.data) + begin * row_bytes(whole.format, whole.cols);
  const uint16_t* scales =
      whole.scales == nullptr ? nullptr : whole.scales + begin * (whole.cols / kGroup);
  return {data, scales, count, whole.cols, whole.format};
}

void check(const PlanMatrix& part, const Weight& weight, int64_t end) {
  const Matrix& stored = weight.stored;
  if (stored.cols != part.columns || stored.rows < end) {
    throw std::invalid_argument("weights: expected a matrix of " + std::to_string(part.columns) +
                                " columns and at least " + std::to_string(end) + " rows, got " +
                                std::to_string(stored.cols) + " and " +
                                std::to_string(stored.rows));
  }
  const bool converted = stored.format != weight.format;
  if (is_blocks(stored.format)) {
    if (static_cast<Format>(row_of(stored.format).repacked) != weight.format) {
      throw std::invalid_argument("weights: expected blocks to be repacked into their own format");
    }
  } else if (converted &&
             (is_coded(stored.format) || (is_coded(weight.format) && stored.cols % kGroup))) {
    throw std::invalid_argument(
        "weights: expected a float matrix to convert, with a multiple of 32 columns for codes");
  }
}

}  // namespace

WorkerRows::WorkerRows(const Plan& plan, const ModelWeights& weights, int64_t worker)
    : parts_(plan.phases.size() * kPlanMaxMatrices) {
  size_t bytes = 0;
  const auto reserve = [&](size_t wanted) {
    const size_t at = bytes;
    bytes += line_up(wanted);
    return at;
  };
  struct Place {
    Part* part;
    size_t values, scales;
  };
  std::vector<Place> places;
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    const PlanPhase& phase = plan.phases[p];
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      const Weight& weight = weights.weight(matrix.role, phase.layer);
      const PlanShare share = plan.share(matrix.share, worker);
      const int64_t first = plan.first_row(matrix, worker);
      const int64_t count = share.end - share.begin;
      check(matrix, weight, first + share.end);
      Part& part = parts_[p * kPlanMaxMatrices + i];
      part.used = slice(weight.stored, first + share.begin, count);
      if (weight.format == weight.stored.format) continue;
      part.stored = part.used;
      part.used = {nullptr, nullptr, count, matrix.columns, weight.format};
      const size_t values = reserve(count * row_bytes(weight.format, matrix.columns));
      const size_t scales = scales_apart(weight.format) ? count * (matrix.columns / kGroup) * 2 : 0;
      places.push_back({&part, values, reserve(scales)});
    }
  }
  if (bytes == 0) return;
  arena_ = std::make_unique<Arena>(bytes);
  for (const Place& place : places) {
    Part& part = *place.part;
    part.used.data = part.values = arena_->as<char>() + place.values;
    if (!scales_apart(part.used.format)) continue;
    part.scales = reinterpret_cast<uint16_t*>(arena_->as<char>() + place.scales);
    part.used.scales = part.scales;
  }
}

void WorkerRows::convert(const Kernels& kernels, int64_t phase, int64_t matrix) {
  Part& part = parts_[static_cast<size_t>(phase) * kPlanMaxMatrices + matrix];
  if (part.stored.data == nullptr) return;
  const Matrix stored = part.stored;
  const Format to = part.used.format;
  if (is_blocks(stored.format)) {
    repack_rows(stored.format, stored.data, stored.rows, stored.cols, part.values, part.scales);
  } else if (is_coded(to)) {
    quantize_rows(to, stored.format, stored.data, stored.rows, stored.cols, part.values,
                  part.scales);
  } else {
    std::vector<float> row(stored.cols);
    char* out = static_cast<char*>(part.values);
    for (int64_t r = 0; r < stored.rows; ++r, out += row_bytes(to, stored.cols)) {
      kernels.widen(stored, r, row.data());
      kernels.store_kv(row.data(), stored.cols, to, out);
    }
  }
  part.stored.data = nullptr;
}

}  // namespace monolane
