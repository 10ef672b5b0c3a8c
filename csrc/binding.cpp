// The native module: every function that Python sees is declared here or in a bind_*.cpp, with its
// types and shapes in the signature, so that nanobind validates the call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "gumbel.h"

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
  monolane::bind_kernels(m);
  monolane::bind_executor(m);
  monolane::bind_drafter(m);
}
