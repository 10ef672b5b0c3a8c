// One matvec phase of one SM at the model's shapes: weights come through a bulk-copy ring (stream)
// or stay in it (resident: the same instructions with no memory behind them, which gives the
// compute rate). Weights are packed in consumption order: step s holds one piece for each of the 8
// warps, so a slot is 8 pieces and a warp reads its own by 16-byte loads without conflicts.
//
// A unit is (row tile, part of the columns); warp w takes units w, w + 8, ...; partial results meet
// in shared memory once per phase and are added in a fixed order. FMA units are 4 rows, one thread
// per 8 (16-bit) or 16 (8-bit) columns; matrix-instruction units are 16 rows, pre-shuffled as
// fragments.
#include "params.h"
#include "ring.cuh"

constexpr u32 WARPS = 8;
constexpr u32 THREADS = (WARPS + 1) * 32;

enum Kind { BF16 = 0, FP8 = 1, INT8 = 2, INT4 = 3 };

template <Kind KIND>
struct Format {
  static constexpr u32 bits = KIND == BF16 ? 16 : KIND == INT4 ? 4 : 8;
};

struct Phase {  // what the warps of a block share
  Ring ring;
  const Vec4* x;   // activations; layout by method
  float* partial;  // [partial_buffers][column parts][rows][width]
  RingCursor at;
  bool resident;
  bool filled;  // resident only: the first trip round the ring has been waited for
};

// The next slot of this warp: waits in stream mode, and on the first trip in resident mode.
DEVICE bool next_slot(Phase& ph, const Watchdog& dog) {
  if (ph.resident && ph.filled) return true;
  return ring_wait_warp(ph.ring, ph.at, dog);
}
DEVICE void leave_slot(Phase& ph) {
  if (!ph.resident) {
    ring_release(ph.ring, ph.at);
    ring_advance(ph.at, ph.ring, 1);
    return;
  }
  if (++ph.at.slot == ph.ring.count) {
    ph.at.slot = 0;
    ph.filled = true;
  }
}

// ---- decoding
// ------------------------------------------------------------------------------------ Four weights
// (quad q of a 16-byte vector) as floats.
template <Kind KIND>
DEVICE void decode_quad(const u32 (&v)[4], int q, float (&out)[4]) {
  if constexpr (KIND == BF16) {
    out[0] = float_of_bits(v[2 * q] << 16);
    out[1] = float_of_bits(v[2 * q] & 0xffff0000u);
    out[2] = float_of_bits(v[2 * q + 1] << 16);
    out[3] = float_of_bits(v[2 * q + 1] & 0xffff0000u);
  } else if constexpr (KIND == FP8) {
    floats_of_f16x2(f16x2_of_e4m3x2(v[q] & 0xffff), out[0], out[1]);
    floats_of_f16x2(f16x2_of_e4m3x2(v[q] >> 16), out[2], out[3]);
  } else {
    // A byte in the mantissa of 2^23 is 2^23 + byte; bytes are stored with 128 added.
    out[0] = float_of_bits(select_bytes(v[q], 0x4b000000u, 0x7440)) - 8388736.0f;
    out[1] = float_of_bits(select_bytes(v[q], 0x4b000000u, 0x7441)) - 8388736.0f;
    out[2] = float_of_bits(select_bytes(v[q], 0x4b000000u, 0x7442)) - 8388736.0f;
    out[3] = float_of_bits(select_bytes(v[q], 0x4b000000u, 0x7443)) - 8388736.0f;
  }
}

// Two 8-bit words (8 weights) to one f16 fragment.
template <Kind KIND>
DEVICE Vec4 fragment_of_bytes(u32 low, u32 high) {
  if constexpr (KIND == FP8) {
    return Vec4{f16x2_of_e4m3x2(low & 0xffff), f16x2_of_e4m3x2(low >> 16),
                f16x2_of_e4m3x2(high & 0xffff), f16x2_of_e4m3x2(high >> 16)};
  } else {
    // 0x64xx is 1024 + xx in f16; bytes are stored with 128 added, and 0x6480 is 1152.
    constexpr u32 MAGIC = 0x64646464u, BIAS = 0x64806480u;
    return Vec4{subtract_f16x2(select_bytes(low, MAGIC, 0x4140), BIAS),
                subtract_f16x2(select_bytes(low, MAGIC, 0x4342), BIAS),
                subtract_f16x2(select_bytes(high, MAGIC, 0x4140), BIAS),
                subtract_f16x2(select_bytes(high, MAGIC, 0x4342), BIAS)};
  }
}

