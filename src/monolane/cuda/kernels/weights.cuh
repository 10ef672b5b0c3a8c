// The weights' way from memory into the matrix units: one warp copies the block's run into a ring
// of shared-memory slots, always as far ahead as slots are free, and the others multiply.
//
// The producer knows nothing of waits: while the block waits for other blocks, the ring fills.
//
// A ring of its own, not that of ring.cuh, which serves the probes: here slots and sizes are
// constants, for a cursor's count and bytes would cost each warp registers that products need,
// copies differ in size from phase to phase, a wait that starves ends by the block's own record of
// faults, and the producer ends when its block does. What both rest on, barriers and copies, is
// shared: primitives.cuh.
#pragma once
#include "block.cuh"

// How the rows of a phase's product fall on warps; none where a phase has no product.
template <PhaseKind KIND>
DEVICE constexpr Tiling tiles_of() {
  if constexpr (KIND == PHASE_QKV) return QKV_TILES;
  if constexpr (KIND == PHASE_OUT) return OUT_TILES;
  if constexpr (KIND == PHASE_GATE_UP) return GATE_UP_TILES;
  if constexpr (KIND == PHASE_DOWN) return DOWN_TILES;
  if constexpr (KIND == PHASE_HEAD) return HEAD_TILES;
  return Tiling{};
}
// Rounds of a block's product. A constant where all blocks have as many.
template <PhaseKind KIND>
DEVICE u32 rounds_of(const Block& b, u32 layer) {
  constexpr u32 PRODUCT = KIND == PHASE_QKV       ? 0
                          : KIND == PHASE_OUT     ? 1
                          : KIND == PHASE_GATE_UP ? 2
                          : KIND == PHASE_DOWN    ? 3
                                                  : 4;
  return UNEVEN ? b.rounds(layer, PRODUCT) : tiles_of<KIND>().rounds;
}

struct Producer {
  const u8* from;
  u32 slot, parity, issued;
  u64 policy;
  u32 landed = 0, landed_slot = 0, landed_parity = 0;  // with IN_FLIGHT: copies that have landed
};

// By the whole producer warp. False: the launch is over.
DEVICE bool produce_slots(Block& b, Producer& to, u32 count, u32 bytes) {
  for (u32 i = 0; i < count; ++i) {
    // The slot is free once every warp has arrived for its last lap: guards the copy's writes
    // against their reads.
    while (!warp_all(barrier_passed(b.empty(to.slot), to.parity ^ 1))) {
      if (warp_any(shared_peek(&b.state->over) != 0)) return false;
    }
    if constexpr (SWITCH_IN_FLIGHT) {
      // Every copy lands, so this ends; a slot that is full stays so until a copy goes there again.
      while (to.issued - to.landed >= SLOTS_IN_FLIGHT) {
        if (!warp_all(barrier_passed(b.full(to.landed_slot), to.landed_parity))) continue;
        to.landed += 1;
        if (++to.landed_slot == RING_SLOTS) to.landed_slot = 0, to.landed_parity ^= 1;
      }
    }
    stream_chunk(b.shared + AT_RING + to.slot * SLOT_BYTES, to.from, bytes, b.full(to.slot),
                 to.policy);
    to.from += bytes;
    to.issued += 1;
    if (++to.slot == RING_SLOTS) to.slot = 0, to.parity ^= 1;
  }
  return true;
}

// The weights of the program's steps FROM .. TO - 1.
template <u32 FROM, u32 TO>
DEVICE bool produce_steps(Block& b, Producer& to, u32 layer) {
  if constexpr (FROM < TO) {
    constexpr PhaseKind KIND = PROGRAM[FROM].kind;
    constexpr Tiling TILES = tiles_of<KIND>();
    if constexpr (TILES.steps > 0) {
      const u32 rounds = rounds_of<KIND>(b, layer);
      if (!produce_slots(b, to, rounds * TILES.steps, TILES.slot_bytes)) return false;
      // A run has room for the busiest block's.
      to.from += (TILES.rounds - rounds) * (TILES.steps * TILES.slot_bytes);
    }
    return produce_steps<FROM + 1, TO>(b, to, layer);
  } else {
    return true;
  }
}

