// Zeroed memory that costs nothing until it is touched, in huge pages where the system has them
// and where its owner wants them.
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
  // `huge`: in huge pages from the start; else once `prefer_huge` asks for them.
  explicit Arena(size_t bytes, int file = -1, size_t offset = 0, bool huge = true)
      : bytes_(std::max<size_t>(bytes, 1)) {
    const int kind = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* data =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, kind, file, static_cast<off_t>(offset));
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = data;
    if (huge) prefer_huge(0, bytes_);
  }
  ~Arena() { munmap(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

  static constexpr size_t kHugePage = 2 << 20;  // bytes

  // Wishes for huge pages where `begin .. end` has not been touched yet.
  void prefer_huge(size_t begin, size_t end) const {
    begin = begin / kPage * kPage;
    madvise(as<char>() + begin, end - begin, MADV_HUGEPAGE);
  }

 private:
  static constexpr size_t kPage = 4096;  // bytes, the least that madvise takes

  void* data_;
  size_t bytes_;
};

}  // namespace monolane
