// Which set of kernels this machine runs. Asked once and explicitly, not through ifuncs or function
// multiversioning: a test must be able to force every set, and a user to see which one is in use.
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"
#include "kernels/tile_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace monolane {

#define MONOLANE_DECLARE(isa)    \
  namespace isa {                \
  extern const Kernels kKernels; \
  }
#define MONOLANE_DECLARE_PAIRS(isa)      \
  namespace isa {                        \
  extern const PairKernels kPairKernels; \
  }
#define MONOLANE_DECLARE_TILES(isa)      \
  namespace isa {                        \
  extern const TileKernels kTileKernels; \
  }
#define MONOLANE_DECLARE_PANELS(isa)                  \
  namespace isa {                                     \
  extern const decltype(Kernels::multiply) kMultiply; \
  }
MONOLANE_DECLARE(portable)
MONOLANE_DECLARE_TILES(tiles_portable)
#if defined(__x86_64__)
MONOLANE_DECLARE(avx2)
MONOLANE_DECLARE(avx512)
MONOLANE_DECLARE_PAIRS(avx512bf16)
MONOLANE_DECLARE_TILES(amx)
MONOLANE_DECLARE_TILES(tiles_avx512)
#elif defined(__aarch64__)
MONOLANE_DECLARE(neon)
MONOLANE_DECLARE_PANELS(neon_dot)
MONOLANE_DECLARE_PANELS(neon_i8mm)
#endif

namespace {

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
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

// Not by the builtin: it asks nothing of the operating system about tiles.
bool has_tiles() {
  unsigned a, b, c, d;
  constexpr unsigned kWanted = 1u << 22 | 1u << 24 | 1u << 25;  // of bfloat16, tiles, of int8
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kWanted) == kWanted;
}

// Whether the operating system saves tiles and their shapes for each thread.
bool saves_tiles() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kShapes = 1u << 17, kTiles = 1u << 18;
  return (low & kShapes) != 0 && (low & kTiles) != 0;
}

// Linux keeps 8 KB a thread for tiles only of processes that ask for them; threads that there are
// already, and those to come, may then use them. Empty: granted.
std::string ask_for_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // <asm/prctl.h> of Linux 5.16
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return {};
  return std::string("the kernel refuses them: arch_prctl(ARCH_REQ_XCOMP_PERM): ") +
         std::strerror(errno);
#else
  return "they are asked for on Linux only";
#endif
}

AmxState find_amx() {
  if (!has_tiles()) return {false, "the processor has none"};
  if (!has_avx512bf16()) return {true, "there is no AVX-512 with BF16 beside them"};
  if (!saves_tiles()) return {true, "the operating system does not save them"};
  return {true, ask_for_tiles()};
}

#else
AmxState find_amx() { return {false, "the processor has none"}; }
#endif