DEVICE bool produce_pass(Block& b, Producer& to) {
  to.from = b.p.weights + b.here() * RUN_BYTES;
  for (u32 layer = 0; layer < LAYERS; ++layer) {
    if (!produce_steps<FIRST_STEP, FIRST_STEP + LAYER_STEPS>(b, to, layer)) return false;
  }
  return produce_steps<FIRST_STEP + LAYER_STEPS, STEPS>(b, to, LAYERS);
}

// Copies pass after pass until the launch is over, then waits for what is still on its way: a block
// must not leave while copies into its shared memory are in flight.
DEVICE void produce(Block& b) {
  Producer to{nullptr, 0, 0, 0, policy_evict_first()};
  while (produce_pass(b, to)) {
  }
  // Every copy lands, also after a wait has starved; of each slot the last may be on its way.
  for (u32 i = to.issued > RING_SLOTS ? to.issued - RING_SLOTS : 0; i != to.issued; ++i) {
    while (!barrier_passed(b.full(i % RING_SLOTS), i / RING_SLOTS & 1)) {
    }
  }
}

// By one thread, before anybody else looks at the ring.
DEVICE void init_ring(Block& b) {
  for (u32 i = 0; i < RING_SLOTS; ++i) {
    barrier_init(b.full(i), STREAM_ARRIVALS);
    barrier_init(b.empty(i), WARPS);
  }
  barrier_init_fence();
}

// The 16 x 16 weights at `tile` times 8 tokens of each tile of tokens.
DEVICE void multiply_tile(f32 (&sum)[TOKEN_TILES][4], const u8* tile, u32 index,
                          const u32 (&x)[TOKEN_TILES][2]) {
  if constexpr (WEIGHTS == F8) {
    const u32* bytes = reinterpret_cast<const u32*>(tile) + 2 * index;
    u32 low = bytes[0], high = bytes[1];  // row g, row g + 8: four columns each
    Vec4 a{f16x2_of_e4m3x2(low), f16x2_of_e4m3x2(high), f16x2_of_e4m3x2(low >> 16),
           f16x2_of_e4m3x2(high >> 16)};
#pragma unroll
    for (u32 i = 0; i < TOKEN_TILES; ++i) mma_f16(sum[i], a, x[i][0], x[i][1]);
  } else {
    Vec4 a = reinterpret_cast<const Vec4*>(tile)[index];
#pragma unroll
    for (u32 i = 0; i < TOKEN_TILES; ++i) {
      if constexpr (WEIGHTS == BF16) {
        mma_bf16(sum[i], a, x[i][0], x[i][1]);
      } else {
        mma_f16(sum[i], a, x[i][0], x[i][1]);
      }
    }
  }
}

// ---- the consumers' side of the ring, by whole warps --------------------------------------------
// Passing `full` makes the copied weights visible to the loads that follow.
DEVICE void await_slot(Block& b, u32 step) {
  Patience patience;
  while (!warp_all(barrier_passed(b.full(b.slot), b.parity))) {
    if (warp_any(give_up(b, patience, AWAIT_WEIGHTS, step))) {
      b.spoiled = true;
      break;
    }
  }
}
template <u32 GROUP, u32 STEP>
DEVICE const u8* slot_tiles(const Block& b) {
  return b.shared + AT_RING + b.slot * SLOT_BYTES + b.warp * (STEP * GROUP * TILE_BYTES);
}
// The warp barrier collects the warp's loads; the arrival hands the slot back to the producer.
DEVICE void leave_slot(Block& b) {
  warp_barrier();
  // A slot that was left before it was full is not handed back: a copy may be on its way to it.
  if (b.index == 0 && !b.spoiled) barrier_arrive(b.empty(b.slot));
  if (++b.slot == RING_SLOTS) b.slot = 0, b.parity ^= 1;
}