// One word (8 weights, stored with 8 added; pair i in nibbles i and i + 4) to one f16 fragment.
DEVICE Vec4 fragment_of_nibbles(u32 word) {
  constexpr u32 MASK = 0x000f000fu, MAGIC = 0x64006400u, BIAS = 0x64086408u;  // 1032
  return Vec4{subtract_f16x2((word & MASK) | MAGIC, BIAS),
              subtract_f16x2((word >> 4 & MASK) | MAGIC, BIAS),
              subtract_f16x2((word >> 8 & MASK) | MAGIC, BIAS),
              subtract_f16x2((word >> 12 & MASK) | MAGIC, BIAS)};
}

DEVICE void to_array(const Vec4& v, u32 (&out)[4]) {
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

// ---- FMA: 4 rows per unit; a piece is 4 rows x 32 threads x 16 bytes
// ------------------------------ Activations are float, [width][quad of the thread][vector][4], so
// that a warp's loads are contiguous.
template <Kind KIND, int WIDTH>
DEVICE bool fma_unit(const MatvecParams& p, Phase& ph, u32 unit, float* partial,
                     const Watchdog& dog) {
  constexpr int ROWS = 4, QUADS = KIND == BF16 ? 2 : 4;
  constexpr u32 COLUMNS = QUADS * 4 * 32;  // of a piece
  u32 part = unit % p.column_parts, tile = unit / p.column_parts;
  u32 pieces = p.columns / p.column_parts / COLUMNS;
  u32 vectors = p.x_period / (QUADS * 4);  // of one quad plane
  u32 vector = part * pieces * 32 % vectors + warp_thread();
  float sum[ROWS][WIDTH] = {};
  for (u32 piece = 0; piece < pieces; ++piece) {
    if (!next_slot(ph, dog)) return false;
    const Vec4* at = reinterpret_cast<const Vec4*>(ph.ring.slots + ph.at.slot * ph.ring.bytes) +
                     warp_index() * (ROWS * 32) + warp_thread();
    u32 v[ROWS][4];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) to_array(at[r * 32], v[r]);
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
      float w[ROWS][4];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) decode_quad<KIND>(v[r], q, w[r]);
#pragma unroll
      for (int t = 0; t < WIDTH; ++t) {
        Vec4 x = ph.x[(t * QUADS + q) * vectors + vector];
        float x0 = float_of_bits(x.x), x1 = float_of_bits(x.y);
        float x2 = float_of_bits(x.z), x3 = float_of_bits(x.w);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          sum[r][t] += w[r][0] * x0;
          sum[r][t] += w[r][1] * x1;
          sum[r][t] += w[r][2] * x2;
          sum[r][t] += w[r][3] * x3;
        }
      }
    }
    leave_slot(ph);
    vector += 32;
    if (vector >= vectors) vector -= vectors;
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int t = 0; t < WIDTH; ++t) {
      float total = warp_sum(sum[r][t]);
      if (warp_thread() == 0) {
        partial[(part * p.rows + tile * ROWS + r) * WIDTH + t] = total;
      }
    }
  }
  return true;
}

// ---- matrix instructions: 16 rows per unit
// ------------------------------------------------------- Activations are 16-bit fragments, [pair
// of 16-column tiles][8-token tile][thread][4 words].
template <Kind KIND>
struct Piece {                                        // what one warp takes per step
  static constexpr u32 tiles = KIND == BF16 ? 4 : 8;  // 16-column tiles
  static constexpr u32 fragment_bytes = tiles * 16 * 16 * Format<KIND>::bits / 8;
  static constexpr u32 scale_bytes = KIND == INT4 ? 16 * 4 : 0;  // float per row and 128 columns
  static constexpr u32 bytes = fragment_bytes + scale_bytes;
};

template <Kind KIND>
DEVICE void mma(float (&c)[4], Vec4 a, u32 b0, u32 b1) {
  if constexpr (KIND == BF16) {
    mma_bf16(c, a, b0, b1);
  } else {
    mma_f16(c, a, b0, b1);
  }
}

// The two fragments of column-tile pair `pair` from the vectors of a piece.
template <Kind KIND>
DEVICE void fragments(const Vec4* at, u32 pair, Vec4& first, Vec4& second) {
  if constexpr (KIND == BF16) {
    first = at[2 * pair * 32];
    second = at[(2 * pair + 1) * 32];
  } else if constexpr (KIND == INT4) {
    Vec4 v = at[pair / 2 * 32];
    first = fragment_of_nibbles(pair % 2 ? v.z : v.x);
    second = fragment_of_nibbles(pair % 2 ? v.w : v.y);
  } else {
    Vec4 v = at[pair * 32];
    first = fragment_of_bytes<KIND>(v.x, v.y);
    second = fragment_of_bytes<KIND>(v.z, v.w);
  }
}

