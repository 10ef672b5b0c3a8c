// The empty tables of an instruction set that is left out of this build: csrc/sources.cmake says
// why, and dispatch.cpp never chooses it.
#include "kernels/tile_kernels.h"

namespace monolane::MONOLANE_ISA {

extern const Kernels kKernels;
const Kernels kKernels{};
extern const TileKernels kTileKernels;
const TileKernels kTileKernels{};
extern const PairKernels kPairKernels;
const PairKernels kPairKernels{};

}  // namespace monolane::MONOLANE_ISA
