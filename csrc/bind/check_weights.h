// Whether vectors and embedding are as long as a plan has them be read. Matrices are checked where
// workers take their rows of them (ops/packed_weights.h); of the rest the core gets a pointer, and
// would read beyond what is there.
#pragma once

#include <string>

#include "abi/plan.h"
#include "bind/weight_table.h"

namespace monolane {

class WeightCheck {
 public:
  WeightCheck(const Plan& plan, const WeightTable& table) : header_(plan.header), table_(table) {
    const Matrix& embedding = table.weights.embedding;
    if (embedding.rows != header_.vocab || embedding.cols != header_.hidden) {
      refuse("embedding: expected [" + std::to_string(header_.vocab) + ", " +
             std::to_string(header_.hidden) + "], got [" + std::to_string(embedding.rows) + ", " +
             std::to_string(embedding.cols) + "]");
    }
    require(WeightRole::kFinalNorm, -1, norm(header_.final_norm_per_lane));
    for (int i = 0; i < kPlanRotaries; ++i)
      allow(WeightRole::kNone, i, header_.rotaries[i].dim / 2);
    for (const PlanModule& module : plan.modules) check(module);
    if (header_.streams < 1 || header_.streams > kPlanMaxStreams) {
      refuse("streams: expected 1 to " + std::to_string(kPlanMaxStreams) + ", got " +
             std::to_string(header_.streams));
    }
    if (header_.streams > 1) {
      for (int layer = 0; layer < header_.layers; ++layer) check_streams(layer);
    }
  }

 private:
  int64_t norm(int32_t per_lane) const {
    return int64_t{per_lane != 0 ? header_.lanes : 1} * header_.hidden;
  }

  void check(const PlanModule& m) const {
    if (m.stream_scale != WeightRole::kNone) require(m.stream_scale, m.layer, 1);
    for (const WeightRole role : {m.norm, m.post_norm, m.joint_norm}) {
      if (role != WeightRole::kNone) require(role, m.layer, norm(header_.norm_per_lane));
    }
    if (m.attention.heads > 0) check(m.layer, m.attention, m.latent);
    if (m.delta.key_heads > 0) check(m.layer, m.delta);
    if (m.experts.count > 0) check(m.layer, m.experts);
    if (m.per_layer.inner > 0) check(m.per_layer);
    if (m.laurel.rank > 0) require(WeightRole::kLaurelNorm, m.layer, header_.hidden);
    if (m.kda.heads > 0) check(m.layer, m.kda);
    if (m.mamba.heads > 0) check(m.layer, m.mamba);
    if (m.conv.channels > 0) {
      require(WeightRole::kConvTaps, m.layer, int64_t{m.conv.channels} * m.conv.taps);
    }
  }

  void check(int layer, const PlanAttention& a, const PlanLatent& l) const {
    if (a.rotary != PlanRotary::kNone) {
      const int rotary = static_cast<int>(a.rotary);
      require(WeightRole::kNone, rotary, header_.rotaries[rotary].dim / 2);
    }
    allow(WeightRole::kSinks, layer, a.heads);
    allow(WeightRole::kOBias, layer, header_.hidden);
    if (l.rank > 0) {
      require(WeightRole::kKNorm, layer, l.rank);
      if (l.query_rank > 0) require(WeightRole::kQNorm, layer, l.query_rank);
      return;
    }
    const int64_t dim = a.head_dim, queries = a.heads * dim, keys = a.kv_heads * dim;
    allow(WeightRole::kQBias, layer, queries * (a.gate != 0 ? 2 : 1));
    const bool own_keys = a.keys_of < 0;
    if (own_keys) {
      allow(WeightRole::kKBias, layer, keys);
      allow(WeightRole::kVBias, layer, keys);
    }
    if (a.qk_norm == QkNorm::kNone) return;
    const bool all = a.qk_norm == QkNorm::kAll;
    const auto scales = [&](WeightRole role, int64_t count) {
      a.qk_unscaled ? allow(role, layer, count) : require(role, layer, count);
    };
    scales(WeightRole::kQNorm, all ? queries : dim);
    if (own_keys) scales(WeightRole::kKNorm, all ? keys : dim);
  }

