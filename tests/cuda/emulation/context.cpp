// What a host thread has of the emulator, whatever kernel it runs: one small library that all
// kernels' libraries share. The two pointers are asked for at every primitive, so they lie in
// static thread-local memory, of which a process has a few hundred bytes for all libraries loaded
// late; and the stacks of one kernel's launch serve the next kernel's.
#include <stddef.h>
#include <sys/mman.h>

extern "C" {
__thread void* monolane_emulator_machine = nullptr;
__thread void* monolane_emulator_lane = nullptr;
}

namespace {
struct Region {
  void* at = nullptr;
  size_t bytes = 0;
  ~Region() { release(); }
  void release() {
    if (at) munmap(at, bytes);
    at = nullptr, bytes = 0;
  }
};
thread_local Region region;
}  // namespace

// At least so many bytes, the thread's until it asks for more; null if there are none.
extern "C" void* monolane_emulator_memory(size_t bytes) {
  if (bytes <= region.bytes) return region.at;
  region.release();
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  region.at = at, region.bytes = bytes;
  return at;
}
