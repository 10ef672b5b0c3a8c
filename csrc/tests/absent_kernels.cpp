// The table of an instruction set that the machine of the build cannot run, so that nobody asks for
// it: CMakeLists.txt.
#include "kernels.h"

namespace monolane::MONOLANE_ISA {

extern const Kernels kKernels;
const Kernels kKernels{};

}  // namespace monolane::MONOLANE_ISA
