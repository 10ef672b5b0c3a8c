#include "ops/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/products/panels.h"

namespace monolane {
namespace {

constexpr int64_t kBandRows = kBandPanels * kPanelRows;  // each band is stored by itself

size_t line_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t bytes_of(const Matrix& used) {
  return static_cast<size_t>(is_panels(used.format)
                                 ? panels_bytes(used.format, used.rows, used.cols)
                                 : used.rows * row_bytes(used.format, used.cols));
}

// Which of an expert's matrices that is, by its place in ExpertCache::Expert; -1: none.
int kind_of(WeightRole role) {
  if (role == WeightRole::kExpertGate) return 0;
  if (role == WeightRole::kExpertUp) return 1;
  return role == WeightRole::kExpertDown ? 2 : -1;
}

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
  const int64_t columns = weight.cut.columns(stored), rows = weight.cut.rows(stored);
  if (columns != part.columns || rows < end || columns % column_step(stored.format) != 0) {
    throw std::invalid_argument("weights: expected a matrix of " + std::to_string(part.columns) +
                                " columns and at least " + std::to_string(end) + " rows, got " +
                                std::to_string(columns) + " and " + std::to_string(rows));
  }
  if (is_repacked(stored.format)) {
    if (repacked_of(stored.format) != weight.format && !is_made(weight.format)) {
      throw std::invalid_argument(
          "weights: expected codes to be repacked into their own format, or rounded to int8 or "
          "int4");
    }
  } else if (is_coded(stored.format) ||
             (is_coded(weight.format) && (columns % kGroup || !is_made(weight.format)))) {
    throw std::invalid_argument(
        "weights: expected a float matrix to convert, with a multiple of 32 columns for codes");
  }
}

// Some rows of a weight as a matrix: those that are stored, or where they do not lie one behind the
// other, a copy.
class Rows {
 public:
  Rows(const Weight& weight, int64_t first, int64_t count) {
    const Matrix& stored = weight.stored;
    const LaneCut& cut = weight.cut;
    if (cut.column_parts == 1 && cut.copies == 1) {
      matrix_ = slice(stored, first, count);
      return;
    }
    const int64_t columns = cut.columns(stored), groups = columns / kGroup;
    const int64_t bytes = row_bytes(stored.format, columns);
    values_.resize(count * bytes);
    if (stored.scales != nullptr) scales_.resize(count * groups);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = cut.stored_row(stored, first + r);
      const int64_t column = cut.stored_column(stored, first + r);
      const char* from = static_cast<const char*>(stored.data) +
                         row * row_bytes(stored.format, stored.cols) +
                         row_bytes(stored.format, column);
      std::memcpy(values_.data() + r * bytes, from, bytes);
      if (stored.scales == nullptr) continue;
      const uint16_t* scales = stored.scales + row * (stored.cols / kGroup) + column / kGroup;
      std::copy_n(scales, groups, scales_.data() + r * groups);
    }
    const uint16_t* scales = stored.scales == nullptr ? nullptr : scales_.data();
    matrix_ = {values_.data(), scales, count, columns, stored.format};
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const Matrix& matrix() const { return matrix_; }

 private:
  Matrix matrix_;
  std::vector<char> values_;
  std::vector<uint16_t> scales_;
};

// At most a band's rows to the format in which they are multiplied. Where that is another one than
// the blocks' own, the `factor` of their numbers is in what is made.
void convert_rows(const Kernels& kernels, const Matrix& from, float factor, Format to, void* out) {
  if (is_repacked(from.format) && repacked_of(from.format) == to) {
    repack_rows(from, out);
  } else if (is_repacked(from.format)) {  // rounded a second time, as floats would be
    std::vector<float> rows(from.rows * from.cols);
    for (int64_t r = 0; r < from.rows; ++r) kernels.widen(from, r, rows.data() + r * from.cols);
    for (float& number : rows) number *= factor;
    convert_rows(kernels, {rows.data(), nullptr, from.rows, from.cols, Format::kF32}, 1.0f, to,
                 out);
  } else if (is_panels(to)) {
    const Format codes = codes_of(to);
    std::vector<char> values(from.rows * row_bytes(codes, from.cols));
    std::vector<uint16_t> scales(from.rows * (from.cols / kGroup));
    quantize_rows(codes, from.format, from.data, from.rows, from.cols, values.data(),
                  scales.data());
    repack_rows({values.data(), scales.data(), from.rows, from.cols, codes}, out);
  } else if (from.format == to) {
    std::memcpy(out, from.data, from.rows * row_bytes(to, from.cols));
  } else {
    std::vector<float> row(from.cols);
    for (int64_t r = 0; r < from.rows; ++r) {
      kernels.widen(from, r, row.data());
      kernels.store_kv(row.data(), from.cols, to,
                       static_cast<char*>(out) + r * row_bytes(to, from.cols));
    }
  }
}

}  // namespace

