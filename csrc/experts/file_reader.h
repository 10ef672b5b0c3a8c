// Reads of a file that go on while something else is computed: io_submit(2), past the page cache
// where the disk can (O_DIRECT).
//
// Why past it: pages that are mapped are read by the one who needs them, a few at a time. Of reads
// of 512 KB here, one after the other, a disk gave 1.3 GB/s mapped, 1.9 directly, and 3.8 with
// eight of them under way. Why not io_uring: containers forbid it by default. Where they forbid
// this, too, or the kernel has no room for another read, one is made when it is begun.
#pragma once

#include <linux/aio_abi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace monolane {

class FileReader {
 public:
  static constexpr size_t kAlign = 4096;  // bytes, of offsets, lengths and memory

  // Of what `file` names, which may be closed afterwards. `reads`: they are numbered 0 .. reads
  // - 1. Throws std::system_error if the file cannot be opened again.
  FileReader(int file, int64_t reads);
  ~FileReader();  // what is under way is waited for
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // One that is under way has to be awaited before its number begins another. Of no bytes: nothing.
  void begin(int64_t read, size_t offset, size_t bytes, void* to);

  // Returns when it is done, at once if none is under way. Throws std::system_error if the disk
  // failed.
  void await(int64_t read);

 private:
  void read_now(const iocb& wanted);

  int file_ = -1;
  aio_context_t context_ = 0;    // 0: reads are made when they are begun
  std::vector<iocb> wanted_;     // of each read
  std::vector<char> under_way_;  // of each read
};

}  // namespace monolane
