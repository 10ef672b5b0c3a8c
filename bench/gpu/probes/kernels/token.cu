// Choosing a token: arg-max over the logits of all blocks with candidates exchanged as sentinel
// words, Gumbel noise, and the way to the host and back through pinned memory.
#include "params.h"
#include "primitives.cuh"

constexpr u32 SENTINEL = 0xffffffffu;  // no candidate's word: keys and ids stay below it
constexpr u32 THREADS = 256;

enum Noise : u32 { NO_NOISE = 0, NOISE_FLOAT = 1, NOISE_DOUBLE = 2 };

// First word of Philox4x32-10(key = seed, counter = (token id, position, 0, 0)).
DEVICE u32 philox_word(u64 seed, u32 token, u32 position) {
  u32 c0 = token, c1 = position, c2 = 0, c3 = 0;
  u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u32 h0 = multiply_high(0xd2511f53u, c0), l0 = 0xd2511f53u * c0;
    u32 h1 = multiply_high(0xcd9e8d57u, c2), l1 = 0xcd9e8d57u * c2;
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c0;
}

// u = ((w >> 8) + 0.5) * 2^-24, g = -log(-log(u)): in double, rounded once.
DEVICE float gumbel_double(u32 word) {
  double u = (static_cast<double>(word >> 8) + 0.5) * 5.9604644775390625e-8;
  return static_cast<float>(-log_double(-log_double(u)));
}

// The same in float. (w >> 8) + 0.5 needs 25 bits above one half, where u would round up to 1 and g
// to infinity; 1 - u needs fewer there, hence log1p.
DEVICE float gumbel_float(u32 word) {
  u32 k = word >> 8;
  float minus_log;
  if (k < (1u << 23)) {
    minus_log = -log_float((static_cast<float>(k) + 0.5f) * 5.9604644775390625e-8f);
  } else {
    float v = (static_cast<float>((1u << 24) - 1 - k) + 0.5f) * 5.9604644775390625e-8f;
    minus_log = -log1p_float(-v);
  }
  return -log_float(minus_log);
}

DEVICE float gumbel(u32 noise, u64 seed, u32 token, u32 position) {
  if (noise == NO_NOISE) return 0.0f;
  u32 word = philox_word(seed, token, position);
  return noise == NOISE_DOUBLE ? gumbel_double(word) : gumbel_float(word);
}

// Writes the noise itself, to be compared with the definition.
KERNEL(gumbel_table, TokenParams, 256) {
  u32 step = block_count() * block_threads();
  for (u32 i = block_index() * block_threads() + thread_index(); i < p.vocabulary; i += step) {
    p.table[i] = gumbel(p.noise, p.seed, i, p.position);
  }
}

