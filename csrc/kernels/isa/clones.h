// For loops that run outside of kernels.cpp: compiled for several instruction sets, of which one is
// chosen when the program is loaded. Without contraction (CMakeLists.txt) the arithmetic of each
// element, and so its bits, is the same in all of them.
#pragma once

#if defined(__x86_64__)
#define MONOLANE_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MONOLANE_CLONES
#endif
