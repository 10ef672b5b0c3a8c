// A block as its own code sees it: who it is, what it holds in shared memory, and how it waits.
//
// Shape legend: T rows of a pass, L lanes, B blocks of a lane, W = L * B, N layers, D hidden,
// F intermediate, H query heads, K KV heads, h head_dim, V vocabulary, S splits. Sizes written in
// capitals are constants of the specialisation and count per lane.
#pragma once
#include "primitives.cuh"
#include "specialisation.h"

constexpr u32 THREADS = WARPS * 32;  // that compute
constexpr u32 TOKEN_TILES = (WIDTH + 7) / 8;
constexpr u32 GROUP_HEADS = HEADS / KV_HEADS;  // query heads that read one KV head
constexpr u32 QKV_ROWS = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
constexpr u32 KV_ELEMENTS = KV_ROW_BYTES / 2;
constexpr f32 LOG2E = 1.4426950408889634f;

DEVICE constexpr u32 even(u32 count) { return count + count % 2; }
constexpr u32 KEPT = KEPT_PASSES ? KEPT_PASSES : 1;

// ---- what operations exchange ------------------------------------------------------------------
// Which operation runs when comes from the program (specialisation.h). What one exchanges, and
// where it has its barriers, is written out in its function, and stated beside it: the compiler
// compares the statement with what the host has proven.
constexpr u32 BARRIER = VERB_BARRIER * TOUCH_VERB;
DEVICE constexpr u32 await(u32 what, u32 when = WHEN_ALWAYS) {
  return VERB_AWAIT * TOUCH_VERB + when * TOUCH_WHEN + what;
}
DEVICE constexpr u32 tell(u32 what, u32 when = WHEN_ALWAYS) {
  return VERB_PUBLISH * TOUCH_VERB + when * TOUCH_WHEN + what;
}
template <typename... Touches>
DEVICE constexpr bool is_proven(Op op, Touches... stated) {
  const u32 touches[] = {stated..., 0};
  for (u32 i = 0; i <= sizeof...(stated); ++i) {
    if (TOUCHES[op][i] != touches[i]) return false;
  }
  return true;
}

struct Candidate {  // the larger key wins, then the lower token
  u32 key, token;
};

struct State {
  // The pass: T rows, laid out alike by every block.
  u32 width;  // 0: the launch is over
  u32 wanted;
  u32 slot[WIDTH], position[WIDTH], token[WIDTH];
  u32 first[WIDTH];  // the first row of the same slot
  u32 wanted_row[WIDTH], wanted_advance[WIDTH];
  u32 chosen[WIDTH];   // by order of `wanted`
  u32 verdict[WIDTH];  // of their guides, where there are any
  // The epoch.
  Progress running[WIDTH];
  u32 pass_number, events, logit_rows;
  u32 first_stamp;  // of the pass; with BAD_STAMPS once this block has given up
  u32 stop;         // the host asked for the end
  u32 over;         // the producer may leave
  u32 failed;       // a wait starved: every later wait of this block falls through, and what it
                    // publishes has stamps that nobody awaits
  f32 inverse_norm[WIDTH];
  f32 head_gain[QK_NORM == 2 ? 2 * WIDTH : 1];  // of queries, then of keys, of each token
  f32 sum;
  f32 warp_sums[WARPS];
  Candidate best[WIDTH][WARPS];
};
static_assert(AT_STATE + sizeof(State) <= AT_TOTAL, "the state outgrew its place");

struct Block {
  const Params& p;
  u8* shared;
  State* state;
  u32 worker, lane, member;  // of all devices' blocks: worker = lane * BLOCKS + member
  u32 thread, warp, index;   // index within the warp
  u32 slot = 0, parity = 0;  // of the next ring slot that this warp reads
  bool spoiled = false;      // a wait for a ring slot starved
  u32 phase = 0;             // for trace and faults
  u32 asked = 0;             // what block 0 read of the host's wish to end
  u32 syncs = 0;             // of the lane, since the words were cleared; wide passes only
  Word early[LANES] = {};    // outputs of other lanes, asked for before the product

