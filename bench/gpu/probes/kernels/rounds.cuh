// What kernels that time rounds share: clocks, what was checked, and the warps that keep a stream
// of weights going beside those that do the rounds. Warp 0 produces the stream, the next READERS
// warps read it, all others do rounds.
#pragma once
#include "ring.cuh"

constexpr u32 READERS = 4;
constexpr u32 FIRST_ROUND_WARP = 1 + READERS;
constexpr u32 SENTINEL = 0xffffffffu;  // a NaN that arithmetic never produces: nothing is there yet

// A test word that is no sentinel.
DEVICE u32 published_word(u64 index, u32 seed) {
  u32 word = test_word(index, seed);
  return word == SENTINEL ? 0 : word;
}

// ---- clocks and checks, by row of the totals: cycles, ns, what was counted, SM -----------------
struct Clocks {
  u64 cycles, ns;
};
DEVICE Clocks read_clocks() { return Clocks{clock_cycles(), time_ns()}; }
DEVICE void report_totals(u64* totals, u64 row, Clocks begin, u64 counted) {
  u64* out = totals + row * 4;
  out[0] = clock_cycles() - begin.cycles;
  out[1] = time_ns() - begin.ns;
  out[2] = counted;
  out[3] = sm_id();
}

DEVICE void report_checks(u32* results, u32 wrong, u32 checked) {
  wrong = warp_sum(wrong);
  checked = warp_sum(checked);
  if (warp_thread() == 0) {
    add_relaxed(results + 0, wrong);
    add_relaxed(results + 1, checked);
  }
}

#if HOPPER
// ---- rounds beside a stream --------------------------------------------------------------------
struct RoundState {  // shared memory, behind the ring
  StreamControl stream;
  u32 failed;
  u32 pad[3];
};

DEVICE void round_init(const Ring& ring, RoundState* state) {
  ring_init(ring, 1);
  stream_init(&state->stream);
  state->failed = 0;
}

// By the warps of the stream: returns this thread's share of the sum of what was read.
template <typename Params>
DEVICE u32 stream_beside(const Params& p, const Ring& ring, RoundState* state, const u8* run,
                         const Watchdog& dog) {
  if (!p.stream) return 0;
  if (warp_index() > 0)
    return stream_consume(ring, &state->stream, warp_index() - 1, READERS, patient(dog));
  if (warp_thread() == 0) {
    stream_produce(ring, &state->stream, run, static_cast<u32>(p.run_bytes / p.copy_bytes),
                   patient(dog));
  }
  return 0;
}

template <typename Params>
DEVICE void report_stream_sum(const Params& p, u64 worker, u32 sum) {
  sum = warp_sum(sum);
  if (warp_thread() == 0) add_relaxed(p.stream_sums + worker, sum);
}

// By the whole block, at its end.
template <typename Params>
DEVICE void report_stream_chunks(const Params& p, u64 worker, const RoundState* state) {
  block_barrier();  // the producer's last count is final; guards the read below
  if (thread_index() == 0 && p.stream) p.stream_chunks[worker] = state->stream.last;
}

// What the round warps note before their first round ...
struct RoundsBegin {
  u32 chunks;
  Clocks clocks;
};
template <typename Params>
DEVICE RoundsBegin begin_rounds(const Params& p, RoundState* state) {
  if (p.stream) {  // let the stream reach its full rate first
    u64 begin = clock_cycles();
    while (clock_cycles() - begin < p.warm_cycles) nap();
  }
  u32 chunks = shared_peek(&state->stream.chunks);
  return RoundsBegin{chunks, read_clocks()};
}

// ... and report after the last: each has `wrong` and `checked` words of its own.
template <u32 ROUND_THREADS, typename Params>
DEVICE void end_rounds(const Params& p, u64 row, RoundState* state, const u32* log,
                       const RoundsBegin& begin, u32 wrong, u32 checked) {
  u32 thread = thread_index() - FIRST_ROUND_WARP * 32;
  if (thread == 0) {
    report_totals(p.totals, row, begin.clocks, shared_peek(&state->stream.chunks) - begin.chunks);
    shared_poke(&state->stream.stop, 1);
  }
  named_barrier(1, ROUND_THREADS);  // the log is complete; guards its copy to global memory
  for (u32 i = thread; i < p.rounds; i += ROUND_THREADS) p.log[row * p.rounds + i] = log[i];
  report_checks(p.results, wrong, checked);
}
#endif
