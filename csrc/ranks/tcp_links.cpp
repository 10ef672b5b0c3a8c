#include "ranks/tcp_links.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace monolane {
namespace {

constexpr uint32_t kMagic = 0x32524c4d;  // "MLR2": both ends are little-endian
constexpr uint32_t kMostParts = 1 << 16;
// Instead of a worker, to rank 0: the sender lost the rank `count`, which may be itself. `parts`
// bytes say what became of that, a verb.
constexpr int32_t kLostPeer = -1;
constexpr uint32_t kLongestFault = 400;  // bytes

struct FrameHead {
  uint32_t magic = kMagic;
  int32_t worker = 0;
  uint32_t count = 0;
  uint32_t parts = 0;  // Written, each followed by its bytes
};
static_assert(sizeof(FrameHead) == 16);

// Returns what was received: less than `bytes` at the end of the connection or at an error.
size_t receive_all(int socket, void* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = recv(socket, static_cast<char*>(to) + done, bytes - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (got == 0) errno = 0;
      break;
    }
    done += static_cast<size_t>(got);
  }
  return done;
}

// Returns 0 or an errno.
int send_all(int socket, const std::vector<char>& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t sent = send(socket, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno;
    done += static_cast<size_t>(sent);
  }
  return 0;
}

std::string ended(size_t received, int error) {
  if (error != 0) return "was cut off: " + std::generic_category().message(error);
  return received == 0 ? "closed its connection" : "closed its connection in the midst of a frame";
}

}  // namespace

TcpLinks::TcpLinks(int32_t rank, const std::vector<int>& sockets, int64_t patience_ns, Place place,
                   Arrived arrived, Lost lost)
    : rank_(rank),
      place_(std::move(place)),
      arrived_(std::move(arrived)),
      lost_(std::move(lost)),
      peers_(sockets.size()) {
  const timeval limit{patience_ns / 1'000'000'000, patience_ns % 1'000'000'000 / 1000};
  const auto close_all = [&] {
    for (const Peer& peer : peers_) {
      if (peer.socket >= 0) close(peer.socket);
    }
  };
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (static_cast<int32_t>(i) == rank) continue;
    peers_[i].socket = fcntl(sockets[i], F_DUPFD_CLOEXEC, 0);
    if (peers_[i].socket < 0 ||
        setsockopt(peers_[i].socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) {
      const int error = errno;
      close_all();
      throw std::system_error(error, std::generic_category(), "links: a rank's socket");
    }
  }
  try {
    for (size_t i = 0; i < sockets.size(); ++i) {
      const int32_t peer = static_cast<int32_t>(i);
      if (peer != rank) receivers_.emplace_back([this, peer] { receive(peer); });
    }
  } catch (...) {  // the system has no more threads
    hang_up();
    for (std::thread& thread : receivers_) thread.join();
    close_all();
    throw;
  }
}

TcpLinks::~TcpLinks() {
  hang_up();
  for (std::thread& thread : receivers_) thread.join();
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) close(peer.socket);
  }
}

void TcpLinks::hang_up() {
  hung_up_.store(true, std::memory_order_release);
  for (const Peer& peer : peers_) {
    if (peer.socket >= 0) shutdown(peer.socket, SHUT_RDWR);
  }
}

std::string TcpLinks::fault(int32_t rank) const {
  const std::lock_guard<std::mutex> lock(faults_);
  return rank >= 0 && rank < static_cast<int32_t>(peers_.size()) ? peers_[rank].fault : "";
}

// ---- Sending: each worker its own ----

std::vector<char>& TcpLinks::begin_frame(int32_t worker, uint32_t count) {
  static thread_local std::vector<char> frame;
  const FrameHead head{.worker = worker, .count = count};
  frame.resize(sizeof head);
  std::memcpy(frame.data(), &head, sizeof head);
  return frame;
}

void TcpLinks::add(std::vector<char>& frame, const Written& written, const char* from) {
  size_t at = frame.size();
  frame.resize(at + sizeof written + size_t{1} * written.rows * written.bytes);
  std::memcpy(frame.data() + at, &written, sizeof written);
  at += sizeof written;
  for (int32_t row = 0; row < written.rows; ++row, at += written.bytes) {
    std::memcpy(frame.data() + at, from + size_t{1} * row * written.stride, written.bytes);
  }
  FrameHead head;
  std::memcpy(&head, frame.data(), sizeof head);
  ++head.parts;
  std::memcpy(frame.data(), &head, sizeof head);
}

void TcpLinks::end_frame(int32_t peer, std::vector<char>& frame) {
  Peer& to = peers_[peer];
  int error = 0;
  {
    const std::lock_guard<std::mutex> lock(to.sending);  // one frame behind the other
    if (!to.broken) error = send_all(to.socket, frame);
    to.broken |= error != 0;  // a frame behind half of another is none
  }
  // A peer that closed its connection is told of by the receiver, which may still have frames of
  // it.
  if (error == EAGAIN || error == EWOULDBLOCK) fail(peer, "took in nothing that was sent to it");
}

