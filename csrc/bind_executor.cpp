// The executor as Python sees it. Every argument is checked here, so that the core below may trust
// what it is given; weights stay alive as long as an executor reads them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "executor.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace monolane {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// What an executor reads, and the Python objects that own it.
struct WeightTable {
  ModelWeights weights;
  std::map<std::pair<int, int>, std::vector<nb::object>> owners;  // by role and layer

  explicit WeightTable(int layers) { weights.layers.resize(layers); }

  LayerWeights& layer(int index) {
    if (index < 0 || index >= static_cast<int>(weights.layers.size())) {
      refuse("layer: expected 0 to " + std::to_string(weights.layers.size() - 1) + ", got " +
             std::to_string(index));
    }
    return weights.layers[index];
  }

  const float*& vector(WeightRole role, int index) {
    switch (role) {
      case WeightRole::kFinalNorm:
        return weights.final_norm;
      case WeightRole::kNone:
        return weights.frequencies;
      case WeightRole::kAttentionNorm:
        return layer(index).attention_norm;
      case WeightRole::kMlpNorm:
        return layer(index).mlp_norm;
      case WeightRole::kQBias:
        return layer(index).q_bias;
      case WeightRole::kKBias:
        return layer(index).k_bias;
      case WeightRole::kVBias:
        return layer(index).v_bias;
      default:
        refuse("role: expected that of a norm, a bias or the frequencies");
    }
  }

  void set_matrix(int role, int index, nb::object values, nb::object scales, int64_t rows,
                  int64_t columns, int format, int wanted) {
    const Format stored = format_of(format), used = format_of(wanted);
    const auto grouped = [](Format f) { return f == Format::kI8 || f == Format::kI4; };
    const Bytes data = nb::cast<Bytes>(values);
    if (rows < 1 || columns < 1 || ((grouped(stored) || grouped(used)) && columns % kGroup != 0)) {
      refuse("columns: integer formats need a multiple of 32, got " + std::to_string(columns));
    }
    if (static_cast<int64_t>(data.nbytes()) != rows * row_bytes(stored, columns)) {
      refuse("values: expected " + std::to_string(rows * row_bytes(stored, columns)) +
             " bytes, got " + std::to_string(data.nbytes()));
    }
    const uint16_t* scale = nullptr;
    if (grouped(stored)) {
      const Bytes bytes = nb::cast<Bytes>(scales);
      if (static_cast<int64_t>(bytes.nbytes()) != rows * columns / kGroup * 2) {
        refuse("scales: expected " + std::to_string(rows * columns / kGroup * 2) + " bytes, got " +
               std::to_string(bytes.nbytes()));
      }
      scale = reinterpret_cast<const uint16_t*>(bytes.data());
    }
    const Matrix matrix{data.data(), scale, rows, columns, stored};
    if (static_cast<WeightRole>(role) == WeightRole::kEmbedding) {
      weights.embedding = matrix;
    } else {
      if (static_cast<WeightRole>(role) != WeightRole::kHead) layer(index);
      weights.weight(static_cast<WeightRole>(role), index) = {matrix, used};
    }
    owners[{role, index}] = {values, scales};
  }

  static Format format_of(int format) {
    if (format < 0 || format > 4) refuse("format: expected 0 to 4, got " + std::to_string(format));
    return static_cast<Format>(format);
  }

  void set_vector(int role, int index, nb::object values) {
    vector(static_cast<WeightRole>(role), index) = nb::cast<Floats>(values).data();
    owners[{role, index}] = {values};
  }
};

template <typename T>
std::vector<T> structs(const nb::bytes& bytes, const char* name) {
  if (bytes.size() % sizeof(T) != 0) {
    refuse(std::string(name) + ": the plan was laid out for another version of the core");
  }
  std::vector<T> found(bytes.size() / sizeof(T));
  std::memcpy(static_cast<void*>(found.data()), bytes.c_str(), bytes.size());
  return found;
}