template <Kind KIND, int TOKEN_TILES>
DEVICE bool mma_unit(const MatvecParams& p, Phase& ph, u32 unit, float* partial,
                     const Watchdog& dog) {
  constexpr u32 PAIRS = Piece<KIND>::tiles / 2;
  u32 part = unit % p.column_parts, tile = unit / p.column_parts;
  u32 pieces = p.columns / p.column_parts / (Piece<KIND>::tiles * 16);
  u32 x_pairs = p.x_period / 32;
  u32 x_pair = part * pieces * PAIRS % x_pairs;
  float sum[TOKEN_TILES][4] = {};
  for (u32 piece = 0; piece < pieces; ++piece) {
    if (!next_slot(ph, dog)) return false;
    const u8* base = ph.ring.slots + ph.at.slot * ph.ring.bytes + warp_index() * Piece<KIND>::bytes;
    const Vec4* at = reinterpret_cast<const Vec4*>(base) + warp_thread();
    float group[TOKEN_TILES][4] = {};  // int4 only: the sum before its scale
#pragma unroll
    for (u32 pair = 0; pair < PAIRS; ++pair) {
      Vec4 first, second;
      fragments<KIND>(at, pair, first, second);
      const Vec4* x = ph.x + x_pair * (TOKEN_TILES * 32) + warp_thread();
#pragma unroll
      for (int t = 0; t < TOKEN_TILES; ++t) {
        Vec4 b = x[t * 32];
        float (&c)[4] = KIND == INT4 ? group[t] : sum[t];
        mma<KIND>(c, first, b.x, b.y);
        mma<KIND>(c, second, b.z, b.w);
      }
      if (++x_pair == x_pairs) x_pair = 0;
    }
    if constexpr (KIND == INT4) {
      const float* scales = reinterpret_cast<const float*>(base + Piece<KIND>::fragment_bytes);
      float low = scales[warp_thread() / 4], high = scales[warp_thread() / 4 + 8];
#pragma unroll
      for (int t = 0; t < TOKEN_TILES; ++t) {
        sum[t][0] += low * group[t][0];
        sum[t][1] += low * group[t][1];
        sum[t][2] += high * group[t][2];
        sum[t][3] += high * group[t][3];
      }
    }
    leave_slot(ph);
  }
  float* out = partial + (part * p.rows + tile * 16) * p.width;
  u32 row = warp_thread() / 4;
#pragma unroll
  for (int t = 0; t < TOKEN_TILES; ++t) {
    u32 token = t * 8 + warp_thread() % 4 * 2;
    if (token < p.width) {
      out[row * p.width + token] = sum[t][0];
      out[(row + 8) * p.width + token] = sum[t][2];
    }
    if (token + 1 < p.width) {
      out[row * p.width + token + 1] = sum[t][1];
      out[(row + 8) * p.width + token + 1] = sum[t][3];
    }
  }
  return true;
}

// ---- one block: p.phases phases over its own run
// -------------------------------------------------
DEVICE void reader_barrier() { named_barrier(1, WARPS * 32); }

// Adds the column parts in order, applies the row's scale, writes the result and adds its bits to a
// check word: all phases compute the same thing, so the check word is known from one result.
DEVICE void finish_phase(const MatvecParams& p, const float* partial) {
  u32 outputs = p.rows * p.width;
  for (u32 i = thread_index(); i < outputs; i += WARPS * 32) {
    float total = partial[i];
    for (u32 part = 1; part < p.column_parts; ++part) total += partial[part * outputs + i];
    total *= p.row_scales[i / p.width];
    u64 at = static_cast<u64>(block_index()) * outputs + i;
    p.results[at] = total;
    p.check_words[at] += bits_of_float(total);
  }
}

