#include "worker_rows.h"

#include <algorithm>
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

// Whether codes of a format are made of floats here, and which: those of int8 or int4.
bool is_made(Format format) { return format == Format::kQ80p || format == Format::kQ40p; }
Format codes_of(Format format) { return format == Format::kQ80p ? Format::kI8 : Format::kI4; }

void check(const PlanMatrix& part, const Weight& weight, int64_t end) {
  const Matrix& stored = weight.stored;
  if (stored.cols != part.columns || stored.rows < end) {
    throw std::invalid_argument("weights: expected a matrix of " + std::to_string(part.columns) +
                                " columns and at least " + std::to_string(end) + " rows, got " +
                                std::to_string(stored.cols) + " and " +
                                std::to_string(stored.rows));
  }
  if (is_repacked(stored.format)) {
    if (repacked_of(stored.format) != weight.format) {
      throw std::invalid_argument("weights: expected codes to be repacked into their own format");
    }
  } else if (is_coded(stored.format) ||
             (is_coded(weight.format) && (stored.cols % kGroup || !is_made(weight.format)))) {
    throw std::invalid_argument(
        "weights: expected a float matrix to convert, with a multiple of 32 columns for codes");
  }
}

// Float rows to panels, a panel's rows at a time.
void quantize_panels(const Matrix& from, Format to, void* panels) {
  const Format codes = codes_of(to);
  const int64_t cols = from.cols, step = kPanelRows * row_bytes(from.format, cols);
  std::vector<char> values(kPanelRows * row_bytes(codes, cols));
  std::vector<uint16_t> scales(kPanelRows * (cols / kGroup));
  const char* rows = static_cast<const char*>(from.data);
  char* out = static_cast<char*>(panels);
  for (int64_t r = 0; r < from.rows; r += kPanelRows, rows += step) {
    const int64_t count = std::min(kPanelRows, from.rows - r);
    quantize_rows(codes, from.format, rows, count, cols, values.data(), scales.data());
    repack_rows({values.data(), scales.data(), count, cols, codes}, out);
    out += kPanelRows * row_bytes(to, cols);
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
    size_t values;
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
      const int64_t size = is_panels(weight.format)
                               ? panels_bytes(weight.format, count, matrix.columns)
                               : count * row_bytes(weight.format, matrix.columns);
      places.push_back({&part, reserve(size)});
    }
  }
  if (bytes == 0) return;
  arena_ = std::make_unique<Arena>(bytes);
  for (const Place& place : places) {
    place.part->values = arena_->as<char>() + place.values;
    place.part->used.data = place.part->values;
  }
}

void WorkerRows::convert(const Kernels& kernels, int64_t phase, int64_t matrix) {
  Part& part = parts_[static_cast<size_t>(phase) * kPlanMaxMatrices + matrix];
  if (part.stored.data == nullptr) return;
  const Matrix stored = part.stored;
  const Format to = part.used.format;
  if (is_repacked(stored.format)) {
    repack_rows(stored, part.values);
  } else if (is_panels(to)) {
    quantize_panels(stored, to, part.values);
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
