// Mailboxes between kernels that run at the same time, each in its own stream, as eight GPUs would
// do with peer memory: 16 blocks push 12 KB of sentinel words into the peers' mailboxes and wait
// for theirs. System scope throughout, because that is the code that peers need.
#include "params.h"
#include "ring.cuh"

constexpr u32 SENTINEL = 0xffffffffu;
constexpr u32 READERS = 4;
constexpr u32 FIRST_ROUND_WARP = 1 + READERS;
constexpr u32 ROUND_THREADS = 192;
constexpr u32 BUFFERS = 2;
constexpr u32 MAX_KERNELS = 8;

struct MailboxState {  // shared memory, behind the ring
  StreamControl stream;
  u32 failed;
  u32 pad[3];
};

DEVICE void round_barrier() { named_barrier(1, ROUND_THREADS); }

DEVICE u32 mail_word(u32 round, u32 from, u32 to, u32 index) {
  u32 word = test_word((static_cast<u64>(round) << 32) | index, from * MAX_KERNELS + to);
  return word == SENTINEL ? 0 : word;
}

// Mailboxes are [to][buffer][from][words]; block b of every kernel owns the same slice of words.
DEVICE u32* mailbox(const MailboxParams& p, u32 to, u32 round, u32 from) {
  u64 slot = (static_cast<u64>(to) * BUFFERS + round % BUFFERS) * MAX_KERNELS + from;
  return p.mail + slot * p.words;
}

// All kernels must be resident before any of them waits for words of another.
DEVICE bool meet_peers(const MailboxParams& p, const Watchdog& dog) {
  add_relaxed(p.started, 1);
  while (load_relaxed_system(p.started) < p.kernels * p.blocks) {
    if (starved(dog, WAIT_PEERS_STARTED, p.own)) return false;
    nap();
  }
  return true;
}

DEVICE void run_rounds(const MailboxParams& p, MailboxState* state, u32* log, const Watchdog& dog) {
  u32 thread = thread_index() - FIRST_ROUND_WARP * 32;
  u32 per_block = p.words / p.blocks;
  u32 word = block_index() * per_block + thread;
  bool active = thread < per_block;
  u32 wrong = 0, checked = 0;
  if (thread == 0 && !meet_peers(p, dog)) shared_poke(&state->failed, 1);
  round_barrier();  // hands thread 0's meeting to the others; guards the read of `failed`
  // Read only between the last barrier of a round and the first of the next, when nobody writes it:
  // all threads see the same and leave together, or a barrier would wait for those that left.
  bool failed = shared_peek(&state->failed) != 0;
  if (p.stream) {  // let the stream reach its full rate first
    u64 begin = clock_cycles();
    while (clock_cycles() - begin < p.warm_cycles) nap();
  }
  u32 chunks_begin = shared_peek(&state->stream.chunks);
  u64 begin_cycles = clock_cycles(), begin_ns = time_ns();
  for (u32 round = 0; round < p.rounds && !failed; ++round) {
    round_barrier();  // all round warps start together; guards the writes of `failed`
    u64 start = clock_cycles();
    u32 got[MAX_KERNELS];
    if (active) {
      // Orders the re-arming of the previous round before this round's publish: whoever sees the
      // publish may reuse the re-armed buffer in the round after.
      fence_system();
      for (u32 peer = 0; peer < p.kernels; ++peer) {
        if (p.peers >> peer & 1) {
          store_relaxed_system(mailbox(p, peer, round, p.own) + word,
                               mail_word(round, p.own, peer, word));
        }
      }
      u32 pending = p.peers;
      while (pending) {
#pragma unroll
        for (u32 peer = 0; peer < MAX_KERNELS; ++peer) {
          if (pending >> peer & 1) {
            got[peer] = load_relaxed_system(mailbox(p, p.own, round, peer) + word);
          }
        }
#pragma unroll
        for (u32 peer = 0; peer < MAX_KERNELS; ++peer) {
          if ((pending >> peer & 1) && got[peer] != SENTINEL) pending &= ~(1u << peer);
        }
        if (pending && starved(dog, WAIT_MAILBOX, pending)) {
          shared_poke(&state->failed, 1);
          break;
        }
      }
    }
    round_barrier();  // every thread has its words; ends the measured time
    if (thread == 0) log[round] = static_cast<u32>(clock_cycles() - start);
    failed = shared_peek(&state->failed) != 0;
    if (active) {
#pragma unroll
      for (u32 peer = 0; peer < MAX_KERNELS; ++peer) {
        if (p.peers >> peer & 1) {
          checked += 1;
          wrong += got[peer] != mail_word(round, peer, p.own, word);
          store_relaxed_system(mailbox(p, p.own, round, peer) + word, SENTINEL);
        }
      }
    }
  }
  if (thread == 0) {
    u64* out = p.totals + (static_cast<u64>(p.own) * p.blocks + block_index()) * 4;
    out[0] = clock_cycles() - begin_cycles;
    out[1] = time_ns() - begin_ns;
    out[2] = shared_peek(&state->stream.chunks) - chunks_begin;
    out[3] = sm_id();
    shared_poke(&state->stream.stop, 1);
  }
  round_barrier();  // the log is complete; guards its copy to global memory
  for (u32 i = thread; i < p.rounds; i += ROUND_THREADS) {
    p.log[(static_cast<u64>(p.own) * p.blocks + block_index()) * p.rounds + i] = log[i];
  }
  wrong = warp_sum(wrong);
  checked = warp_sum(checked);
  if (warp_thread() == 0) {
    add_relaxed(p.results + 0, wrong);
    add_relaxed(p.results + 1, checked);
  }
}

KERNEL(exchange_mail, MailboxParams, 352) {
  u8* shared = dynamic_shared();
  Ring ring = ring_at(shared, p.slots, p.copy_bytes);
  MailboxState* state =
      reinterpret_cast<MailboxState*>(shared + ring_footprint(p.slots, p.copy_bytes));
  u32* log = reinterpret_cast<u32*>(state + 1);  // [rounds]
  if (thread_index() == 0) {
    ring_init(ring, 1);
    stream_init(&state->stream);
    state->failed = 0;
  }
  block_barrier();  // publishes the barriers and the control words to all warps
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  u32 worker = p.own * p.blocks + block_index();
  u32 sum = 0;
  if (warp_index() == 0) {
    if (p.stream && warp_thread() == 0) {
      stream_produce(ring, &state->stream, p.stream_from + static_cast<u64>(worker) * p.run_bytes,
                     static_cast<u32>(p.run_bytes / p.copy_bytes), patient(dog));
    }
  } else if (warp_index() < FIRST_ROUND_WARP) {
    if (p.stream)
      sum = stream_consume(ring, &state->stream, warp_index() - 1, READERS, patient(dog));
  } else {
    run_rounds(p, state, log, dog);
  }
  sum = warp_sum(sum);
  if (warp_thread() == 0) add_relaxed(p.stream_sums + worker, sum);
  block_barrier();  // the producer's last count is final; guards the read below
  if (thread_index() == 0 && p.stream) p.stream_chunks[worker] = state->stream.last;
}
