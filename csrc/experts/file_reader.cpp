#include "experts/file_reader.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

namespace monolane {
namespace {

constexpr int64_t kMostUnderWay = 256;  // of a reader; all processes together may have 65,536

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

FileReader::FileReader(int file, int64_t reads) : wanted_(reads), under_way_(reads) {
  const std::string name = "/proc/self/fd/" + std::to_string(file);
  file_ = open(name.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  // File systems in memory have no other way than through it.
  if (file_ < 0 && errno == EINVAL) file_ = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) fail(errno, "experts: expected to open their file again");
  const int64_t most = std::clamp<int64_t>(reads, 1, kMostUnderWay);
  if (syscall(SYS_io_setup, most, &context_) != 0) context_ = 0;
}

FileReader::~FileReader() {
  if (context_ != 0) syscall(SYS_io_destroy, context_);  // waits for them
  close(file_);
}

void FileReader::begin(int64_t read, size_t offset, size_t bytes, void* to) {
  if (bytes == 0) return;
  iocb& wanted = wanted_[read];
  wanted = {};
  wanted.aio_data = static_cast<uint64_t>(read);
  wanted.aio_lio_opcode = IOCB_CMD_PREAD;
  wanted.aio_fildes = static_cast<uint32_t>(file_);
  wanted.aio_buf = reinterpret_cast<uint64_t>(to);
  wanted.aio_nbytes = bytes;
  wanted.aio_offset = static_cast<int64_t>(offset);
  iocb* one = &wanted;
  if (context_ != 0 && syscall(SYS_io_submit, context_, 1, &one) == 1) {
    under_way_[read] = 1;
  } else {
    read_now(wanted);
  }
}

void FileReader::await(int64_t read) {
  while (under_way_[read]) {
    io_event done[16];
    const int64_t count = syscall(SYS_io_getevents, context_, 1, std::size(done), done, nullptr);
    if (count < 0 && errno != EINTR) fail(errno, "experts: expected to wait for their file");
    for (int64_t i = 0; i < count; ++i) {
      const iocb& wanted = wanted_[static_cast<int64_t>(done[i].data)];
      under_way_[static_cast<int64_t>(done[i].data)] = 0;
      if (done[i].res != static_cast<int64_t>(wanted.aio_nbytes)) read_now(wanted);
    }
  }
}

// As often as it takes: a signal may cut a read short, and what is left begins at a sector.
void FileReader::read_now(const iocb& wanted) {
  char* to = reinterpret_cast<char*>(wanted.aio_buf);
  for (size_t at = 0; at < wanted.aio_nbytes;) {
    const ssize_t count =
        pread(file_, to + at, wanted.aio_nbytes - at, wanted.aio_offset + static_cast<int64_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(count < 0 ? errno : EIO, "experts: expected to read their file");
    at += static_cast<size_t>(count);
  }
}

}  // namespace monolane