  DEVICE_MEMBER u64* full(u32 i) const { return reinterpret_cast<u64*>(shared + AT_BARRIERS) + i; }
  DEVICE_MEMBER u64* empty(u32 i) const { return full(RING_SLOTS + i); }
  // 16-bit activations of a token, [padded columns]: the input of the phase's products. A wide pass
  // keeps them in memory, where its lane shares them; products take turns with two buffers, and
  // each has one sync: before it they are written, after it they are `synced_activations`.
  DEVICE_MEMBER u8* lane_activations(u32 sync, u32 t) const {
    u64 row = (static_cast<u64>(sync % ACTIVATION_SLOTS) * LANES + lane) * WIDTH + t;
    return p.activation_rows + row * ACTIVATION_STRIDE;
  }
  DEVICE_MEMBER const u8* synced_activations() const { return lane_activations(syncs + 1, 0); }
  DEVICE_MEMBER u8* activations(u32 t) const {
    if constexpr (WIDE) {
      return lane_activations(syncs, t);
    } else {
      return shared + AT_ACTIVATIONS + t * ACTIVATION_STRIDE;
    }
  }
  DEVICE_MEMBER f32* partial() const { return reinterpret_cast<f32*>(shared + AT_PARTIAL); }
  // A token's sums of the product's rows, where their parts are added round by round.
  DEVICE_MEMBER f32* totals(u32 t) const {
    return p.totals + static_cast<u64>(worker * WIDTH + t) * TOTAL_ROWS;
  }
  DEVICE_MEMBER f32* scales() const { return reinterpret_cast<f32*>(shared + AT_SCALES); }
  DEVICE_MEMBER f32* stream(u32 t) const {  // own rows of the residual stream
    if constexpr (WIDE) {
      return p.own_streams + static_cast<u64>(worker * WIDTH + t) * OWN_ROWS;
    } else {
      return reinterpret_cast<f32*>(shared + AT_STREAM) + t * OWN_ROWS;
    }
  }
  DEVICE_MEMBER f32* gained(u32 t) const {  // what a module adds to them, where that is normed
    if constexpr (WIDE) {
      return p.own_gains + static_cast<u64>(worker * WIDTH + t) * OWN_ROWS;
    } else {
      return reinterpret_cast<f32*>(shared + AT_GAINED) + t * OWN_ROWS;
    }
  }
  // 16-bit query of (token, head of the KV head's group) number `row`.
  DEVICE_MEMBER u16* query(u32 row) const {
    return reinterpret_cast<u16*>(shared + AT_QUERY + row * QUERY_STRIDE);
  }
  // Whose activations this block prepares: a narrow block those of all tokens, for itself; a wide
  // one those of every BLOCKS-th token, for its lane.
  DEVICE_MEMBER u32 prepared_tokens() const {
    if constexpr (WIDE) return (state->width + BLOCKS - 1 - member) / BLOCKS;
    return state->width;
  }
  DEVICE_MEMBER u32 prepared_token(u32 i) const { return WIDE ? member + i * BLOCKS : i; }
  // Its place, and that of its lane, on its device; the first block there speaks for the device.
  DEVICE_MEMBER u32 here() const { return block_index(); }
  DEVICE_MEMBER u32 lane_here() const { return DEVICES > 1 ? lane % DEVICE_LANES : lane; }
  DEVICE_MEMBER bool leads() const { return here() == 0; }
  // Its rows; of what differs from layer to layer, in that layer.
  DEVICE_MEMBER Share share(u32 table, u32 layer = 0) const {
    table += layer % SHARE_LAYERS * SHARE_TABLES;
    if constexpr (SWITCH_TABLES) return reinterpret_cast<const Share*>(shared + AT_SHARES)[table];
    return p.shares[table * WORKERS + worker];
  }
  // Rounds of its products: 0 to 3 of a layer, then the head's.
  DEVICE_MEMBER u32 rounds(u32 layer, u32 product) const {
    return (shared +
            AT_ROUNDS)[product < 4 ? layer % SHARE_LAYERS * 4 + product : 4 * SHARE_LAYERS];
  }
  // What slots are asked to do, and their stop tokens; with TOKEN_END in shared memory.
  DEVICE_MEMBER Advance* requests() const {
    return reinterpret_cast<Advance*>(shared + AT_REQUESTS);
  }
  DEVICE_MEMBER u32* held_stops() const { return reinterpret_cast<u32*>(requests() + WIDTH); }
  DEVICE_MEMBER u32 stop_token(u32 i) const {
    if constexpr (SWITCH_TOKEN_END) {
      if (i < HELD_STOPS) return held_stops()[i];
    }
    return p.stops[i];
  }
  DEVICE_MEMBER const Advance& request(u32 i) const {
    if constexpr (SWITCH_TOKEN_END) return requests()[i];
    return p.advances[i];
  }
  // Which copy of a buffer is meant: the `usual` one, as copies take turns; in a kernel for
  // diagnosis that of this very event, number `event` of `events` in a pass, so that a launch
  // leaves every word behind. Only addresses differ then. As Program.slot has it.
  DEVICE_MEMBER u32 copy(u32 usual, u32 event = 0, u32 events = 1) const {
    if constexpr (KEPT_PASSES > 0) return state->pass_number % KEPT * events + event;
    return usual;
  }
  // To be asked for behind the last wait before the word is told: a wait that was given up makes
  // the block's stamps bad.
  DEVICE_MEMBER u32 stamp(u32 event) const { return state->first_stamp + event; }
};

