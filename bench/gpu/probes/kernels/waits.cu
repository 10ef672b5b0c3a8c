// Waits among groups of blocks: each round every block publishes words and needs those of all other
// members. Warp 0 produces a background stream, warps 1-4 read it, warps 5-12 do the rounds;
// without the stream the first five warps leave at once. Every received word is compared with its
// formula.
#include "params.h"
#include "ring.cuh"

constexpr u32 READERS = 4;
constexpr u32 FIRST_ROUND_WARP = 1 + READERS;
constexpr u32 ROUND_THREADS = 256;
constexpr u32 MAX_VECTORS = 4;  // per thread: 4 * 4 * 256 words, enough for the 12 KB exchange
constexpr u32 SENTINEL = 0xffffffffu;  // a NaN that arithmetic never produces

enum Method : u32 {
  SENTINEL_REARM_BEFORE = 0,  // three buffers: re-arm, fence, publish
  SENTINEL_REARM_AFTER = 1,   // four buffers: publish, then re-arm and fence while waiting
  COUNTER = 2,                // one atomic and one poller per block
  CLUSTER_BARRIER = 3,        // barrier.cluster, words read from the peers' shared memory
  REMOTE_BARRIER = 4,  // words pushed into the peers' shared memory, remote mbarrier arrivals
};

DEVICE void round_barrier() { named_barrier(1, ROUND_THREADS); }

DEVICE u32 round_word(u32 round, u32 member, u32 index, u32 group) {
  u32 word = test_word((static_cast<u64>(round) << 32) | (member << 16) | index, group);
  return word == SENTINEL ? 0 : word;
}

struct RoundState {  // shared memory, behind the ring
  StreamControl stream;
  u32 failed;
  u32 pad[3];
  u64 arrivals;  // mbarrier of the remote method
  u64 pad_arrivals;
};

struct Round {
  u32 group, member, thread;
  u32 total;  // words per round in the group
  Vec4 got[MAX_VECTORS];
};

DEVICE bool is_set(const Vec4& v) {
  return v.x != SENTINEL && v.y != SENTINEL && v.z != SENTINEL && v.w != SENTINEL;
}

// Polls this thread's words until none is the sentinel. Words beyond one per block come as vectors.
DEVICE bool poll_sentinels(const WaitsParams& p, Round& r, const u32* words, const Watchdog& dog) {
  if (p.words == 1) {
    if (r.thread >= r.total) return true;
    while ((r.got[0].x = load_relaxed(words + r.thread)) == SENTINEL) {
      if (starved(dog, WAIT_SENTINEL, r.thread)) return false;
    }
    return true;
  }
  u32 pending = 0;
#pragma unroll
  for (u32 j = 0; j < MAX_VECTORS; ++j) {
    if ((r.thread + j * ROUND_THREADS) * 4 < r.total) pending |= 1u << j;
  }
  const Vec4* vectors = reinterpret_cast<const Vec4*>(words) + r.thread;
  while (pending) {
#pragma unroll
    for (u32 j = 0; j < MAX_VECTORS; ++j) {
      if (pending >> j & 1) r.got[j] = load_relaxed(vectors + j * ROUND_THREADS);
    }
#pragma unroll
    for (u32 j = 0; j < MAX_VECTORS; ++j) {
      if ((pending >> j & 1) && is_set(r.got[j])) pending &= ~(1u << j);
    }
    if (pending && starved(dog, WAIT_SENTINEL, r.thread)) return false;
  }
  return true;
}

DEVICE void load_words(const WaitsParams& p, Round& r, const u32* words) {
  if (p.words == 1) {
    if (r.thread < r.total) r.got[0].x = load_relaxed(words + r.thread);
    return;
  }
#pragma unroll
  for (u32 j = 0; j < MAX_VECTORS; ++j) {
    u32 i = r.thread + j * ROUND_THREADS;
    if (i * 4 < r.total) r.got[j] = load_relaxed(reinterpret_cast<const Vec4*>(words) + i);
  }
}

DEVICE void publish(const WaitsParams& p, const Round& r, u32 round, u32* words) {
  for (u32 i = r.thread; i < p.words; i += ROUND_THREADS) {
    store_relaxed(words + r.member * p.words + i, round_word(round, r.member, i, r.group));
  }
}

DEVICE void rearm(const WaitsParams& p, const Round& r, u32* words) {
  for (u32 i = r.thread; i < p.words; i += ROUND_THREADS) {
    store_relaxed(words + r.member * p.words + i, SENTINEL);
  }
}

DEVICE bool exchange_sentinel(const WaitsParams& p, Round& r, u32 round, bool before,
                              const Watchdog& dog) {
  u32 buffers = before ? 3 : 4;
  u32* group = p.words_base + static_cast<u64>(r.group) * 4 * r.total;
  // The buffer that is re-armed was read in round - 2, and whoever has published round - 1 (all, or
  // this block could not be here) has finished reading it.
  u32* old = group + (round + (before ? 1 : 2)) % buffers * r.total;
  u32* now = group + round % buffers * r.total;
  if (before) {
    rearm(p, r, old);
    fence_device();  // orders the re-arming before the publish of this same round
    publish(p, r, round, now);
  } else {
    publish(p, r, round, now);
    rearm(p, r, old);
    fence_device();  // orders the re-arming before the publish of the next round
  }
  return poll_sentinels(p, r, now, dog);
}

