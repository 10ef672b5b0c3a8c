// Which sequence has which adapter, and what that adds to which matrix: see adapters.h.
#include "ops/adapters.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace monolane {
namespace {

// Phases whose products all come by `pack` and `multiply`, where adapters join them.
bool is_reached(PhaseKind kind) {
  return kind == PhaseKind::kQkv || kind == PhaseKind::kOut || kind == PhaseKind::kGateUp ||
         kind == PhaseKind::kDown || kind == PhaseKind::kSparseGateUp ||
         kind == PhaseKind::kSparseDown;
}

}  // namespace

Adapters::Adapters(const Plan& plan, int slots)
    : plan_(plan), of_slot_(slots, 0), reached_(plan.phases.size(), false) {}

void Adapters::add(int adapter, int64_t layer, WeightRole role, LowRank part) {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument("adapter: expected " + what);
  };
  if (adapter < 1 || adapter > static_cast<int>(parts_of_.size()) + 1) {
    refuse("1 to " + std::to_string(parts_of_.size() + 1) + ", got " + std::to_string(adapter));
  }
  if (adapter > static_cast<int>(parts_of_.size())) {
    parts_of_.emplace_back(plan_.phases.size() * kPlanMaxMatrices, -1);
  }
  const int64_t lanes = plan_.header.lanes;
  bool found = false;
  for (size_t p = 0; p < plan_.phases.size(); ++p) {
    const PlanPhase& phase = plan_.phases[p];
    if (phase.layer != layer || !is_reached(phase.kind)) continue;
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      const PlanMatrix& matrix = phase.matrices[i];
      if (matrix.role != role) continue;
      const auto holds = [&](const std::vector<float>& values, int64_t each) {
        return static_cast<int64_t>(values.size()) == lanes * each * part.rank;
      };
      if (part.rank < 1 || !holds(part.down, matrix.columns) || !holds(part.up, matrix.rows)) {
        refuse("A [L, r, " + std::to_string(matrix.columns) + "] and B [L, r, " +
               std::to_string(matrix.rows) + "]");
      }
      parts_of_[adapter - 1][p * kPlanMaxMatrices + i] = static_cast<int32_t>(parts_.size());
      reached_[p] = found = true;
    }
  }
  if (!found) refuse("a matrix that adapters reach");
  highest_rank_ = std::max(highest_rank_, part.rank);
  parts_.push_back(std::make_unique<LowRank>(std::move(part)));
}

void Adapters::give(int slot, int adapter) {
  if (adapter < 0 || adapter > static_cast<int>(parts_of_.size())) {
    throw std::invalid_argument("adapter: expected 0 to " + std::to_string(parts_of_.size()) +
                                ", got " + std::to_string(adapter));
  }
  of_slot_[slot] = adapter;
}

void AdapterRoom::reserve(const Plan& plan, const Kernels& kernels, int64_t rank) {
  const PlanHeader& h = plan.header;
  int64_t columns = 1;
  for (const PlanPhase& phase : plan.phases) {
    if (!is_reached(phase.kind)) continue;
    for (int32_t i = 0; i < phase.num_matrices; ++i) {
      columns = std::max<int64_t>(columns, phase.matrices[i].columns);
    }
  }
  const int64_t token = kernels.packed_bytes(Activation::kF32, columns);
  const int64_t rows = int64_t{kPlanMaxMatrices} * h.group_lanes * h.max_width;
  inputs = std::make_unique<Arena>(static_cast<size_t>(kMaxWidth * token));
  lowered = std::make_unique<Arena>(static_cast<size_t>(rows * rank) * sizeof(float));
}

}  // namespace monolane
