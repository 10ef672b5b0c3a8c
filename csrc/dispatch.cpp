// Which set of kernels this machine runs. Asked once and explicitly, not through ifuncs or function
// multiversioning: a test must be able to force every set, and a user to see which one is in use.
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace monolane {

#define MONOLANE_DECLARE(isa)    \
  namespace isa {                \
  extern const Kernels kKernels; \
  }
MONOLANE_DECLARE(portable)
#if defined(__x86_64__)
MONOLANE_DECLARE(avx2)
MONOLANE_DECLARE(avx512)
MONOLANE_DECLARE(avx512bf16)
#elif defined(__aarch64__)
MONOLANE_DECLARE(neon)
#endif

namespace {

constexpr Isa kAll[] = {Isa::kPortable, Isa::kNeon, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

#if defined(__x86_64__)
// The builtin also asks the operating system whether it saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

// The table of a set, or null if this build or this machine lacks it.
const Kernels* find(Isa isa) {
  if (isa == Isa::kPortable) return &portable::kKernels;
#if defined(__x86_64__)
  if (isa == Isa::kAvx2 && has_avx2()) return &avx2::kKernels;
  if (isa == Isa::kAvx512 && has_avx512()) return &avx512::kKernels;
  if (isa == Isa::kAvx512Bf16 && has_avx512() && __builtin_cpu_supports("avx512bf16")) {
    return &avx512bf16::kKernels;
  }
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return &neon::kKernels;
#endif
  return nullptr;
}

}  // namespace

bool supported(Isa isa) { return find(isa) != nullptr; }

Isa best_isa() {
  Isa best = Isa::kPortable;
  for (const Isa isa : kAll) {
    if (supported(isa)) best = isa;
  }
  return best;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

const Kernels& select_kernels(Isa isa) {
  if (const Kernels* found = find(isa)) return *found;
  std::string names;
  for (const Isa each : kAll) {
    if (supported(each)) names += std::string(names.empty() ? "" : ", ") + isa_name(each);
  }
  throw std::invalid_argument(
      std::string("expected an instruction set of this machine and build (") + names + "), got " +
      isa_name(isa));
}

}  // namespace monolane