// The parts' sums of a row, added in ascending order.
template <u32 PARTS, u32 ROWS>
DEVICE f32 sum_of_parts(const Block& b, u32 t, u32 row) {
  const f32* partial = b.partial() + t * ROWS + row;
  f32 total = partial[0];
#pragma unroll
  for (u32 part = 1; part < PARTS; ++part) total += partial[part * WIDTH * ROWS];
  return total;
}

// A unit's sums go to `partial`, [PARTS][T][ROWS]; where they are folded, those of one round.
template <u32 GROUP, u32 ROWS>
DEVICE void keep_sums(const Block& b, const f32 (&sum)[GROUP][TOKEN_TILES][4], u32 part, u32 group,
                      u32 width) {
#pragma unroll
  for (u32 r = 0; r < GROUP; ++r) {
#pragma unroll
    for (u32 i = 0; i < TOKEN_TILES; ++i) {
      u32 t = i * 8 + b.index % 4 * 2;
      f32* out = b.partial() + (part * WIDTH + t) * ROWS + (group * GROUP + r) * 16 + b.index / 4;
      if (t < width) out[0] = sum[r][i][0], out[8] = sum[r][i][2];
      if (t + 1 < width) out[ROWS] = sum[r][i][1], out[ROWS + 8] = sum[r][i][3];
    }
  }
}

// Adds the parts of a round's rows, in ascending order, to be kept in memory, with the block's
// other totals. Where a block has many rows, all their parts have no place in shared memory.
template <u32 PARTS, u32 ROWS>
DEVICE void fold_round(const Block& b, u32 round) {
  compute_barrier();  // publishes the round's sums
  for (u32 i = b.thread; i < ROWS * b.state->width; i += THREADS) {
    const u32 t = i / ROWS, row = i % ROWS;
    b.totals(t)[round * ROWS + row] = sum_of_parts<PARTS, ROWS>(b, t, row);
  }
  compute_barrier();  // publishes the totals; guards the sums against the next round's
}

// Multiplies the phase's rows with the activations; leaves the parts' sums in `partial`,
// [PARTS][T][ROWS]. A unit's products are added in ascending order of the columns, a thread's
// four columns of a tile as the matrix instruction adds them.
template <u32 GROUP, u32 PARTS, u32 STEP, u32 STEPS, u32 ROWS, bool FOLDED>
DEVICE void multiply_rows(Block& b, u32 rounds) {
  u32 row = b.index / 4, column = b.index % 4 * 4, width = b.state->width;
  for (u32 round = 0; round < rounds; ++round) {
    u32 unit = round * WARPS + b.warp, part = unit % PARTS, group = unit / PARTS;
    const u8* x[TOKEN_TILES];
#pragma unroll
    for (u32 i = 0; i < TOKEN_TILES; ++i) {
      u32 t = i * 8 + row;  // beyond the pass any row will do: its results are not kept
      x[i] = b.activations(t < width ? t : 0) + (part * STEP * STEPS * 16 + column) * 2;
    }
    f32 sum[GROUP][TOKEN_TILES][4] = {};
    for (u32 step = 0; step < STEPS; ++step) {
      await_slot(b, step);
      const u8* tiles = slot_tiles<GROUP, STEP>(b);
#pragma unroll
      for (u32 j = 0; j < STEP; ++j) {
        u32 fragment[TOKEN_TILES][2];
#pragma unroll
        for (u32 i = 0; i < TOKEN_TILES; ++i) {
          const u32* pair = reinterpret_cast<const u32*>(x[i] + j * 32);
          fragment[i][0] = pair[0];
          fragment[i][1] = pair[1];
        }
#pragma unroll
        for (u32 r = 0; r < GROUP; ++r) {
          multiply_tile(sum[r], tiles + (j * GROUP + r) * TILE_BYTES, b.index, fragment);
        }
      }
#pragma unroll
      for (u32 i = 0; i < TOKEN_TILES; ++i) x[i] += STEP * 32;
      leave_slot(b);
    }
    if constexpr (FOLDED) {
      constexpr u32 ROUND_ROWS = WARPS / PARTS * GROUP * 16;
      keep_sums<GROUP, ROUND_ROWS>(b, sum, part, b.warp / PARTS, width);
      fold_round<PARTS, ROUND_ROWS>(b, round);
    } else {
      keep_sums<GROUP, ROWS>(b, sum, part, group, width);
    }
  }
}