// The block barrier of all warps that compute; the producer does not take part.
DEVICE void compute_barrier() { named_barrier(1, THREADS); }

// ---- several devices ---------------------------------------------------------------------------
// What a block awaits lies in its own device's memory, so that no poll crosses a link: who makes a
// word that other devices await stores it at home and, at the same place, with each of them. Loads
// of such words have system scope, as the stores across the link do.
DEVICE constexpr bool is_posted(u32 what) { return POSTED >> what & 1; }

DEVICE void store_at_peer(const Block& b, u32 device, Word* word, u32 value, u32 stamp) {
  u8* there = reinterpret_cast<u8*>(word) + b.p.peers[device];
  publish_system(reinterpret_cast<Word*>(there), value, stamp);
}
DEVICE void store_at_peers(const Block& b, Word* word, u32 value, u32 stamp) {
#pragma unroll
  for (u32 i = 1; i < DEVICES; ++i) {  // each begins with its neighbour
    store_at_peer(b, (b.p.device + i) % DEVICES, word, value, stamp);
  }
}
template <Awaited WHAT>
DEVICE void post(const Block& b, Word* word, u32 value, u32 stamp) {
  publish(word, value, stamp);
  if constexpr (is_posted(WHAT)) store_at_peers(b, word, value, stamp);
}
// Where one block alone awaits it.
template <Awaited WHAT>
DEVICE void post_to(const Block& b, u32 reader, Word* word, u32 value, u32 stamp) {
  if constexpr (is_posted(WHAT)) {
    const u32 device = reader / DEVICE_WORKERS;
    if (device != b.p.device) return store_at_peer(b, device, word, value, stamp);
  }
  publish(word, value, stamp);
}
DEVICE Word look(Awaited what, const Word* at) {
  return is_posted(what) ? load_word_system(at) : load_word(at);
}
DEVICE WordPair look_at_pair(Awaited what, const Word* at) {
  return is_posted(what) ? load_pair_system(at) : load_pair(at);
}

// Whether another device gave up.
DEVICE bool is_alarmed(const Params& p) {
  if constexpr (DEVICES > 1) return load_word_system(p.alarm_word).stamp != 0;
  return false;
}
DEVICE void raise_alarm(const Block& b) {
  if constexpr (DEVICES > 1) {
    store_at_peers(b, b.p.alarm_word, b.p.device, 1);
    fence_system();
  }
}

// ---- waiting -----------------------------------------------------------------------------------
constexpr u32 ITS_OWN = 0xffffffffu;  // blocks of the waiting one's device are awaited
struct FromItsOwn {
  DEVICE_MEMBER u32 operator()(u32) const { return ITS_OWN; }
};

