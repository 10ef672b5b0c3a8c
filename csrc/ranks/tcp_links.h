// TCP connections of a rank to all others, where they have no memory in common: what its workers
// wrote is sent to where the others look for it, in memory of their own, and then their count.
//
// A worker sends by itself, and one thread for each peer receives. A receiver does nothing but
// store what comes, so it never waits for a worker, and a sender waits only for the network and for
// a rank that is stopped. Why not one thread that does all of it: two wake-ups more for each
// exchange.
//
// Nothing that comes is believed: `Place` and `Arrived` look at it before it is stored or counted.
// What they refuse ends the connection, and rank 0 is told why.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace monolane {

// What a worker wrote: `rows` of `bytes`, `stride` apart, from `offset` in a part of the exchange
// on.
struct Written {
  int32_t part, rows;
  uint32_t bytes, stride;
  uint64_t offset;
  int32_t to_leader;  // 1: only rank 0 reads it
  int32_t unused;
};
static_assert(sizeof(Written) == 32);

class TcpLinks {
 public:
  // Where to store what a worker of another rank wrote. Throws std::invalid_argument if that is not
  // its to write.
  using Place = std::function<char*(int32_t rank, int32_t worker, const Written&)>;
  // Called once all that a frame brought lies there, in `parts` pieces. Throws the same.
  using Arrived = std::function<void(int32_t rank, int32_t worker, uint32_t count, uint32_t parts)>;
  // Called, by any thread and perhaps more than once, when a rank is lost.
  using Lost = std::function<void(int32_t rank)>;

  // `sockets`: of each rank, and -1 at `rank`'s own place; they are duplicated, so the caller's may
  // be closed. A send that makes no progress for `patience_ns` gives its peer up. Throws
  // std::invalid_argument or std::system_error.
  TcpLinks(int32_t rank, const std::vector<int>& sockets, int64_t patience_ns, Place place,
           Arrived arrived, Lost lost);
  ~TcpLinks();
  TcpLinks(const TcpLinks&) = delete;
  TcpLinks& operator=(const TcpLinks&) = delete;

  // `from(written)`: its first byte, here.
  template <typename From>
  void send(int32_t worker, uint32_t count, const std::vector<Written>& written, From from) {
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (static_cast<int32_t>(peer) == rank_) continue;
      std::vector<char>& frame = begin_frame(worker, count);
      for (const Written& one : written) {
        if (one.to_leader == 0 || peer == 0) add(frame, one, from(one));
      }
      end_frame(static_cast<int32_t>(peer), frame);
    }
  }

  // Has every peer see the end of its connection. What waits here ends, too.
  void hang_up();

  // In another rank than 0: the same, once rank 0 has been told what became of this one, a verb.
  void give_up(const std::string& fault);

  // What became of a peer, a verb for people; empty if nothing has.
  std::string fault(int32_t rank) const;

 private:
  struct Peer {
    int socket = -1;
    std::mutex sending = {};  // held while a frame goes out
    bool broken = false;      // nothing more can be sent; touched while `sending` is held
    std::string fault = {};   // why nothing more goes either way
  };

  static std::vector<char>& begin_frame(int32_t worker, uint32_t count);
  static void add(std::vector<char>& frame, const Written& written, const char* from);
  void end_frame(int32_t peer, std::vector<char>& frame);
  void receive(int32_t peer);
  std::string store_frames(int32_t peer);
  std::string store_frame(int32_t peer, int32_t worker, uint32_t count, uint32_t parts);
  std::string hear_fault(int32_t peer, int32_t lost, uint32_t bytes);
  void refuse(int32_t peer, const std::string& why);
  void fail(int32_t peer, const std::string& fault);
  void tell_leader(int32_t lost, const std::string& fault);

  const int32_t rank_;
  const Place place_;
  const Arrived arrived_;
  const Lost lost_;
  std::vector<Peer> peers_;
  mutable std::mutex faults_;  // of peers_[i].fault
  std::atomic<bool> hung_up_{false};
  std::vector<std::thread> receivers_;
};

}  // namespace monolane