template <typename Unit>
DEVICE void run_phases(const MatvecParams& p, Unit compute) {
  u8* shared = dynamic_shared();
  Phase ph;
  ph.ring = ring_at(shared, p.slots, p.slot_bytes);
  u8* behind = shared + ring_footprint(p.slots, p.slot_bytes);
  u32* failed = reinterpret_cast<u32*>(behind);
  Vec4* x = reinterpret_cast<Vec4*>(behind + 16);
  ph.x = x;
  ph.partial = reinterpret_cast<float*>(x + p.x_vectors);
  ph.at = RingCursor{0, 0};
  ph.resident = p.resident != 0;
  ph.filled = false;
  for (u32 i = thread_index(); i < p.x_vectors; i += THREADS) x[i] = p.x[i];
  if (thread_index() == 0) {
    ring_init(ph.ring, WARPS);
    *failed = 0;
  }
  block_barrier();  // publishes the activations and the initialised barriers to all warps
  Watchdog dog = watchdog(p.fault, p.watchdog_cycles);
  const u8* run = p.weights + static_cast<u64>(block_index()) * p.run_bytes;
  u32 units = p.row_tiles * p.column_parts;
  if (warp_index() == WARPS) {
    if (warp_thread() != 0) return;
    u64 chunks = ph.resident ? p.slots : p.run_bytes / p.slot_bytes;
    u64 policy = policy_evict_first();
    RingCursor at{0, 0};
    u64 issued = 0;
    while (issued < chunks &&
           ring_fill(ph.ring, at, run + issued * p.slot_bytes, true, policy, dog)) {
      ring_advance(at, ph.ring, 1);
      ++issued;
    }
    ring_drain(ph.ring, issued);
    return;
  }
  u64 begin_cycles = 0, begin_ns = 0;
  for (u32 phase = 0; phase < p.phases; ++phase) {
    if (phase == p.untimed_phases) {
      begin_cycles = clock_cycles();
      begin_ns = time_ns();
    }
    if (ph.resident) ph.at.slot = 0;  // step s of every phase reads slot s % slots
    // With two partial buffers the barrier of phase n + 1 lies between the reads of phase n and the
    // writes of phase n + 2, so one barrier per phase is enough.
    float* partial = ph.partial + phase % p.partial_buffers * p.column_parts * p.rows * p.width;
    for (u32 unit = warp_index(); unit < units; unit += WARPS) {
      if (!compute(p, ph, unit, partial, dog)) {
        shared_poke(failed, 1);
        break;
      }
    }
    reader_barrier();  // publishes all partial sums; guards the additions below
    if (shared_peek(failed)) return;
    finish_phase(p, partial);
    if (p.partial_buffers == 1) reader_barrier();  // guards those reads against the next phase
  }
  if (thread_index() == 0) {
    u64* out = p.totals + static_cast<u64>(block_index()) * 4;
    out[0] = clock_cycles() - begin_cycles;
    out[1] = time_ns() - begin_ns;
    out[2] = p.phases - p.untimed_phases;
    out[3] = sm_id();
  }
}

#define MATVEC_FMA(kind, WIDTH)                                                                  \
  KERNEL(matvec_##kind##_fma_##WIDTH, MatvecParams, THREADS) {                                   \
    run_phases(                                                                                  \
        p, [](const MatvecParams& q, Phase& ph, u32 unit, float* partial, const Watchdog& dog) { \
          return fma_unit<kind, WIDTH>(q, ph, unit, partial, dog);                               \
        });                                                                                      \
  }
#define MATVEC_MMA(kind, TOKEN_TILES)                                                            \
  KERNEL(matvec_##kind##_mma_##TOKEN_TILES, MatvecParams, THREADS) {                             \
    run_phases(                                                                                  \
        p, [](const MatvecParams& q, Phase& ph, u32 unit, float* partial, const Watchdog& dog) { \
          return mma_unit<kind, TOKEN_TILES>(q, ph, unit, partial, dog);                         \
        });                                                                                      \
  }

MATVEC_FMA(BF16, 1)
MATVEC_FMA(BF16, 4)
MATVEC_FMA(BF16, 8)
MATVEC_FMA(FP8, 1)
MATVEC_FMA(FP8, 4)
MATVEC_FMA(FP8, 8)
MATVEC_FMA(INT8, 1)
MATVEC_FMA(INT8, 4)
MATVEC_FMA(INT8, 8)
MATVEC_MMA(BF16, 1)
MATVEC_MMA(BF16, 2)
MATVEC_MMA(BF16, 8)
MATVEC_MMA(FP8, 1)
MATVEC_MMA(FP8, 2)
MATVEC_MMA(FP8, 8)
MATVEC_MMA(INT8, 1)
MATVEC_MMA(INT8, 2)
MATVEC_MMA(INT8, 8)
MATVEC_MMA(INT4, 1)
MATVEC_MMA(INT4, 2)
MATVEC_MMA(INT4, 8)
