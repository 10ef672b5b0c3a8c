#include "memory/file_faults.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>

namespace monolane {
namespace {

// All below runs in a signal's handler: no memory is taken, no lock, nothing of stdio.

constexpr int kFailed = 1;  // exit code of a command that failed

void say(const char* text, size_t length) {
  while (length > 0) {
    const ssize_t written = write(STDERR_FILENO, text, length);
    if (written <= 0) return;
    text += written;
    length -= static_cast<size_t>(written);
  }
}

void say(const char* text) { say(text, std::strlen(text)); }

// A path, without what a terminal would obey.
void say_path(const char* path) {
  for (; *path != '\0'; ++path) {
    const auto byte = static_cast<unsigned char>(*path);
    say(byte < 0x20 || byte == 0x7f ? "?" : path, 1);
  }
}

// Reads /proc/self/maps line by line: "begin-end perms offset device inode   path".
class Maps {
 public:
  Maps() : file_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}

  // The next line, cut at the buffer's end; null: there are no more.
  const char* next() {
    size_t length = 0;
    for (char c; (c = take()) != '\0' && c != '\n';) {
      if (length + 1 < sizeof(line_)) line_[length++] = c;
    }
    line_[length] = '\0';
    return length > 0 ? line_ : nullptr;
  }

 private:
  char take() {
    if (at_ == end_) {
      const ssize_t found = file_ < 0 ? 0 : read(file_, buffer_, sizeof(buffer_));
      if (found <= 0) return '\0';
      at_ = 0;
      end_ = found;
    }
    return buffer_[at_++];
  }

  int file_;
  char buffer_[1024], line_[4400];  // a path has 4,096 bytes at most
  ssize_t at_ = 0, end_ = 0;
};

uintptr_t read_hex(const char*& text) {
  uintptr_t value = 0;
  for (;; ++text) {
    const char c = *text;
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uintptr_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uintptr_t>(c - 'a' + 10);
    } else {
      return value;
    }
  }
}

// Whether an address is in a mapping of a file; says which.
bool say_file_of(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  Maps maps;
  while (const char* line = maps.next()) {
    const uintptr_t begin = read_hex(line);
    if (*line++ != '-') continue;
    const uintptr_t end = read_hex(line);
    if (wanted < begin || wanted >= end) continue;
    const char* path = std::strchr(line, '/');
    if (path == nullptr) return false;
    say("monolane: ");
    say_path(path);
    return true;
  }
  return false;
}

void on_bus_fault(int, siginfo_t* about, void*) {
  if (about->si_code == BUS_ADRERR && say_file_of(about->si_addr)) {
    say(": expected the file that was loaded, got one that was cut short since then (SIGBUS), or a "
        "disk that fails; load the model again, and replace its files instead of writing to "
        "them\n");
    _exit(kFailed);
  }
  std::signal(SIGBUS, SIG_DFL);  // no file of ours: the fault comes again, and ends the process
}

}  // namespace

void tell_of_file_faults() {
  static const bool once = [] {
    struct sigaction now{};
    if (sigaction(SIGBUS, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return false;
    struct sigaction ours{};
    ours.sa_sigaction = on_bus_fault;
    ours.sa_flags = SA_SIGINFO;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, nullptr) == 0;
  }();
  static_cast<void>(once);
}

}  // namespace monolane