PackedWeights::PackedWeights(const Plan& plan, const ModelWeights& weights, int64_t worker,
                             std::optional<size_t> expert_memory)
    : first_parts_(plan.phases.size() * kPlanMaxMatrices + 1) {
  for (size_t i = 0; i + 1 < first_parts_.size(); ++i) {
    const PlanPhase& phase = plan.phases[i / kPlanMaxMatrices];
    const int64_t matrix = static_cast<int64_t>(i % kPlanMaxMatrices);
    const bool used = matrix < phase.num_matrices;
    first_parts_[i + 1] =
        first_parts_[i] + (used ? plan.experts_of(phase, phase.matrices[matrix].role) : 0);
  }
  parts_.resize(first_parts_.back());
  size_t bytes = 0;
  struct Place {
    Part* part;
    size_t values;
  };
  std::vector<Place> places;
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    const PlanPhase& phase = plan.phases[p];
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      const PlanShare share = plan.share(matrix.share, worker);
      const int64_t first = plan.first_row(matrix, worker);
      const int64_t count = share.end - share.begin;
      const bool stowed = expert_memory.has_value() && kind_of(matrix.role) >= 0;
      for (int64_t expert = 0; expert < plan.experts_of(phase, matrix.role); ++expert) {
        const Weight& weight = weights.of(phase.layer).matrix(matrix.role, expert);
        check(matrix, weight, first + share.end);
        Part& part = parts_[first_part(static_cast<int64_t>(p), i) + expert];
        const float factor = weight.rounded() ? 1.0f : weight.factor;
        if (!weight.copied() && !stowed) {
          part.used = {slice(weight.stored, first + share.begin, count), factor};
          continue;
        }
        part.stored = &weight;
        part.first = first + share.begin;
        part.used = {{nullptr, nullptr, count, matrix.columns, weight.format}, factor};
        if (stowed) continue;
        places.push_back({&part, bytes});
        bytes += line_up(bytes_of(part.used));
      }
    }
  }
  if (expert_memory.has_value()) stow_experts(plan, *expert_memory);
  if (bytes == 0) return;
  arena_ = std::make_unique<Arena>(bytes);
  for (const Place& place : places) {
    place.part->values = arena_->as<char>() + place.values;
    place.part->used.data = place.part->values;
  }
}

void PackedWeights::stow_experts(const Plan& plan, size_t memory) {
  int32_t chosen = 0;  // of a token, at most
  std::vector<ExpertCache::Expert> experts;
  first_expert_.assign(plan.header.layers, -1);
  for (size_t p = 0; p < plan.phases.size(); ++p) {
    const PlanPhase& phase = plan.phases[p];
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const int kind = kind_of(phase.matrices[i].role);
      if (kind < 0) continue;
      const PlanExperts& mixture = plan.module(phase).experts;
      chosen = std::max(chosen, mixture.chosen);
      int64_t& first = first_expert_[phase.layer];
      if (first < 0) {
        first = static_cast<int64_t>(experts.size());
        experts.resize(experts.size() + mixture.count);
      }
      for (int64_t expert = 0; expert < mixture.count; ++expert) {
        Part& part = parts_[first_part(static_cast<int64_t>(p), i) + expert];
        part.expert = first + expert;
        part.kind = kind;
        experts[part.expert][kind] = {bytes_of(part.used), &part.used.data};
      }
    }
  }
  experts_ = std::make_unique<ExpertCache>(std::move(experts), memory, chosen);
}

void PackedWeights::convert(const Kernels& kernels, int64_t phase, int64_t matrix) {
  std::vector<char> rows;  // of an expert that goes to the file
  bool stowed = false;
  for (int64_t i = first_part(phase, matrix); i < first_part(phase, matrix + 1); ++i) {
    Part& part = parts_[i];
    if (part.stored == nullptr) continue;
    if (part.expert < 0) {
      copy(kernels, part, part.values);
      continue;
    }
    rows.resize(bytes_of(part.used));
    copy(kernels, part, rows.data());
    experts_->write(part.expert, part.kind, rows.data());
    stowed = true;
  }
  if (stowed) experts_->written();
}

void PackedWeights::copy(const Kernels& kernels, Part& part, void* to) {
  const Matrix& used = part.used;
  char* out = static_cast<char*>(to);
  for (int64_t r = 0; r < used.rows; r += kBandRows) {
    const int64_t count = std::min(kBandRows, used.rows - r);
    const Rows rows(*part.stored, part.first + r, count);
    convert_rows(kernels, rows.matrix(), part.stored->factor, used.format, out);
    out += kBandRows * row_bytes(used.format, used.cols);
  }
  part.stored = nullptr;
}

}  // namespace monolane