Plan plan_of(const nb::bytes& header, const nb::bytes& phases, const nb::bytes& shares) {
  const std::vector<PlanHeader> headers = structs<PlanHeader>(header, "header");
  if (headers.size() != 1) refuse("header: expected one PlanHeader");
  return {headers[0], structs<PlanPhase>(phases, "phases"), structs<PlanShare>(shares, "shares")};
}

const Kernels& kernels_named(const std::string& name) {
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kNeon}) {
    if (name == isa_name(isa)) return select_kernels(isa);
  }
  refuse("isa: expected one of kernels.supported(), got " + name);
}

// One event for Python: (slot, token, time_ns, logprob or None, [(token, logprob), ...]).
nb::tuple event_tuple(const TokenEvent& event) {
  nb::list top;
  for (int i = 0; i < event.top_count; ++i) {
    top.append(nb::make_tuple(event.top_token[i], event.top_logprob[i]));
  }
  nb::object logprob = event.logprob == event.logprob ? nb::cast(event.logprob) : nb::none();
  return nb::make_tuple(event.slot, event.token, event.time_ns, logprob, nb::tuple(top));
}

// slot, tokens, budget, temperature, top_k, top_p, min_p, seed, stop ids, logprobs or -1, biases,
// guided
using AdvanceTuple =
    std::tuple<int, std::vector<int32_t>, int, float, int, double, double, uint64_t,
               std::vector<int32_t>, int, std::vector<std::tuple<int32_t, float>>, bool>;

Advance advance_of(const AdvanceTuple& a) {
  std::vector<LogitBias> bias;
  for (const auto& [token, value] : std::get<10>(a)) bias.push_back({token, value});
  return {.slot = std::get<0>(a),
          .tokens = std::get<1>(a),
          .budget = std::get<2>(a),
          .draw = {std::get<3>(a), std::get<4>(a), std::get<5>(a), std::get<6>(a), std::get<7>(a),
                   std::move(bias)},
          .stop_ids = std::get<8>(a),
          .logprobs = std::get<9>(a),
          .guided = std::get<11>(a)};
}

// An executor and what it reads.
struct BoundExecutor {
  nb::object table;
  int32_t vocab;
  Executor executor;

  BoundExecutor(const nb::bytes& header, const nb::bytes& phases, const nb::bytes& shares,
                nb::object weights, const std::string& isa, int activation, int kv_format,
                int slots, const std::vector<int>& cores)
      : table(weights),
        vocab(plan_of(header, phases, shares).header.vocab),
        executor(plan_of(header, phases, shares), nb::cast<WeightTable&>(weights).weights,
                 kernels_named(isa), static_cast<Activation>(activation),
                 static_cast<Format>(kv_format), slots, cores) {}

  void convert(int64_t phase, int64_t matrix) {
    if (!executor.converts(phase, matrix)) return;
    {
      nb::gil_scoped_release unlocked;
      executor.convert(phase, matrix);
    }
    const PlanPhase& of = executor.plan().phases[phase];
    const int role = static_cast<int>(of.matrices[matrix].role);
    nb::cast<WeightTable&>(table).owners.erase({role, std::max(of.layer, 0)});
  }
};

}  // namespace