  void check(int layer, const PlanDelta& d) const {
    const int64_t values = int64_t{d.value_heads} * d.value;
    require(WeightRole::kDeltaConv, layer, (2 * int64_t{d.key_heads} * d.key + values) * d.kernel);
    require(WeightRole::kDeltaDecay, layer, d.value_heads);
    require(WeightRole::kDeltaStep, layer, d.value_heads);
    require(WeightRole::kDeltaNorm, layer, d.value);
  }

  void check(int layer, const PlanKda& k) const {
    const int64_t columns = int64_t{k.heads} * k.width;
    for (const WeightRole role :
         {WeightRole::kKdaQConv, WeightRole::kKdaKConv, WeightRole::kKdaVConv}) {
      require(role, layer, columns * k.kernel);
    }
    require(WeightRole::kKdaDecay, layer, k.heads);
    require(WeightRole::kKdaStep, layer, columns);
    require(WeightRole::kKdaNorm, layer, k.width);
  }

  void check(int layer, const PlanMamba& m) const {
    const int64_t columns = int64_t{m.heads} * m.head;
    const int64_t channels = columns + 2 * int64_t{m.groups} * m.state;
    require(WeightRole::kMambaConv, layer, channels * m.kernel);
    allow(WeightRole::kMambaConvBias, layer, channels);
    require(WeightRole::kMambaDecay, layer, m.heads);
    require(WeightRole::kMambaStep, layer, m.heads);
    require(WeightRole::kMambaSkip, layer, m.heads);
    if (m.normed != 0) require(WeightRole::kMambaNorm, layer, columns);
  }

  void check(int layer, const PlanExperts& e) const {
    if (e.router_norm != 0) require(WeightRole::kRouterNorm, layer, header_.hidden);
    allow(WeightRole::kExpertScales, layer, e.count);
    allow(WeightRole::kRouterBias, layer, e.count);
    allow(WeightRole::kRouterCorrection, layer, e.count);
    allow(WeightRole::kExpertGateBias, layer, int64_t{e.count} * e.inner);
    allow(WeightRole::kExpertUpBias, layer, int64_t{e.count} * e.inner);
    allow(WeightRole::kExpertDownBias, layer, int64_t{e.count} * header_.hidden);
    allow(WeightRole::kSharedExpertGate, layer, header_.hidden);
  }

  void check_streams(int layer) const {
    const int64_t streams = header_.streams;
    require(WeightRole::kAltupNorm, layer, header_.hidden);
    require(WeightRole::kAltupRouter, layer, streams * header_.hidden);
    require(WeightRole::kAltupPredict, layer, streams * streams * streams);
    require(WeightRole::kAltupCorrect, layer, streams * streams);
    allow(WeightRole::kAltupScale, layer, header_.hidden);
  }

  void check(const PlanPerLayer& p) const {
    require(WeightRole::kPerLayerNorm, -1, p.inner);
    const int64_t columns = int64_t{p.layers} * p.inner;
    const Matrix& table = table_.weights.outer.matrix(WeightRole::kPerLayerEmbedding).stored;
    if (table.rows < p.rows || table.cols != columns) {
      refuse("per-layer embedding: expected [" + std::to_string(p.rows) + ", " +
             std::to_string(columns) + "], got [" + std::to_string(table.rows) + ", " +
             std::to_string(table.cols) + "]");
    }
  }

  // One that is there must be as long; it may be missing.
  void allow(WeightRole role, int layer, int64_t expected) const {
    const int64_t found = table_.length(role, layer);
    if (found >= 0 && found != expected) wrong(role, layer, expected, std::to_string(found));
  }

  void require(WeightRole role, int layer, int64_t expected) const {
    if (table_.length(role, layer) < 0) wrong(role, layer, expected, "none");
    allow(role, layer, expected);
  }

  [[noreturn]] static void wrong(WeightRole role, int layer, int64_t expected,
                                 const std::string& got) {
    refuse("vector of role " + std::to_string(static_cast<int>(role)) + ", layer " +
           std::to_string(layer) + ": expected " + std::to_string(expected) + " numbers, got " +
           got);
  }

  const PlanHeader& header_;
  const WeightTable& table_;
};

}  // namespace monolane
