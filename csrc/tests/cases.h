// The models and plans of write_cases.py, which describes the file, and a model's weights as
// stored.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "blobs.h"
#include "expect.h"
#include "run/executor.h"

namespace monolane {

struct Tensor {
  int32_t columns;
  std::vector<float> values;
};

struct Tensors {
  std::vector<float> frequencies[kPlanRotaries], final_norm;
  Tensor embedding, head;
  std::vector<std::map<WeightRole, Tensor>> layers;  // the first: what layers share
};

struct NamedPlan {
  std::string dtype;
  bool every_set;    // of instructions that this machine and this build have
  bool batch_alone;  // and its conversion: another plan of the model has all else
  Plan plan;
};

struct Arithmetic {
  Format weights;
  Activation activation;
  Format kv;
};

inline Arithmetic arithmetic_of(const std::string& dtype) {
  if (dtype == "float32") return {Format::kF32, Activation::kF32, Format::kF32};
  if (dtype == "bfloat16") return {Format::kBf16, Activation::kBf16, Format::kBf16};
  if (dtype == "int8") return {Format::kI8, Activation::kI8, Format::kBf16};
  EXPECT(dtype == "int4");
  return {Format::kI4, Activation::kI8, Format::kBf16};
}

// In which matrices of a format are multiplied.
inline Format used_of(Format format) { return is_repacked(format) ? repacked_of(format) : format; }

inline Tensors read_tensors(Blobs& blobs) {
  Tensors t;
  const std::vector<int32_t> counts = blobs.next<int32_t>();  // of what layers share, of each layer
  for (std::vector<float>& frequencies : t.frequencies) frequencies = blobs.next<float>();
  t.final_norm = blobs.next<float>();
  const auto tensor = [&] {
    const int32_t columns = static_cast<int32_t>(blobs.number());
    return Tensor{columns, blobs.next<float>()};
  };
  t.embedding = tensor();
  t.head = tensor();
  for (const int32_t tensors : counts) {
    std::map<WeightRole, Tensor>& layer = t.layers.emplace_back();
    for (int32_t j = 0; j < tensors; ++j) {
      const auto role = static_cast<WeightRole>(blobs.number());
      layer.emplace(role, tensor());
    }
  }
  return t;
}

inline NamedPlan read_plan(Blobs& blobs) {
  const std::vector<char> dtype = blobs.next<char>();
  const bool every_set = blobs.number() != 0;
  const bool batch_alone = blobs.number() != 0;
  Plan plan;
  plan.header = blobs.next<PlanHeader>().at(0);
  plan.modules = blobs.next<PlanModule>();
  plan.phases = blobs.next<PlanPhase>();
  plan.shares = blobs.next<PlanShare>();
  return {std::string(dtype.begin(), dtype.end()), every_set, batch_alone, plan};
}

// A model's weights in one format, in buffers exactly as long as they need be, to be used in one.
class StoredWeights {
 public:
  StoredWeights(const Tensors& t, Format format, Format used, bool cut)
      : format_(format), used_(used), cut_(cut) {
    table.embedding = store(t.embedding.values, t.embedding.columns, Format::kF32);
    table.outer = layer(t, 0);
    table.outer.set_matrix(WeightRole::kHead, 0,
                           {store(t.head.values, t.head.columns, format), used});
    table.outer.set_vector(WeightRole::kFinalNorm, t.final_norm.data());
    for (int i = 0; i < kPlanRotaries; ++i) {
      table.frequencies[i] = t.frequencies[i].empty() ? nullptr : t.frequencies[i].data();
    }
    for (size_t i = 1; i < t.layers.size(); ++i) table.layers.push_back(layer(t, i));
  }

  ModelWeights table;

 private:
  // Matrices are given as such and as vectors: the executor asks for what it needs. Of experts
  // there are as many as the router has rows.
  WeightsByRole layer(const Tensors& t, size_t index) {
    const std::map<WeightRole, Tensor>& tensors = t.layers[index];
    const auto router = tensors.find(WeightRole::kRouter);
    const size_t experts = router == tensors.end() ? 1 : rows_of(router->second);
    WeightsByRole w;
    for (const auto& [role, tensor] : tensors) {
      w.set_vector(role, tensor.values.data());
      if (is_coded(format_) && tensor.columns % kGroup != 0) continue;
      const bool floats = role == WeightRole::kRouter || role == WeightRole::kDeltaGates ||
                          role == WeightRole::kPerLayerEmbedding;
      const bool of_each = role == WeightRole::kExpertGate || role == WeightRole::kExpertUp ||
                           role == WeightRole::kExpertDown;
      const int64_t missing = role == WeightRole::kUp && cut_ && index == 1 ? 1 : 0;
      const size_t count = of_each ? experts : 1, size = tensor.values.size() / count;
      for (size_t e = 0; e < count; ++e) {
        const auto begin = tensor.values.begin() + static_cast<std::ptrdiff_t>(e * size);
        const std::vector<float> one(begin, begin + static_cast<std::ptrdiff_t>(size));
        const Format format = floats ? Format::kF32 : format_;
        w.set_matrix(role, static_cast<int64_t>(e),
                     {store(one, tensor.columns, format, missing), floats ? format : used_});
      }
    }
    return w;
  }

  static size_t rows_of(const Tensor& x) {
    return x.values.size() / static_cast<size_t>(x.columns);
  }

  // `missing`: rows that the buffer lacks although the matrix claims them.
  Matrix store(const std::vector<float>& x, int64_t columns, Format format, int64_t missing = 0) {
    const int64_t rows = static_cast<int64_t>(x.size()) / columns, kept = rows - missing;
    auto& values = values_.emplace_back(new uint8_t[kept * row_bytes(format, columns)]);
    Matrix matrix{values.get(), nullptr, rows, columns, format};
    if (format == Format::kF32) {
      std::memcpy(values.get(), x.data(), kept * columns * 4);
    } else if (format == Format::kBf16) {
      for (int64_t i = 0; i < kept * columns; ++i) {  // cut off: the upper half of a float
        std::memcpy(values.get() + 2 * i, reinterpret_cast<const char*>(&x[i]) + 2, 2);
      }
    } else {
      auto& scales = scales_.emplace_back(new uint16_t[rows * columns / kGroup]);
      quantize_rows(format, Format::kF32, x.data(), kept, columns, values.get(), scales.get());
      matrix.scales = scales.get();
    }
    return matrix;
  }

  Format format_, used_;
  bool cut_;
  std::vector<std::unique_ptr<uint8_t[]>> values_;
  std::vector<std::unique_ptr<uint16_t[]>> scales_;
};

}  // namespace monolane
