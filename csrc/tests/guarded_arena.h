// Put before every source of the sanitized test: the executor's arenas come from the heap instead
// of from mmap, exactly as long as they are asked for, so that AddressSanitizer sees a byte beyond
// one. What several executors of this process share is one such piece, so that ThreadSanitizer sees
// their accesses at one address; in the Python module what is shared is a mapping, for other
// processes map it, too. Included first on the command line rather than asked for in arena.h: the
// product should not know how it is tested.
#pragma once

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

namespace monolane {

struct SharedPiece {
  void* data;
  int users;
};
inline std::mutex shared_mutex;
inline std::map<std::pair<ino_t, off_t>, SharedPiece> shared_pieces;  // by file and offset
inline std::map<void*, size_t> mappings;                              // their bytes

inline void* guarded_new(size_t bytes) {
  void* data = nullptr;
  if (posix_memalign(&data, 4096, bytes) != 0) return MAP_FAILED;
  return memset(data, 0, bytes);
}

inline void* guarded_map(size_t bytes, int file, off_t offset) {
  struct stat found{};
  if (file < 0) return guarded_new(bytes);
  if (getenv("SANITIZED_CORE") != nullptr) {  // scripts/sanitize says so to the module
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    const std::lock_guard<std::mutex> lock(shared_mutex);
    mappings[data] = bytes;
    return data;
  }
  if (fstat(file, &found) != 0) return MAP_FAILED;
  const std::lock_guard<std::mutex> lock(shared_mutex);
  const auto [at, is_new] = shared_pieces.try_emplace({found.st_ino, offset}, SharedPiece{});
  if (is_new) at->second.data = guarded_new(bytes);
  ++at->second.users;
  return at->second.data;
}

inline void guarded_unmap(void* data) {
  const std::lock_guard<std::mutex> lock(shared_mutex);
  if (const auto mapping = mappings.extract(data)) {
    munmap(data, mapping.mapped());
    return;
  }
  for (auto at = shared_pieces.begin(); at != shared_pieces.end(); ++at) {
    if (at->second.data != data) continue;
    if (--at->second.users > 0) return;
    shared_pieces.erase(at);
    break;
  }
  free(data);
}

}  // namespace monolane

#define mmap(address, bytes, protection, flags, file, offset) \
  ((void)(flags), monolane::guarded_map(bytes, file, offset))
#define munmap(data, bytes) monolane::guarded_unmap(data)