void bind_executor(nb::module_& m) {
  nb::class_<WeightTable>(m, "WeightTable",
                          "Where an executor finds each weight; keeps them alive.")
      .def(nb::init<int>(), "layers"_a)
      .def("set_matrix", &WeightTable::set_matrix, "role"_a, "layer"_a, "values"_a,
           "scales"_a.none(), "rows"_a, "columns"_a, "format"_a, "wanted"_a)
      .def("set_vector", &WeightTable::set_vector, "role"_a, "layer"_a, "values"_a);

  nb::class_<BoundExecutor>(m, "Executor", "Runs a plan on the cores of this machine.")
      .def(nb::init<const nb::bytes&, const nb::bytes&, const nb::bytes&, nb::object,
                    const std::string&, int, int, int, const std::vector<int>&>(),
           "header"_a, "phases"_a, "shares"_a, "weights"_a, "isa"_a, "activation"_a, "kv_format"_a,
           "slots"_a, "cores"_a)
      .def("convert", &BoundExecutor::convert, "phase"_a, "matrix"_a,
           "Have the workers make their copies of a phase's matrix, if it is stored in another "
           "format than it is multiplied in; for each matrix, before the first epoch. What "
           "set_matrix was given for it is not read again.")
      .def(
          "length", [](const BoundExecutor& e, int slot) { return e.executor.length(slot); },
          "slot"_a)
      .def(
          "truncate",
          [](BoundExecutor& e, int slot, int64_t length) { e.executor.truncate(slot, length); },
          "slot"_a, "length"_a)
      .def(
          "logits",
          [](BoundExecutor& e, int slot, const std::vector<int32_t>& tokens) {
            float* out = new float[tokens.size() * e.vocab];
            nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
            {
              nb::gil_scoped_release unlocked;
              e.executor.logits(slot, tokens, out);
            }
            return nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>(
                out, {tokens.size(), static_cast<size_t>(e.vocab)}, owner);
          },
          "slot"_a, "tokens"_a, "Feed tokens; return their logits, float32 [T, V].")
      .def(
          "start",
          [](BoundExecutor& e, const std::vector<AdvanceTuple>& advances) {
            std::vector<Advance> converted;
            for (const AdvanceTuple& a : advances) converted.push_back(advance_of(a));
            e.executor.start(std::move(converted));
          },
          "advances"_a,
          "Begin an epoch: (slot, tokens, budget, temperature, top_k, top_p, min_p, seed, stop "
          "ids, logprobs or -1, [(token, bias), ...], guided) for each slot.")
      .def(
          "guide",
          [](BoundExecutor& e, int slot, std::vector<int32_t> forced,
             const std::optional<Words>& mask) {
            Guide guide{std::move(forced), {}};
            if (mask) guide.mask.assign(mask->data(), mask->data() + mask->size());
            e.executor.guide(slot, std::move(guide));
          },
          "slot"_a, "forced"_a, "mask"_a.none(),
          "Say what comes next in a guided slot: tokens that are given, then a draw under a mask, "
          "uint32 [ceil(V / 32)], bit t % 32 of word t / 32 for token t; None: the answer ends.")
      .def(
          "read",
          [](BoundExecutor& e, int milliseconds, nb::list into) {
            std::vector<TokenEvent> events;
            bool over;
            {
              nb::gil_scoped_release unlocked;
              over = e.executor.read(events, milliseconds);
            }
            for (const TokenEvent& event : events) into.append(event_tuple(event));
            return over;
          },
          "milliseconds"_a, "into"_a,
          "Wait for tokens and append them, (slot, token, time_ns, logprob or None, top), to a "
          "list; return whether the epoch is over.")
      .def(
          "interrupt", [](BoundExecutor& e) { e.executor.interrupt(); },
          "Ask the epoch to end within one pass; read it to its end.")
      .def(
          "set_trace", [](BoundExecutor& e, bool on) { e.executor.set_trace(on); }, "on"_a)
      .def(
          "take_spans",
          [](BoundExecutor& e) {
            nb::list spans;
            for (const Span& s : e.executor.take_spans()) {
              spans.append(
                  nb::make_tuple(s.worker, s.phase, s.width, s.arrived_ns, s.begun_ns, s.ended_ns));
            }
            return spans;
          },
          "Return and forget (worker, phase, width, arrived, begun, ended) of the traced epochs.")
      .def_prop_ro("kv_bytes", [](const BoundExecutor& e) { return e.executor.kv_bytes(); })
      .def_prop_ro("converted_bytes",
                   [](const BoundExecutor& e) { return e.executor.converted_bytes(); });
}

}  // namespace monolane