struct Patience {  // of one wait with its watchdog; looks at the clock only now and then
  u32 looks = 0;
  u64 since = 0;
};

constexpr u32 BAD_STAMPS = 0x80000000u;  // a bit that no good stamp has

// Whether to stop waiting: never in a healthy launch. The first wait that starves says which it
// was; from then on this block's waits fall through, so that it reaches the end of its pass and
// leaves. What it goes on with is garbage, so its stamps are bad from then on: nobody takes such a
// word, others starve in their turn, and see the fault when they look. Threads that have heard of
// it here have it by the fences, all others by a barrier (bench/gpu/litmus/protocols.txt). `source`
// is the block whose words do not come.
DEVICE bool give_up(const Block& b, Patience& patience, Awaited what, u32 detail,
                    u32 source = ITS_OWN) {
  if (shared_peek(&b.state->failed)) {
    fence_block();
    return true;
  }
  if (++patience.looks % 256 != 0) return false;
  u64 now = time_ns();
  if (patience.since == 0) patience.since = now;
  const bool heard = is_alarmed(b.p);
  if (now - patience.since < b.p.watchdog_ns && load_relaxed(b.p.fault) == 0 && !heard) {
    return false;
  }
  raise_alarm(b);
  if (swap_if(b.p.fault, 0, what) == 0) {
    store_relaxed(b.p.fault + 1, b.worker);
    store_relaxed(b.p.fault + 2, sm_id());
    store_relaxed(b.p.fault + 3, b.phase);
    store_relaxed(b.p.fault + 4, detail);
    store_relaxed(b.p.fault + 5, b.state->pass_number);
    if constexpr (DEVICES > 1) {
      store_relaxed(b.p.fault + 6, source == ITS_OWN ? b.p.device : source / DEVICE_WORKERS);
      store_relaxed(b.p.fault + 7, heard);
    }
  }
  shared_poke(&b.state->first_stamp, shared_peek(&b.state->first_stamp) | BAD_STAMPS);
  fence_block();
  shared_poke(&b.state->failed, 1);
  return true;
}

// Of bits that are not all zero: whose words are late, for the fault.
DEVICE u32 lowest(u32 bits) {
  u32 bit = 0;
  if constexpr (DEVICES == 1) return bit;  // nobody asks
  while (!(bits >> bit & 1)) ++bit;
  return bit;
}

// Which of the pending words to look at after a look. With GATE, who has looked in vain asks for
// one until it is there, and then for all that are left: fewer loads while nothing comes, one trip
// more when it does. Each word's own stamp is looked at all the same.
DEVICE u32 next_asked(u32 pending, u32 before) {
  if constexpr (SWITCH_GATE) return pending == before ? pending & (0u - pending) : pending;
  return pending;
}

// Waits for pairs of neighbouring words, `count` in all, spread over the block's threads:
// at(i) is where pair i lies, use(i, first, second) takes the values. Loads of several pairs are
// in flight together. Nothing is ordered by this but the values themselves: a word is its own flag.
// source(i) is the block that makes pair i, where it may be another device's.
template <typename At, typename Use, typename Source = FromItsOwn>
DEVICE void await_pairs(const Block& b, u32 count, u32 stamp, Awaited what, At at, Use use,
                        Source source = Source{}) {
  constexpr u32 BATCH = WIDE ? 8 : 4;
  for (u32 begin = b.thread; begin < count; begin += BATCH * THREADS) {
    WordPair got[BATCH] = {};
    u32 pending = 0;
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) pending |= (begin + k * THREADS < count) << k;
    u32 asked = pending;
    Patience patience;
    while (true) {
#pragma unroll
      for (u32 k = 0; k < BATCH; ++k) {
        if (asked >> k & 1) got[k] = look_at_pair(what, at(begin + k * THREADS));
      }
      const u32 before = pending;
#pragma unroll
      for (u32 k = 0; k < BATCH; ++k) {
        if (got[k].a.stamp == stamp && got[k].b.stamp == stamp) pending &= ~(1u << k);
      }
      if (!pending) break;
      asked = next_asked(pending, before);
      if (give_up(b, patience, what, begin, source(begin + lowest(pending) * THREADS))) break;
    }
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) {
      u32 i = begin + k * THREADS;
      if (i < count) use(i, got[k].a.value, got[k].b.value);
    }
  }
}

