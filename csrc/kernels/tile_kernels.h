// What tiles (tiles.h) bring to another instruction set: products, the form of the tokens for them,
// and attention. dispatch.cpp makes a table of it and of that set's other functions; a table made
// here would be made when the program is loaded, with the instructions of this set, on any machine.
#pragma once

#include "kernels/kernels.h"

namespace monolane {

struct PairKernels {  // of the processor's dots of bfloat16: pair_kernels.cpp
  decltype(Kernels::packed_bytes) packed_bytes;
  decltype(Kernels::pack) pack;
  decltype(Kernels::multiply) multiply;
};

struct TileKernels {
  decltype(Kernels::packed_bytes) packed_bytes;
  decltype(Kernels::pack) pack;
  decltype(Kernels::multiply) multiply;
  decltype(Kernels::attend) attend;
  int64_t (*emulated_dots)();  // of tiles, by this thread so far; 0 where they are the processor's
};

}  // namespace monolane
