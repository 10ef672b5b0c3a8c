// The table of an instruction set that the machine of the build cannot run, so that nobody asks for
// it: CMakeLists.txt.
#include "kernels/tile_kernels.h"

namespace monolane::MONOLANE_ISA {

extern const Kernels kKernels;
const Kernels kKernels{};
extern const TileKernels kTileKernels;
const TileKernels kTileKernels{};

}  // namespace monolane::MONOLANE_ISA
