// Mailboxes between kernels that run at the same time, each in its own stream, as eight GPUs would
// do with peer memory: 16 blocks push 12 KB of sentinel words into the peers' mailboxes and wait
// for theirs. System scope throughout, because that is the code that peers need.
#include "params.h"
#include "rounds.cuh"

constexpr u32 ROUND_THREADS = 192;
constexpr u32 BUFFERS = 2;
constexpr u32 MAX_KERNELS = 8;

DEVICE void round_barrier() { named_barrier(1, ROUND_THREADS); }

DEVICE u32 mail_word(u32 round, u32 from, u32 to, u32 index) {
  return published_word((static_cast<u64>(round) << 32) | index, from * MAX_KERNELS + to);
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

DEVICE void run_rounds(const MailboxParams& p, RoundState* state, u32* log, const Watchdog& dog) {
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
  RoundsBegin begin = begin_rounds(p, state);
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
  u64 row = static_cast<u64>(p.own) * p.blocks + block_index();
  end_rounds<ROUND_THREADS>(p, row, state, log, begin, wrong, checked);
}

KERNEL(exchange_mail, MailboxParams, 352) {
  u8* shared = dynamic_shared();
  Ring ring = ring_at(shared, p.slots, p.copy_bytes);
  RoundState* state = reinterpret_cast<RoundState*>(shared + ring_footprint(p.slots, p.copy_bytes));
  u32* log = reinterpret_cast<u32*>(state + 1);  // [rounds]
  if (thread_index() == 0) round_init(ring, state);
  block_barrier();  // publishes the barriers and the control words to all warps
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  u32 worker = p.own * p.blocks + block_index();
  const u8* run = p.stream_from + static_cast<u64>(worker) * p.run_bytes;
  u32 sum = 0;
  if (warp_index() < FIRST_ROUND_WARP) {
    sum = stream_beside(p, ring, state, run, dog);
  } else {
    run_rounds(p, state, log, dog);
  }
  report_stream_sum(p, worker, sum);
  report_stream_chunks(p, worker, state);
}