DEVICE bool exchange_counter(const WaitsParams& p, Round& r, RoundState* state, u32 round,
                             const Watchdog& dog) {
  u32* now = p.words_base + (static_cast<u64>(r.group) * 4 + (round & 1)) * r.total;
  u32* counter = p.counters + r.group * 32;  // one cache line each
  publish(p, r, round, now);
  round_barrier();  // collects all threads' words; guards the release below
  if (r.thread == 0) {
    add_release(counter, 1);  // publishes this block's words of the round
    u32 target = (round + 1) * p.members;
    while (load_acquire(counter) < target) {
      if (starved(dog, WAIT_COUNTER, round)) {
        shared_poke(&state->failed, 1);
        break;
      }
    }
  }
  round_barrier();  // hands thread 0's acquire to the others; guards the loads below
  if (shared_peek(&state->failed)) return false;
  load_words(p, r, now);
  return true;
}

DEVICE bool exchange_cluster(const WaitsParams& p, Round& r, u32* own, u32 round) {
  u32* now = own + (round & 1) * r.total;
  for (u32 i = r.thread; i < p.words; i += ROUND_THREADS) {
    now[i] = round_word(round, r.member, i, r.group);
  }
  cluster_barrier();  // publishes every block's words; guards the peers' loads below
  if (p.words == 1) {
    if (r.thread < r.total) r.got[0].x = peer_load(peer_address(now, r.thread));
    return true;
  }
#pragma unroll
  for (u32 j = 0; j < MAX_VECTORS; ++j) {
    u32 i = (r.thread + j * ROUND_THREADS) * 4;
    if (i < r.total) {
      SharedAddress from = peer_address(now + i % p.words, i / p.words);
      r.got[j] =
          Vec4{peer_load(from), peer_load(from + 4), peer_load(from + 8), peer_load(from + 12)};
    }
  }
  return true;
}

DEVICE bool exchange_remote(const WaitsParams& p, Round& r, RoundState* state, u32* own, u32 round,
                            const Watchdog& dog) {
  u32* now = own + (round & 1) * r.total;
  for (u32 i = r.thread; i < p.words * p.members; i += ROUND_THREADS) {
    u32 word = i % p.words;
    peer_store(peer_address(now + r.member * p.words + word, i / p.words),
               round_word(round, r.member, word, r.group));
  }
  round_barrier();  // collects all threads' pushes; guards the release below
  if (r.thread < p.members) peer_arrive(peer_address(&state->arrivals, r.thread));
  while (!barrier_passed_cluster(&state->arrivals, round & 1)) {
    if (starved(dog, WAIT_REMOTE_BARRIER, round)) return false;
  }
  if (p.words == 1) {
    if (r.thread < r.total) r.got[0].x = now[r.thread];
    return true;
  }
#pragma unroll
  for (u32 j = 0; j < MAX_VECTORS; ++j) {
    u32 i = r.thread + j * ROUND_THREADS;
    if (i * 4 < r.total) r.got[j] = reinterpret_cast<const Vec4*>(now)[i];
  }
  return true;
}

DEVICE void check_word(const WaitsParams& p, const Round& r, u32 round, u32 index, u32 word,
                       u32& wrong, u32& checked) {
  checked += 1;
  wrong += word != round_word(round, index / p.words, index % p.words, r.group);
}

DEVICE void check_round(const WaitsParams& p, const Round& r, u32 round, u32& wrong, u32& checked) {
  if (p.words == 1) {
    if (r.thread < r.total) check_word(p, r, round, r.thread, r.got[0].x, wrong, checked);
    return;
  }
#pragma unroll
  for (u32 j = 0; j < MAX_VECTORS; ++j) {
    u32 i = (r.thread + j * ROUND_THREADS) * 4;
    if (i >= r.total) continue;
    check_word(p, r, round, i, r.got[j].x, wrong, checked);
    check_word(p, r, round, i + 1, r.got[j].y, wrong, checked);
    check_word(p, r, round, i + 2, r.got[j].z, wrong, checked);
    check_word(p, r, round, i + 3, r.got[j].w, wrong, checked);
  }
}

// A block outside every group only streams, until all participants have counted themselves out.
DEVICE void wait_for_participants(const WaitsParams& p, const Watchdog& dog) {
  if (thread_index() % 32 != 0 || warp_index() != FIRST_ROUND_WARP) return;
  while (load_relaxed(p.finished) < p.groups * p.members) {
    if (starved(dog, WAIT_FINISHED, 0)) return;
    nap();
  }
}