DEVICE u32 await_word(const Block& b, const Word* at, u32 stamp, Awaited what,
                      u32 source = ITS_OWN) {
  Patience patience;
  Word got = look(what, at);
  while (got.stamp != stamp && !give_up(b, patience, what, 0, source)) got = look(what, at);
  return got.value;
}

// All blocks of the lane, counted: what any of them stored before it, in memory, the others may
// load after it, past their L1. The barriers collect the block's stores for the release and hand
// the acquire to its threads.
DEVICE void sync_lane(Block& b) {
  compute_barrier();
  b.syncs += 1;
  if (b.thread == 0) {
    u32* counter = b.p.lane_counters + b.lane * 32;  // a cache line each
    if (!b.state->failed) add_release(counter, 1);
    Patience patience;
    while (static_cast<i32>(load_acquire(counter) - b.syncs * BLOCKS) < 0) {
      if (give_up(b, patience, AWAIT_LANE, b.syncs)) break;
    }
  }
  compute_barrier();
}

// ---- numbers -----------------------------------------------------------------------------------
// Activations and cached keys and values have the 16-bit type of the weights; FP8 weights take f16.
DEVICE u32 pack16(f32 low, f32 high) {
  if constexpr (WEIGHTS == BF16) {
    return pack_bf16x2(low, high);
  } else {
    return pack_f16x2(low, high);
  }
}
DEVICE f32 low16(u32 pair) {
  if constexpr (WEIGHTS == BF16) {
    return bf16_low(pair);
  } else {
    return f16_low(pair);
  }
}
DEVICE f32 high16(u32 pair) {
  if constexpr (WEIGHTS == BF16) {
    return bf16_high(pair);
  } else {
    return f16_high(pair);
  }
}

// cap * tanh(x / cap), within cap * 2^-22.
DEVICE f32 capped(f32 x, f32 cap) {
  const f32 size = divide(x < 0 ? -x : x, cap);
  const f32 bent = cap * (1.0f - divide(2.0f, exp2_fast(2 * LOG2E * size) + 1.0f));
  return x < 0 ? -bent : bent;
}

// Stores the activations of columns c and c + 1 (c even) of a token.
DEVICE void put_activations(const Block& b, u32 t, u32 c, f32 low, f32 high) {
  *reinterpret_cast<u32*>(b.activations(t) + 2 * c) = pack16(low, high);
}

// Columns that a phase's tiles have beyond its real ones: their weights are zero, and so must the
// activations be, for what an earlier phase left there may be an infinity.
template <u32 COLUMNS, u32 PADDED>
DEVICE void clear_padding(const Block& b) {
  constexpr u32 FIRST = even(COLUMNS);  // an odd last column has a zero at its side already
  if constexpr (PADDED > FIRST) {
    constexpr u32 PAIRS = (PADDED - FIRST) / 2;
    for (u32 i = b.thread; i < PAIRS * b.prepared_tokens(); i += THREADS) {
      put_activations(b, b.prepared_token(i / PAIRS), FIRST + i % PAIRS * 2, 0.0f, 0.0f);
    }
  }
}

// ---- trace: when the block arrived at a phase, began it and ended it ---------------------------
DEVICE void note(const Block& b, u32 moment) {
  if (b.p.trace == nullptr || b.thread != 0) return;
  u64 row = static_cast<u64>(b.state->pass_number % TRACE_PASSES) * PASS_STEPS + b.phase;
  b.p.trace[(row * WORKERS + b.worker) * 3 + moment] = time_ns();
}
enum Moment : u32 { ARRIVED = 0, BEGUN = 1, ENDED = 2 };