// A candidate orders by logit, then by the lower id: larger key wins.
struct Candidate {
  u32 key;  // order-preserving bits of the logit
  u32 id;
};
DEVICE u32 ordered_key(float value) {
  u32 bits = bits_of_float(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE Candidate better(Candidate a, Candidate b) {
  bool take_b = b.key > a.key || (b.key == a.key && b.id < a.id);
  return take_b ? b : a;
}
DEVICE Candidate warp_best(Candidate c) {
  for (u32 mask = 16; mask; mask >>= 1) {
    c = better(c, Candidate{shuffle_xor(c.key, mask), shuffle_xor(c.id, mask)});
  }
  return c;
}
// All threads get the block's best. `scratch` holds one candidate per warp.
DEVICE Candidate block_best(Candidate c, Candidate* scratch) {
  c = warp_best(c);
  block_barrier();  // guards the scratch against the readers of the previous call
  if (warp_thread() == 0) scratch[warp_index()] = c;
  block_barrier();  // publishes the warps' candidates; guards the loads below
  c = scratch[0];
  for (u32 w = 1; w < THREADS / 32; ++w) c = better(c, scratch[w]);
  return c;
}

// p.rounds choices. Each block holds its ids [first, first + count) of p.sets logit vectors in
// shared memory, as a head would leave them; all blocks end a round knowing the same token.
KERNEL(choose, TokenParams, 256) {
  Candidate* scratch = reinterpret_cast<Candidate*>(dynamic_shared());
  u32* failed = reinterpret_cast<u32*>(scratch + THREADS / 32);
  float* logits = reinterpret_cast<float*>(failed + 4);
  u32 blocks = block_count();
  u32 first = static_cast<u32>(static_cast<u64>(p.vocabulary) * block_index() / blocks);
  u32 count =
      static_cast<u32>(static_cast<u64>(p.vocabulary) * (block_index() + 1) / blocks) - first;
  for (u32 set = 0; set < p.sets; ++set) {
    for (u32 i = thread_index(); i < count; i += THREADS) {
      logits[set * count + i] = p.logits[static_cast<u64>(set) * p.vocabulary + first + i];
    }
  }
  if (thread_index() == 0) *failed = 0;
  block_barrier();  // publishes the logits to all threads
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  u64 begin_cycles = clock_cycles(), begin_ns = time_ns();
  for (u32 round = 0; round < p.rounds; ++round) {
    block_barrier();  // all threads start the round together
    u64 start = clock_cycles();
    const float* row = logits + round % p.sets * count;
    Candidate best{0, SENTINEL - 1};
    for (u32 i = thread_index(); i < count; i += THREADS) {
      float value = row[i] + gumbel(p.noise, p.seed, first + i, p.position + round);
      best = better(best, Candidate{ordered_key(value), first + i});
    }
    best = block_best(best, scratch);
    // Three buffers of [blocks][2] words; the one re-armed here was read in round - 2, by blocks
    // that have all published round - 1 since.
    u32* now = p.candidates + (round % 3) * blocks * 2;
    u32* old = p.candidates + ((round + 1) % 3) * blocks * 2;
    if (thread_index() < 2) {
      store_relaxed(old + block_index() * 2 + thread_index(), SENTINEL);
      fence_device();  // orders the re-arming before the publish
      store_relaxed(now + block_index() * 2 + thread_index(),
                    thread_index() == 0 ? best.key : best.id);
    }
    Candidate other{0, SENTINEL - 1};
    if (thread_index() < blocks) {
      const u32* theirs = now + thread_index() * 2;
      while ((other.key = load_relaxed(theirs)) == SENTINEL ||
             (other.id = load_relaxed(theirs + 1)) == SENTINEL) {
        if (starved(dog, WAIT_CANDIDATES, round)) {
          shared_poke(failed, 1);
          break;
        }
      }
    }
    best = block_best(other, scratch);
    if (thread_index() == 0) {
      p.log[static_cast<u64>(block_index()) * p.rounds + round] =
          static_cast<u32>(clock_cycles() - start);
      p.chosen[static_cast<u64>(block_index()) * p.rounds + round] = best.id;
    }
    if (shared_peek(failed)) break;  // block_best's barriers have ordered the flag
  }
  if (thread_index() == 0) {
    u64* out = p.totals + static_cast<u64>(block_index()) * 4;
    out[0] = clock_cycles() - begin_cycles;
    out[1] = time_ns() - begin_ns;
    out[2] = 0;
    out[3] = sm_id();
  }
}

// The host writes n into host_to_device, the device answers n in device_to_host and measures until
// the host's n + 1 arrives: one trip to the host and back.
KERNEL(host_ping, TokenParams, 32) {
  if (thread_index() != 0) return;
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  u64 sent = 0;
  u64 begin_cycles = clock_cycles(), begin_ns = time_ns();
  for (u32 round = 1; round <= p.rounds; ++round) {
    while (load_relaxed_system(p.host_to_device) != round) {
      if (starved(dog, WAIT_HOST, round)) return;
    }
    u64 now = clock_cycles();
    if (round > 1) p.log[round - 2] = static_cast<u32>(now - sent);
    sent = now;
    store_relaxed_system(p.device_to_host, round);
  }
  p.totals[0] = clock_cycles() - begin_cycles;
  p.totals[1] = time_ns() - begin_ns;
}