// ---- wide passes: activations come from memory, a ring slot's columns at a time -----------------
// Where the 16-byte chunk c of a token's columns lies in its staged row: moved about so that eight
// tokens' loads have no bank conflict.
template <u32 STEP>
DEVICE u32 staged_chunk(u32 t, u32 c) {
  if constexpr (STEP % 4 == 0) return c ^ (t % 4 * 2);
  if constexpr (STEP % 4 == 2) return c ^ (t / 2 % 2 * 2);
  return c;
}

// Sends the columns of ring slot `step` on their way to buffer step % 2: [PARTS][T][STEP * 32
// bytes].
template <u32 PARTS, u32 STEP, u32 STEPS>
DEVICE void stage_columns(const Block& b, u32 step) {
  constexpr u32 CHUNKS = 2 * STEP;
  u8* stage = b.shared + AT_STAGE + step % 2 * (PARTS * WIDTH * STEP * 32);
  u32 width = b.state->width;
  const u8* rows = b.synced_activations() + step * (STEP * 32);
  for (u32 i = b.thread; i < PARTS * width * CHUNKS; i += THREADS) {
    u32 c = i % CHUNKS, t = i / CHUNKS % width, part = i / (CHUNKS * width);
    copy_async16(stage + ((part * WIDTH + t) * CHUNKS + staged_chunk<STEP>(t, c)) * 16,
                 rows + t * ACTIVATION_STRIDE + part * (STEP * STEPS * 32) + c * 16);
  }
  copy_async_commit();
}

// multiply_rows, with the same sums in the same order.
template <u32 GROUP, u32 PARTS, u32 STEP, u32 STEPS, u32 ROWS, bool FOLDED>
DEVICE void multiply_rows_wide(Block& b, u32 rounds) {
  const u32 row = b.index / 4, q = b.index % 4, width = b.state->width;
  for (u32 round = 0; round < rounds; ++round) {
    u32 unit = round * WARPS + b.warp, part = unit % PARTS, group = unit / PARTS;
    f32 sum[GROUP][TOKEN_TILES][4] = {};
    stage_columns<PARTS, STEP, STEPS>(b, 0);
    for (u32 step = 0; step < STEPS; ++step) {
      copy_async_wait<0>();
      // Publishes the staged columns; guards the other buffer, which all warps have left.
      compute_barrier();
      if (step + 1 < STEPS) stage_columns<PARTS, STEP, STEPS>(b, step + 1);
      await_slot(b, step);
      const u8* tiles = slot_tiles<GROUP, STEP>(b);
      const u8* stage = b.shared + AT_STAGE + (step % 2 * PARTS + part) * (WIDTH * STEP * 32);
#pragma unroll 1  // the sums alone take most of the registers
      for (u32 j = 0; j < STEP; ++j) {
        u32 fragment[TOKEN_TILES][2];
#pragma unroll
        for (u32 i = 0; i < TOKEN_TILES; ++i) {
          u32 t = i * 8 + row < WIDTH ? i * 8 + row : 0;
          u32 chunk = staged_chunk<STEP>(t, 2 * j + q / 2);
          const u32* pair =
              reinterpret_cast<const u32*>(stage + t * (STEP * 32) + chunk * 16 + q % 2 * 8);
          fragment[i][0] = pair[0];
          fragment[i][1] = pair[1];
        }
#pragma unroll
        for (u32 r = 0; r < GROUP; ++r) {
          multiply_tile(sum[r], tiles + (j * GROUP + r) * TILE_BYTES, b.index, fragment);
        }
      }
      leave_slot(b);
    }
    compute_barrier();  // guards the staged columns: the sums may take their place
    if constexpr (FOLDED) {
      constexpr u32 ROUND_ROWS = WARPS / PARTS * GROUP * 16;
      keep_sums<GROUP, ROUND_ROWS>(b, sum, part, b.warp / PARTS, width);
      fold_round<PARTS, ROUND_ROWS>(b, round);
    } else {
      keep_sums<GROUP, ROWS>(b, sum, part, group, width);
    }
  }
}

