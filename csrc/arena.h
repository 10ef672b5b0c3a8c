// Zeroed memory that costs nothing until it is touched, in huge pages where the system has them.
//
// Why not new: a page belongs to the NUMA node of the thread that touches it first, so nobody must
// touch it before its owner; and pages of 2 MB read 2 to 5 % faster than those of 4 KB
// (bench/cpu/README.md).
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>

namespace monolane {

class Arena {
 public:
  // `file`: a descriptor of memory that other processes map, too, from `offset` on; -1: private.
  explicit Arena(size_t bytes, int file = -1, size_t offset = 0)
      : bytes_(std::max<size_t>(bytes, 1)) {
    const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* data =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, kind, file, static_cast<off_t>(offset));
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = data;
    madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish
  }
  ~Arena() { munmap(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void* data_;
  size_t bytes_;
};

}  // namespace monolane