#if defined(__aarch64__) && defined(__linux__)
// Processors with dots are ARMv8.2 or later, which the compiler may use beside them.
bool has_dots() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_i8mm() { return has_dots() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#elif defined(__aarch64__)
bool has_dots() { return false; }  // asked for on Linux only
bool has_i8mm() { return false; }
#endif

#if defined(__aarch64__)
Kernels with_panels(decltype(Kernels::multiply) multiply, Isa isa) {
  Kernels all = neon::kKernels;
  all.name = isa_name(isa);
  all.multiply = multiply;
  return all;
}
#endif

#if defined(__x86_64__)
Kernels with_pairs(const Kernels& base, const PairKernels& pairs, Isa isa) {
  Kernels all = base;
  all.name = isa_name(isa);
  all.packed_bytes = pairs.packed_bytes;
  all.pack = pairs.pack;
  all.multiply = pairs.multiply;
  return all;
}
#endif

Kernels with_tiles(const Kernels& base, const TileKernels& tiles, Isa isa) {
  Kernels all = base;
  all.name = isa_name(isa);
  all.wide_bf16 = true;
  all.packed_bytes = tiles.packed_bytes;
  all.pack = tiles.pack;
  all.multiply = tiles.multiply;
  all.attend = tiles.attend;
  return all;
}

// A table of one set's vectors, or null if this build left it out; and one with another's tiles.
const Kernels* built(const Kernels& table) { return table.name == nullptr ? nullptr : &table; }
const Kernels* built(const Kernels& table, const TileKernels& tiles) {
  return tiles.multiply == nullptr ? nullptr : built(table);
}

// The table of a set, or null if this build or this machine lacks it.
const Kernels* find(Isa isa) {
  if (isa == Isa::kPortable) return &portable::kKernels;
  if (isa == Isa::kTilesPortable) {
    static const Kernels table = with_tiles(portable::kKernels, tiles_portable::kTileKernels, isa);
    return built(table, tiles_portable::kTileKernels);
  }
#if defined(__x86_64__)
  if (isa == Isa::kAvx2 && has_avx2()) return built(avx2::kKernels);
  if (isa == Isa::kAvx512 && has_avx512()) return built(avx512::kKernels);
  if (isa == Isa::kAvx512Bf16 && avx512bf16::kPairKernels.multiply != nullptr && has_avx512bf16()) {
    static const Kernels table = with_pairs(avx512::kKernels, avx512bf16::kPairKernels, isa);
    return built(avx512::kKernels) == nullptr ? nullptr : &table;
  }
  if (isa == Isa::kAmx && built(avx512::kKernels, amx::kTileKernels) != nullptr &&
      amx_state().refusal.empty()) {
    static const Kernels table = with_tiles(avx512::kKernels, amx::kTileKernels, isa);
    return &table;
  }
  if (isa == Isa::kTilesAvx512 && has_avx512() &&
      built(avx512::kKernels, tiles_avx512::kTileKernels) != nullptr) {
    static const Kernels table = with_tiles(avx512::kKernels, tiles_avx512::kTileKernels, isa);
    return &table;
  }
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return &neon::kKernels;
  if (isa == Isa::kNeonDot && has_dots()) {
    static const Kernels table = with_panels(neon_dot::kMultiply, isa);
    return &table;
  }
  if (isa == Isa::kNeonI8mm && has_i8mm()) {
    static const Kernels table = with_panels(neon_i8mm::kMultiply, isa);
    return &table;
  }
#endif
  return nullptr;
}

// What this machine can run, for messages.
std::string supported_names() {
  std::string names;
  const auto add = [&](Isa isa) {
    if (supported(isa)) names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
  };
  for (const Isa isa : kNativeIsas) add(isa);
  for (const Isa isa : kEmulatedIsas) add(isa);
  return names;
}

[[noreturn]] void refuse(const std::string& got) {
  throw std::invalid_argument("expected an instruction set of this machine and build (" +
                              supported_names() + "), got " + got);
}

}  // namespace

const AmxState& amx_state() {
  static const AmxState state = find_amx();
  return state;
}

bool supported(Isa isa) { return find(isa) != nullptr; }

Isa best_isa() {
  Isa best = Isa::kPortable;
  for (const Isa isa : kNativeIsas) {
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
    case Isa::kNeonDot:
      return "neon_dot";
    case Isa::kNeonI8mm:
      return "neon_i8mm";
    case Isa::kAmx:
      return "amx";
    case Isa::kTilesPortable:
      return "tiles_portable";
    case Isa::kTilesAvx512:
      return "tiles_avx512";
  }
  return "unknown";
}

const Kernels& select_kernels(Isa isa) {
  if (const Kernels* found = find(isa)) return *found;
  refuse(isa_name(isa));
}

const Kernels& select_kernels(const std::string& name) {
  for (const Isa isa : kNativeIsas) {
    if (name == isa_name(isa)) return select_kernels(isa);
  }
  for (const Isa isa : kEmulatedIsas) {
    if (name == isa_name(isa)) return select_kernels(isa);
  }
  refuse(name);
}

int64_t emulated_dots(Isa isa) {
  if (!supported(isa)) return 0;
  if (isa == Isa::kTilesPortable) return tiles_portable::kTileKernels.emulated_dots();
#if defined(__x86_64__)
  if (isa == Isa::kTilesAvx512) return tiles_avx512::kTileKernels.emulated_dots();
#endif
  return 0;
}

}  // namespace monolane
