// monolane._core.kernels: the kernels one by one, for tests and benchmarks; the executor calls them
// from C++. Every function takes the instruction set by name, and every size is checked here,
// because the kernels themselves trust their callers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/matrix_unit.h"

namespace nb = nanobind;

namespace monolane {
namespace {

template <class T, class... Options>
using Array = nb::ndarray<nb::numpy, T, nb::c_contig, nb::device::cpu, Options...>;
using Floats1 = Array<const float, nb::ndim<1>>;
using Floats2 = Array<const float, nb::ndim<2>>;
using Bytes = Array<const uint8_t, nb::ndim<2>>;    // rows of any format, as they lie in memory
using Scales = Array<const uint16_t, nb::ndim<2>>;  // float16 bits

void expect(bool met, const std::string& expected, int64_t got) {
  if (!met) {
    throw nb::value_error(("expected " + expected + ", got " + std::to_string(got)).c_str());
  }
}

Format format_of(const std::string& name) {
  std::string names;
  for (int32_t code = 0; code < static_cast<int32_t>(std::size(kFormats)); ++code) {
    if (!kFormats[code].on_cpu) continue;
    if (name == kFormats[code].name) return static_cast<Format>(code);
    names += std::string(names.empty() ? "" : ", ") + kFormats[code].name;
  }
  throw nb::value_error(("expected one of " + names + ", got " + name).c_str());
}

Format float_format_of(const std::string& name) {
  const Format format = format_of(name);
  if (is_coded(format)) {
    throw nb::value_error(("expected f32, bf16 or f16, got " + name).c_str());
  }
  return format;
}

Format cache_format_of(const std::string& name) {
  const Format format = format_of(name);
  if (!is_cached(format)) {
    throw nb::value_error(("expected f32, bf16, f16, q8_0 or q4_0, got " + name).c_str());
  }
  return format;
}

Activation activation_of(const std::string& name) {
  if (name == "f32") return Activation::kF32;
  if (name == "bf16") return Activation::kBf16;
  if (name == "i8") return Activation::kI8;
  throw nb::value_error(("expected f32, bf16 or i8, got " + name).c_str());
}

// Rows of a format with K columns, each exactly as long as K says, and their scales; or panels of
// rows.
Matrix matrix_of(const std::string& format, const Bytes& values,
                 const std::optional<Scales>& scales, int64_t cols) {
  const Format f = format_of(format);
  const int64_t together = is_panels(f) ? kPanelRows : 1;
  const auto rows = static_cast<int64_t>(values.shape(0)) * together;
  const int64_t bytes = together * row_bytes(f, cols);
  const bool groups = scales_apart(f);
  expect(cols >= 1, "K >= 1", cols);
  expect(cols % column_step(f) == 0,
         "K a multiple of " + std::to_string(column_step(f)) + " for " + format, cols);
  expect(static_cast<int64_t>(values.shape(1)) == bytes,
         (is_panels(f) ? "panels of " : "rows of ") + std::to_string(bytes) + " bytes",
         static_cast<int64_t>(values.shape(1)));
  if (groups != scales.has_value()) {
    throw nb::value_error(groups ? "expected scales [R, K / 32] for i8 and i4, got None"
                                 : "expected scales only for i8 and i4");
  }
  if (groups) {
    expect(static_cast<int64_t>(scales->shape(0)) == rows, "scales of as many rows as values",
           static_cast<int64_t>(scales->shape(0)));
    expect(static_cast<int64_t>(scales->shape(1)) == cols / kGroup, "K / 32 scales in a row",
           static_cast<int64_t>(scales->shape(1)));
  }
  return {values.data(), groups ? scales->data() : nullptr, rows, cols, f};
}

// A new array that owns its memory.
template <class T, class... Sizes>
auto make(Sizes... sizes) {
  const size_t shape[] = {static_cast<size_t>(sizes)...};
  size_t count = 1;
  for (const size_t size : shape) count *= size;
  // As the kernels want panels of weights.
  constexpr std::align_val_t kAlignment{64};
  const size_t bytes = (count ? count : 1) * sizeof(T);
  T* data = static_cast<T*>(::operator new(bytes, kAlignment));
  std::memset(data, 0, bytes);
  nb::capsule owner(data, [](void* p) noexcept { ::operator delete(p, kAlignment); });
  return Array<T, nb::ndim<sizeof...(sizes)>>(data, sizeof...(sizes), shape, owner);
}

struct Aligned {
  void* data;
  explicit Aligned(int64_t bytes)
      : data(::operator new(static_cast<size_t>(bytes), std::align_val_t{64})) {}
  ~Aligned() { ::operator delete(data, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
};

Array<float, nb::ndim<1>> add_matrix_products(const Array<const uint16_t, nb::ndim<2>>& rows,
                                              const Array<const uint16_t, nb::ndim<2>>& columns,
                                              const std::optional<Floats1>& before, bool half) {
  const auto count = static_cast<int64_t>(rows.shape(0)),
             width = static_cast<int64_t>(rows.shape(1));
  const auto other = static_cast<int64_t>(columns.shape(0));
  expect(static_cast<int64_t>(columns.shape(1)) == width, "columns of as many numbers as rows",
         static_cast<int64_t>(columns.shape(1)));
  expect(other == count || other == 1, "as many columns as rows, or one", other);
  auto sums = make<float>(count);
  if (before) {
    expect(static_cast<int64_t>(before->shape(0)) == count, "a sum of each row",
           static_cast<int64_t>(before->shape(0)));
    std::memcpy(sums.data(), before->data(), static_cast<size_t>(count) * sizeof(float));
  }
  nb::gil_scoped_release unlocked;
  add_products({rows.data(), columns.data(), other != count, half}, count, width, sums.data());
  return sums;
}

std::vector<std::string> supported_names(std::span<const Isa> isas) {
  std::vector<std::string> names;
  for (const Isa isa : isas) {
    if (supported(isa)) names.emplace_back(isa_name(isa));
  }
  return names;
}

int64_t dots_of(const std::string& isa) {
  for (const Isa each : kEmulatedIsas) {
    if (isa == isa_name(each)) return emulated_dots(each);
  }
  throw nb::value_error(("expected one of emulated(), got " + isa).c_str());
}

Array<float, nb::ndim<2>> multiply(const std::string& isa, const std::string& format,
                                   const Bytes& values, const std::optional<Scales>& scales,
                                   const std::string& activation, const Floats2& x,
                                   int64_t row_begin, int64_t row_end) {
  const Kernels& k = select_kernels(isa);
  const auto width = static_cast<int64_t>(x.shape(0));
  const auto cols = static_cast<int64_t>(x.shape(1));
  const Matrix w = matrix_of(format, values, scales, cols);
  const Activation kind = activation_of(activation);
  expect(width >= 1 && width <= kMaxWidth, "1 to 96 tokens", width);
  expect(0 <= row_begin && row_begin <= row_end, "0 <= row_begin <= row_end", row_begin);
  expect(row_end <= w.rows, "row_end <= " + std::to_string(w.rows), row_end);
  if (!accepts(w.format, kind)) {
    throw nb::value_error(
        ("expected f32 activations for f32, bf16 or f16, bf16 for bf16, i8 for codes; got " +
         activation + " for " + format)
            .c_str());
  }
  auto y = make<float>(width, row_end - row_begin);
  nb::gil_scoped_release unlocked;
  const Aligned packed(k.packed_bytes(kind, cols) * width);
  k.pack(kind, x.data(), cols, width, packed.data);
  k.multiply(w, row_begin, row_end, kind, packed.data, width, y.data(), row_end - row_begin);
  return y;
}

nb::tuple quantize(const std::string& to, const std::string& from, const Bytes& values) {
  const Format target = format_of(to);
  const Format source = float_format_of(from);
  if (!scales_apart(target)) throw nb::value_error(("expected i8 or i4, got " + to).c_str());
  const auto rows = static_cast<int64_t>(values.shape(0));
  const auto bytes = static_cast<int64_t>(values.shape(1));
  const int64_t cols = bytes / row_bytes(source, 1);
  expect(bytes == row_bytes(source, cols) && cols % kGroup == 0, "K a multiple of 32", cols);
  auto codes = make<uint8_t>(rows, row_bytes(target, cols));
  auto scales = make<uint16_t>(rows, cols / kGroup);
  quantize_rows(target, source, values.data(), rows, cols, codes.data(), scales.data());
  return nb::make_tuple(codes, scales);
}

nb::tuple repack(const std::string& from, const Bytes& values, const std::optional<Scales>& scales,
                 int64_t cols) {
  const Matrix w = matrix_of(from, values, scales, cols);
  if (!is_repacked(w.format)) throw nb::value_error(("expected codes, got " + from).c_str());
  const Format to = repacked_of(w.format);
  const int64_t bytes = kPanelRows * row_bytes(to, cols);
  auto panels = make<uint8_t>((w.rows + kPanelRows - 1) / kPanelRows, bytes);
  {
    nb::gil_scoped_release unlocked;
    repack_rows(w, panels.data());
  }
  return nb::make_tuple(row_of(to).name, panels);
}

Array<float, nb::ndim<2>> rms_norm(const std::string& isa, const Floats2& x, const Floats1& scale,
                                   float eps) {
  const auto width = static_cast<int64_t>(x.shape(0));
  const auto cols = static_cast<int64_t>(x.shape(1));
  expect(static_cast<int64_t>(scale.shape(0)) == cols, "as many scales as columns",
         static_cast<int64_t>(scale.shape(0)));
  auto out = make<float>(width, cols);
  select_kernels(isa).rms_norm(x.data(), cols, scale.data(), eps, cols, width, out.data(), cols);
  return out;
}

Array<float, nb::ndim<1>> gate_times(const Floats1& gate, const Floats1& up,
                                     decltype(Kernels::silu_times) times) {
  const auto count = static_cast<int64_t>(gate.shape(0));
  expect(static_cast<int64_t>(up.shape(0)) == count, "as many ups as gates",
         static_cast<int64_t>(up.shape(0)));
  auto out = make<float>(count);
  times(gate.data(), up.data(), count, out.data());
  return out;
}

Array<float, nb::ndim<1>> silu_times(const std::string& isa, const Floats1& gate,
                                     const Floats1& up) {
  return gate_times(gate, up, select_kernels(isa).silu_times);
}

Array<float, nb::ndim<1>> sigmoid_times(const std::string& isa, const Floats1& gate,
                                        const Floats1& up) {
  return gate_times(gate, up, select_kernels(isa).sigmoid_times);
}

Array<float, nb::ndim<1>> gelu_tanh_times(const std::string& isa, const Floats1& gate,
                                          const Floats1& up) {
  return gate_times(gate, up, select_kernels(isa).gelu_tanh_times);
}

Array<float, nb::ndim<1>> clamped_swiglu(const std::string& isa, const Floats1& gate,
                                         const Floats1& up) {
  return gate_times(gate, up, select_kernels(isa).clamped_swiglu);
}

Array<float, nb::ndim<2>> attend(const std::string& isa, const Floats2& q,
                                 const std::string& format, const Bytes& keys, const Bytes& values,
                                 float scale, std::vector<int64_t> counts, float cap) {
  const Kernels& k = select_kernels(isa);
  const Format kv = cache_format_of(format);
  const auto queries = static_cast<int64_t>(q.shape(0));
  const auto head_dim = static_cast<int64_t>(q.shape(1));
  const auto count = static_cast<int64_t>(keys.shape(0));
  const auto row = static_cast<int64_t>(keys.shape(1));
  const int64_t block = column_step(kv), stride = row / row_bytes(kv, block) * block;
  expect(head_dim >= 1 && head_dim <= kMaxHeadDim, "1 to 1024 head dimensions", head_dim);
  expect(head_dim % block == 0, "head dimensions in whole blocks of " + std::to_string(block),
         head_dim);
  expect(count >= 1, "at least one key", count);
  expect(row == row_bytes(kv, stride) && stride >= head_dim, "key rows of whole heads, in bytes",
         row);
  expect(static_cast<int64_t>(values.shape(0)) == count, "as many values as keys",
         static_cast<int64_t>(values.shape(0)));
  expect(static_cast<int64_t>(values.shape(1)) == row, "value rows as long as key rows",
         static_cast<int64_t>(values.shape(1)));
  if (counts.empty()) counts.push_back(count);
  const auto tokens = static_cast<int64_t>(counts.size()), heads = queries / tokens;
  expect(heads >= 1 && heads * tokens == queries, "queries of as many tokens as there are counts",
         queries);
  for (const int64_t seen : counts) {
    expect(1 <= seen && seen <= count, "counts of 1 to all keys", seen);
  }
  auto partial = make<float>(queries, head_dim + 2);
  std::vector<float> scores(static_cast<size_t>(kAttendQueries * scores_of(count)));
  k.attend({q.data(), tokens, heads, heads * head_dim, counts.data(), cap}, keys.data(),
           values.data(), kv, stride, head_dim, scale, nullptr, scores.data(), partial.data());
  return partial;
}

Array<uint8_t, nb::ndim<1>> store_kv(const std::string& isa, const Floats1& x,
                                     const std::string& format) {
  const Format kv = cache_format_of(format);
  const auto count = static_cast<int64_t>(x.shape(0));
  expect(count % column_step(kv) == 0, "whole blocks of numbers", count);
  auto out = make<uint8_t>(row_bytes(kv, count));
  select_kernels(isa).store_kv(x.data(), count, kv, out.data());
  return out;
}

Array<float, nb::ndim<1>> add(const std::string& isa, const Floats1& a, const Floats1& b) {
  const auto count = static_cast<int64_t>(a.shape(0));
  expect(static_cast<int64_t>(b.shape(0)) == count, "two arrays of one size",
         static_cast<int64_t>(b.shape(0)));
  auto out = make<float>(count);
  select_kernels(isa).add(a.data(), b.data(), count, out.data());
  return out;
}

Array<float, nb::ndim<1>> widen(const std::string& isa, const std::string& format,
                                const Bytes& values, const std::optional<Scales>& scales,
                                int64_t cols, int64_t row) {
  const Matrix w = matrix_of(format, values, scales, cols);
  expect(0 <= row && row < w.rows, "a row below " + std::to_string(w.rows), row);
  auto out = make<float>(cols);
  select_kernels(isa).widen(w, row, out.data());
  return out;
}

float read(const std::string& isa, const Bytes& data) {
  const auto bytes = static_cast<int64_t>(data.size());
  expect(bytes % 512 == 0, "a multiple of 512 bytes", bytes);
  const Kernels& k = select_kernels(isa);
  nb::gil_scoped_release unlocked;
  return k.read(data.data(), bytes);
}

nb::tuple multiply_registers(const std::string& isa, int64_t rounds) {
  expect(rounds >= 1, "one round or more", rounds);
  const Kernels& k = select_kernels(isa);
  float sum = 0.0f;
  int64_t operations = 0;
  {
    nb::gil_scoped_release unlocked;
    operations = k.multiply_registers(rounds, &sum);
  }
  return nb::make_tuple(operations, sum);
}

}  // namespace

void bind_kernels(nb::module_& parent) {
  using nb::arg;
  nb::module_ m = parent.def_submodule(
      "kernels",
      "The CPU kernels one by one, for tests and benchmarks. `isa` names an instruction set of "
      "supported() or emulated(); formats are the short names of monolane.model's table; rows of "
      "weights are "
      "uint8 [R, bytes], panels of 16 rows uint8 [R / 16, bytes], scales float16 bits [R, K / "
      "32].");
  m.def(
      "supported", [] { return supported_names(kNativeIsas); },
      "Names of the instruction sets of this machine and build.");
  m.def(
      "emulated", [] { return supported_names(kEmulatedIsas); },
      "Names of the sets whose tiles are emulated: slow, for tests, never chosen by default.");
  m.def("emulated_dots", &dots_of, arg("isa"),
        "How many products of tiles this thread had emulated by one of emulated().");
  m.def(
      "amx", [] { return nb::make_tuple(amx_state().present, amx_state().refusal); },
      "Whether the processor has AMX tiles, and why they are not used: empty where they are.");
  m.def(
      "wide_bf16", [](const std::string& isa) { return select_kernels(isa).wide_bf16; }, arg("isa"),
      "Whether passes of more than 64 tokens pay, where activations are bfloat16.");
  m.def("best", [] { return isa_name(best_isa()); }, "The set that the engine uses by default.");
  m.def("multiply", &multiply, arg("isa"), arg("format"), arg("values"), arg("scales").none(),
        arg("activation"), arg("x"), arg("row_begin"), arg("row_end"),
        "Pack x [T, K] and return its products with the rows, float32 [T, row_end - row_begin].");
  m.def("quantize", &quantize, arg("to"), arg("from_"), arg("values"),
        "Codes, uint8 [R, bytes], and scales, uint16 [R, K / 32], of float rows.");
  m.def("repack", &repack, arg("from_"), arg("values"), arg("scales").none(), arg("cols"),
        "What products read instead of rows of codes: the format, and panels of 16 rows, uint8 "
        "[ceil(R / 16), bytes].");
  m.def("rms_norm", &rms_norm, arg("isa"), arg("x"), arg("scale"), arg("eps"),
        "x [T, K] over the root of its mean square + eps, times scale [K].");
  m.def("silu_times", &silu_times, arg("isa"), arg("gate"), arg("up"),
        "gate / (1 + exp(-gate)) * up, each [N].");
  m.def("sigmoid_times", &sigmoid_times, arg("isa"), arg("gate"), arg("up"),
        "up / (1 + exp(-gate)), each [N].");
  m.def("gelu_tanh_times", &gelu_tanh_times, arg("isa"), arg("gate"), arg("up"),
        "GELU of the gate, by its tanh formula, * up, each [N].");
  m.def("clamped_swiglu", &clamped_swiglu, arg("isa"), arg("gate"), arg("up"),
        "GPT-OSS's SwiGLU: g * sigmoid(1.702 g) * (u + 1), g at most 7 and u from -7 to 7.");
  m.def("attend", &attend, arg("isa"), arg("q"), arg("format"), arg("keys"), arg("values"),
        arg("scale"), arg("counts") = std::vector<int64_t>(), arg("cap") = 0.0f,
        "Heads q [H, h] over keys and values, uint8 [J, bytes]: for each the unnormalised sum, the "
        "peak score and the total weight, [H, h + 2]. `counts`: q is of as many tokens, one after "
        "the other, each of which sees so many of the first keys; without, of one that sees all.");
  m.def("store_kv", &store_kv, arg("isa"), arg("x"), arg("format"),
        "The bytes of x [N] in a cache format.");
  m.def("add_matrix_products", &add_matrix_products, arg("rows"), arg("columns"),
        arg("before").none(), arg("half"),
        "Products of rows [N, K] and columns [N, K] or [1, K], bits of float16 (`half`) or "
        "bfloat16, behind sums [N], as a GPU's matrix unit adds them: float32 [N].");
  m.def("add", &add, arg("isa"), arg("a"), arg("b"), "a + b, each [N].");
  m.def("widen", &widen, arg("isa"), arg("format"), arg("values"), arg("scales").none(),
        arg("cols"), arg("row"), "One row as float32 [K].");
  m.def("read", &read, arg("isa"), arg("data"),
        "Read data, a multiple of 512 bytes, and return its sum as floats: a bandwidth yardstick.");
  m.def("multiply_registers", &multiply_registers, arg("isa"), arg("rounds"),
        "Multiply and add registers alone, an arithmetic yardstick: how many operations that was, "
        "and "
        "a sum of their results.");
}

}  // namespace monolane
