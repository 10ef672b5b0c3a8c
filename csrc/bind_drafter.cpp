// The suffix drafter as Python sees it, for tests and benchmarks: the executor calls it directly.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <string>
#include <utility>

#include "suffix_drafter.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace monolane {
namespace {

using Tokens = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OwnTokens = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OwnChances = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const Tokens& checked(const Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens.data()[i] < 0) {
      const std::string got = std::to_string(tokens.data()[i]);
      throw nb::value_error(("tokens: expected ids of 0 or more, got " + got).c_str());
    }
  }
  return tokens;
}

template <typename T>
nb::capsule owner_of(T* values) {
  return nb::capsule(values, [](void* p) noexcept { delete[] static_cast<T*>(p); });
}

std::pair<OwnTokens, OwnChances> draft(const SuffixDrafter& drafter, size_t most) {
  if (most > (size_t{1} << 20)) throw nb::value_error("most: expected at most 2**20");
  auto* tokens = new int32_t[most];
  const nb::capsule owns_tokens = owner_of(tokens);
  auto* chances = new float[most];
  const nb::capsule owns_chances = owner_of(chances);
  const size_t count = drafter.draft(most, tokens, chances);
  return {OwnTokens(tokens, {count}, owns_tokens), OwnChances(chances, {count}, owns_chances)};
}

}  // namespace

void bind_drafter(nb::module_& m) {
  nb::class_<SuffixDrafter>(m, "SuffixDrafter",
                            "Guesses the next tokens from what followed the same ones before.")
      .def(nb::init<size_t>(), "max_tokens"_a,
           "Remember the newest max_tokens tokens, rounded up to a power of two.")
      .def(
          "append",
          [](SuffixDrafter& d, const Tokens& t) { d.append(checked(t).data(), t.size()); },
          "tokens"_a, "The text goes on with tokens that nobody drew, int32 [T].")
      .def(
          "observe",
          [](SuffixDrafter& d, const Tokens& t) { d.observe(checked(t).data(), t.size()); },
          "tokens"_a, "The text goes on with tokens that the model drew, int32 [T]: learn.")
      .def(
          "add_text",
          [](SuffixDrafter& d, const Tokens& t) { d.add_text(checked(t).data(), t.size()); },
          "tokens"_a, "Another text to copy from, int32 [T], before the first append.")
      .def("draft", &draft, "most"_a,
           "Return tokens that may come next, int32 [N], and of each the chance that it is drawn "
           "if those before it are, float32 [N].")
      .def("clear", &SuffixDrafter::clear, "Forget the texts, and keep the chances.")
      .def_prop_ro("length", &SuffixDrafter::length, "Tokens of the sequence, since clear.")
      .def_prop_ro("bytes", &SuffixDrafter::bytes, "Memory of the index.")
      .def_prop_ro("steps", &SuffixDrafter::steps, "Places and tokens looked at, ever.");
}

}  // namespace monolane
