// Put before every source of the sanitized test: the executor's arenas come from the heap instead
// of from mmap, exactly as long as they are asked for, so that AddressSanitizer sees a byte beyond
// one. Included first on the command line rather than asked for in arena.h: the product should not
// know how it is tested.
#pragma once

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace monolane {

inline void* guarded_map(size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, 4096, bytes) != 0) return MAP_FAILED;
  return memset(data, 0, bytes);
}

}  // namespace monolane

#define mmap(address, bytes, protection, flags, file, offset) \
  ((void)(flags), (void)(file), (void)(offset), monolane::guarded_map(bytes))
#define munmap(data, bytes) free(data)