DEVICE void run_rounds(const WaitsParams& p, u32 rank, RoundState* state, u32* own, u32* log,
                       const Watchdog& dog) {
  Round r;
  r.group = rank / p.members;
  r.member = rank % p.members;
  r.thread = thread_index() - FIRST_ROUND_WARP * 32;
  r.total = p.members * p.words;
  u32 wrong = 0, checked = 0;
  if (p.stream) {  // let the stream reach its full rate first
    u64 begin = clock_cycles();
    while (clock_cycles() - begin < p.warm_cycles) nap();
  }
  u32 chunks_begin = shared_peek(&state->stream.chunks);
  u64 begin_cycles = clock_cycles(), begin_ns = time_ns();
  for (u32 round = 0; round < p.rounds; ++round) {
    bool ok = true;
    round_barrier();  // all round warps start together; guards the words' reuse by `publish`
    u64 start = clock_cycles();
    if (p.method <= SENTINEL_REARM_AFTER) {
      ok = exchange_sentinel(p, r, round, p.method == SENTINEL_REARM_BEFORE, dog);
    } else if (p.method == COUNTER) {
      ok = exchange_counter(p, r, state, round, dog);
    } else if (p.method == CLUSTER_BARRIER) {
      ok = exchange_cluster(p, r, own, round);
    } else {
      ok = exchange_remote(p, r, state, own, round, dog);
    }
    if (!ok) shared_poke(&state->failed, 1);
    round_barrier();  // every thread has its words (or has failed); guards the read of `failed`
    if (r.thread == 0) log[round] = static_cast<u32>(clock_cycles() - start);
    if (shared_peek(&state->failed)) break;
    check_round(p, r, round, wrong, checked);
  }
  if (r.thread == 0) {
    u64* out = p.totals + static_cast<u64>(rank) * 4;
    out[0] = clock_cycles() - begin_cycles;
    out[1] = time_ns() - begin_ns;
    out[2] = shared_peek(&state->stream.chunks) - chunks_begin;
    out[3] = sm_id();
    shared_poke(&state->stream.stop, 1);
  }
  round_barrier();  // the log is complete; guards its copy to global memory
  for (u32 i = r.thread; i < p.rounds; i += ROUND_THREADS) {
    p.log[static_cast<u64>(rank) * p.rounds + i] = log[i];
  }
  wrong = warp_sum(wrong);
  checked = warp_sum(checked);
  if (warp_thread() == 0) {
    add_relaxed(p.results + 0, wrong);
    add_relaxed(p.results + 1, checked);
  }
  if (r.thread == 0) add_relaxed(p.finished, 1);
}

KERNEL(waits, WaitsParams, 416) {
  u8* shared = dynamic_shared();
  Ring ring = ring_at(shared, p.slots, p.copy_bytes);
  RoundState* state = reinterpret_cast<RoundState*>(shared + ring_footprint(p.slots, p.copy_bytes));
  u32* log = reinterpret_cast<u32*>(state + 1);  // [rounds], a multiple of 4
  u32* own = log + p.rounds;                     // [2][members * words], cluster methods only
  u32 rank = p.rank_of_sm ? p.rank_of_sm[sm_id()] : block_index();
  bool takes_part = rank < p.groups * p.members;
  if (thread_index() == 0) {
    ring_init(ring, 1);
    stream_init(&state->stream);
    state->failed = 0;
    barrier_init(&state->arrivals, p.members);
    barrier_init_fence();
    if (takes_part) add_relaxed(p.claims + rank, 1);
  }
  block_barrier();  // publishes the barriers and the control words to all warps
  if (p.method >= CLUSTER_BARRIER) cluster_barrier();  // peers' arrivals need initialised barriers
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  const u8* run = p.stream_from + static_cast<u64>(block_index()) * p.run_bytes;
  u32 sum = 0;
  if (warp_index() == 0) {
    if (p.stream && warp_thread() == 0) {
      stream_produce(ring, &state->stream, run, static_cast<u32>(p.run_bytes / p.copy_bytes),
                     patient(dog));
    }
  } else if (warp_index() < FIRST_ROUND_WARP) {
    if (p.stream)
      sum = stream_consume(ring, &state->stream, warp_index() - 1, READERS, patient(dog));
  } else if (takes_part) {
    run_rounds(p, rank, state, own, log, dog);
  } else {
    if (p.stream) wait_for_participants(p, patient(dog));
    if (thread_index() == FIRST_ROUND_WARP * 32) shared_poke(&state->stream.stop, 1);
  }
  if (p.method == CLUSTER_BARRIER) {
    // barrier.cluster counts every thread that has not left, so the other warps leave first; the
    // last barrier keeps this block's shared memory alive until its peers have loaded from it.
    if (warp_index() >= FIRST_ROUND_WARP) cluster_barrier();
    return;
  }
  sum = warp_sum(sum);
  if (warp_thread() == 0) add_relaxed(p.stream_sums + block_index(), sum);
  if (p.method == REMOTE_BARRIER)
    cluster_barrier();  // no block leaves while a peer may arrive on it
  block_barrier();      // the producer's last count is final; guards the read below
  if (thread_index() == 0 && p.stream) p.stream_chunks[block_index()] = state->stream.last;
}