// ---- Receiving: a thread for each peer ----

void TcpLinks::receive(int32_t peer) {
  try {
    fail(peer, store_frames(peer));
  } catch (const std::invalid_argument& refusal) {
    refuse(peer, refusal.what());
  }
}

// Stores all that comes; returns why no more does.
std::string TcpLinks::store_frames(int32_t peer) {
  for (;;) {
    FrameHead head;
    const size_t got = receive_all(peers_[peer].socket, &head, sizeof head);
    if (got < sizeof head) return ended(got, errno);
    if (head.magic != kMagic || head.parts > kMostParts) {
      throw std::invalid_argument("frame: expected one of this version with at most " +
                                  std::to_string(kMostParts) + " parts, got something else");
    }
    const std::string fault = head.worker == kLostPeer
                                  ? hear_fault(peer, static_cast<int32_t>(head.count), head.parts)
                                  : store_frame(peer, head.worker, head.count, head.parts);
    if (!fault.empty()) return fault;
  }
}

// Stores what a frame brings, and counts it. Returns why not all of it came.
std::string TcpLinks::store_frame(int32_t peer, int32_t worker, uint32_t count, uint32_t parts) {
  static thread_local std::vector<char> bytes;
  const int socket = peers_[peer].socket;
  for (uint32_t i = 0; i < parts; ++i) {
    Written written;
    if (receive_all(socket, &written, sizeof written) < sizeof written) return ended(1, errno);
    char* const to = place_(peer, worker, written);
    bytes.resize(size_t{1} * written.rows * written.bytes);
    if (receive_all(socket, bytes.data(), bytes.size()) < bytes.size()) return ended(1, errno);
    for (int32_t row = 0; row < written.rows; ++row) {
      std::memcpy(to + size_t{1} * row * written.stride,
                  bytes.data() + size_t{1} * row * written.bytes, written.bytes);
    }
  }
  arrived_(peer, worker, count, parts);
  return "";
}

// Notes whom a peer has lost, itself perhaps. Returns why that did not come whole.
std::string TcpLinks::hear_fault(int32_t peer, int32_t lost, uint32_t bytes) {
  const int32_t ranks = static_cast<int32_t>(peers_.size());
  if (rank_ != 0 || lost <= 0 || lost >= ranks || bytes > kLongestFault) {
    throw std::invalid_argument("lost rank: expected 1 to " + std::to_string(ranks - 1) +
                                " and at most " + std::to_string(kLongestFault) +
                                " bytes, told to rank 0, got rank " + std::to_string(lost) +
                                " and " + std::to_string(bytes));
  }
  std::string fault(bytes, ' ');
  if (receive_all(peers_[peer].socket, fault.data(), bytes) < bytes) return ended(1, errno);
  // People read it, in a terminal.
  std::replace_if(fault.begin(), fault.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  fail(lost, lost == peer ? fault : "was lost by rank " + std::to_string(peer) + ": " + fault);
  return "";
}

void TcpLinks::refuse(int32_t peer, const std::string& why) {
  if (peer == 0) tell_leader(rank_, "refused what rank 0 sent: " + why);
  fail(peer, "sent what was refused: " + why);
}

void TcpLinks::give_up(const std::string& fault) {
  tell_leader(rank_, fault);
  hang_up();
}

// Rank 0 alone judges, so that all name the same: the others tell it whom they lost, and go on
// until it hangs up.
void TcpLinks::fail(int32_t peer, const std::string& fault) {
  if (hung_up_.load(std::memory_order_acquire)) return;
  {
    const std::lock_guard<std::mutex> lock(faults_);
    if (!peers_[peer].fault.empty()) return;
    peers_[peer].fault = fault;
  }
  if (rank_ != 0 && peer != 0) return tell_leader(peer, fault);
  lost_(peer);
  hang_up();  // all others are to know, and a worker may wait for the network
}

void TcpLinks::tell_leader(int32_t lost, const std::string& fault) {
  const size_t bytes = std::min<size_t>(fault.size(), kLongestFault);
  std::vector<char>& frame = begin_frame(kLostPeer, static_cast<uint32_t>(lost));
  FrameHead head;
  std::memcpy(&head, frame.data(), sizeof head);
  head.parts = static_cast<uint32_t>(bytes);
  std::memcpy(frame.data(), &head, sizeof head);
  frame.insert(frame.end(), fault.begin(), fault.begin() + static_cast<std::ptrdiff_t>(bytes));
  end_frame(0, frame);
}

}  // namespace monolane
