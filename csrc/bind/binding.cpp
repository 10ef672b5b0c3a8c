// The native module: every function that Python sees is declared here or in a bind_*.cpp, with its
// types and shapes in the signature, so that nanobind validates the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "memory/file_faults.h"
#include "sample/gumbel.h"
#include "sample/sampler.h"

namespace nb = nanobind;

using Noise = nb::ndarray<nb::numpy, float, nb::shape<-1>, nb::c_contig>;

static Noise gumbel_noise(uint64_t seed, uint32_t position, uint32_t first_token, size_t count) {
  constexpr uint64_t tokens = uint64_t{1} << 32;
  if (count > tokens - first_token) {
    throw nb::value_error("expected first_token + count <= 2**32: token ids are 32-bit counters");
  }
  float* noise = new float[count];
  nb::capsule owner(noise, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  {
    nb::gil_scoped_release unlocked;
    monolane::fill_gumbel(seed, position, first_token, noise, count);
  }
  return Noise(noise, {count}, owner);
}

template <typename T>
using Row = nb::ndarray<nb::numpy, const T, nb::shape<-1>, nb::c_contig, nb::device::cpu>;

static int32_t choose(Row<float> logits, float temperature, uint32_t top_k, double top_p,
                      double min_p, uint64_t seed, uint32_t position,
                      std::optional<Row<uint32_t>> mask) {
  const auto vocab = static_cast<int32_t>(logits.shape(0));
  if (vocab == 0) throw nb::value_error("logits: expected one or more, got none");
  if (mask.has_value() && mask->shape(0) != static_cast<size_t>(monolane::mask_words(vocab))) {
    throw nb::value_error("mask: expected a bit for each logit, in words of 32");
  }
  monolane::Draw draw = monolane::kPlainDraw;
  draw.seed = seed;
  draw.temperature = temperature;
  draw.top_k = top_k;
  draw.top_p = top_p;
  draw.min_p = min_p;
  const uint32_t* bits = mask.has_value() ? mask->data() : nullptr;
  monolane::SamplerScratch scratch;
  const monolane::TokenCounts none;
  nb::gil_scoped_release unlocked;
  return monolane::choose(logits.data(), vocab, draw, {}, none, position, bits, scratch);
}

namespace monolane {
void bind_kernels(nb::module_& parent);
void bind_executor(nb::module_& parent);
void bind_drafter(nb::module_& parent);
}  // namespace monolane

NB_MODULE(_core, m) {
  m.doc() = "Native core of monolane.";
  m.def("gumbel_noise", &gumbel_noise, nb::arg("seed"), nb::arg("position"), nb::arg("first_token"),
        nb::arg("count"),
        "Gumbel noise, float32 [count], of the tokens first_token .. first_token + count - 1 at a "
        "position under a 64-bit seed. Defined in docs/sampling.md.");
  m.def("choose", &choose, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"),
        nb::arg("top_p"), nb::arg("min_p"), nb::arg("seed"), nb::arg("position"),
        nb::arg("mask").none() = nb::none(),
        "The token that executors draw from logits, float32 [V], as docs/sampling.md defines it. "
        "`mask`, uint32 [ceil(V / 32)]: bit t % 32 of word t / 32 says whether token t may come.");
  m.def(
      "tell_of_file_faults", &monolane::tell_of_file_faults,
      "From now on, have a read behind the end of a mapped file name the file and end the process "
      "with 1, unless the process has a handler of its own for SIGBUS.");
  monolane::bind_kernels(m);
  monolane::bind_executor(m);
  monolane::bind_drafter(m);
}