// What the product left for a row of the block's list.
template <u32 PARTS, u32 ROWS, bool FOLDED>
DEVICE f32 row_total(const Block& b, u32 t, u32 row) {
  f32 total = FOLDED ? b.totals(t)[row] : sum_of_parts<PARTS, ROWS>(b, t, row);
  if constexpr (WEIGHTS == F8) total *= b.scales()[row];
  return total;
}

// Sends the scales of the product's rows on their way to shared memory: read where they are needed
// they would cost each phase a look at memory, behind the weights that keep it busy. Where they lie
// follows from the phase, for a pointer kept through the pass takes two registers. The barrier
// before it guards the last product's scales against it.
template <u32 ROWS, u32 FIRST_ROW>
DEVICE void fetch_scales(const Block& b) {
  static_assert(ROWS % 4 == 0 && FIRST_ROW % 4 == 0, "copies of 16 bytes");
  const u64 row =
      static_cast<u64>(b.here()) * SCALE_ROWS + b.phase / LAYER_STEPS * LAYER_ROWS + FIRST_ROW;
#pragma unroll 1
  for (u32 i = b.thread; i < ROWS / 4; i += THREADS) {
    copy_async16(b.scales() + 4 * i, b.p.row_scales + row + 4 * i);
  }
  copy_async_commit();
}

// After the activations have been put: multiplies, and leaves the sums to all threads.
static_assert(WIDE ? is_proven(OP_MULTIPLY, BARRIER, tell(AWAIT_LANE), await(AWAIT_LANE), BARRIER,
                               await(AWAIT_ACTIVATIONS), BARRIER)
                   : is_proven(OP_MULTIPLY, BARRIER, BARRIER));
template <u32 GROUP, u32 PARTS, u32 STEP, u32 STEPS, u32 ROWS, u32 FIRST_ROW, bool FOLDED>
DEVICE void multiply(Block& b, u32 rounds) {
  if constexpr (WIDE) {
    sync_lane(b);  // publishes the activations to the lane
    note(b, BEGUN);
    if constexpr (WEIGHTS == F8) fetch_scales<ROWS, FIRST_ROW>(b);
    multiply_rows_wide<GROUP, PARTS, STEP, STEPS, ROWS, FOLDED>(b, rounds);
  } else {
    compute_barrier();  // publishes the activations to all warps
    note(b, BEGUN);
    if constexpr (WEIGHTS == F8) fetch_scales<ROWS, FIRST_ROW>(b);
    multiply_rows<GROUP, PARTS, STEP, STEPS, ROWS, FOLDED>(b, rounds);
  }
  if constexpr (WEIGHTS == F8) copy_async_wait<0>();
  compute_barrier();  // publishes the sums and the scales
}
#define MULTIPLY(b, T, rounds)                    \
  (clear_padding<T.columns, T.padded_columns>(b), \
   multiply<T.group, T.parts, T.step, T.steps, T.padded_rows, T.first_row, T.folded>(b, rounds))
#define ROW_TOTAL(b, T, t, row) (row_total<T.parts, T.padded_rows, T.folded>(b, t, row))
