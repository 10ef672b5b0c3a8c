// A file of recorded cases: a row of blobs, each an int64 length and as many bytes, little-endian.
#pragma once

#include <cstdint>
#include <fstream>
#include <ios>
#include <vector>

#include "expect.h"

namespace monolane {

class Blobs {
 public:
  explicit Blobs(const char* path) : file_(path, std::ios::binary) { EXPECT(file_.good()); }

  template <typename T>
  std::vector<T> next() {
    int64_t bytes = 0;
    file_.read(reinterpret_cast<char*>(&bytes), 8);
    EXPECT(file_.good() && bytes % static_cast<int64_t>(sizeof(T)) == 0);
    std::vector<T> found(bytes / sizeof(T));
    file_.read(reinterpret_cast<char*>(found.data()), bytes);
    EXPECT(file_.good());
    return found;
  }
  int64_t number() { return next<int64_t>().at(0); }

 private:
  std::ifstream file_;
};

}  // namespace monolane
