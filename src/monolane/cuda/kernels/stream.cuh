// The residual streams. Block s of a lane owns the rows that OUT and DOWN give it, in shared
// memory, for every token of the pass; each change is published to the lane, whose blocks all read
// all of it and normalise it themselves: to do that B times costs less than one more wait.
//
// Event e of a pass is the e-th state of the stream: 0 the embedding, 1 + 2 i + m after module m
// (0 attention, 1 MLP) of layer i. Buffers take turns; monolane.cuda._race_check shows that they
// suffice.
#pragma once
#include "weights.cuh"

enum Module : u32 { ATTENTION = 0, MLP = 1 };
constexpr u32 LAST_EVENT = 2 * LAYERS;

DEVICE u32 event_after(u32 layer, Module module) { return 1 + 2 * layer + module; }

DEVICE Word* stream_words(const Block& b, u32 event, u32 lane) {
  const u32 copy = b.copy(event % STREAM_SLOTS, event, LAST_EVENT + 1);
  return b.p.stream_words + static_cast<u64>(copy * LANES + lane) * WIDTH * HIDDEN;
}
DEVICE Word* square_words(const Block& b, u32 event) {
  const u32 copy = b.copy(event % STREAM_SLOTS, event, LAST_EVENT + 1);
  return b.p.square_words + (copy * LANES + b.lane) * WIDTH * even(BLOCKS);
}
DEVICE Word* gained_words(const Block& b, u32 layer, Module module) {
  const u32 lane = b.copy(0, 2 * layer + module, 2 * LAYERS) * LANES + b.lane;
  return b.p.gained_words + lane * WIDTH * even(BLOCKS);
}
DEVICE Word* raw_words(const Block& b, u32 layer, Module module, u32 lane) {
  u32 slot = module == ATTENTION ? layer % ATTENTION_SLOTS : ATTENTION_SLOTS + layer % MLP_SLOTS;
  const u32 copy = b.copy(slot, 2 * layer + module, 2 * LAYERS);
  return b.p.raw_words + static_cast<u64>(copy * LANES + lane) * WIDTH * HIDDEN;
}

// ---- tables that are in shared memory before they are needed ------------------------------------
// Bytes of memory to shared memory, by the block: on their way until copy_async_wait.
template <u32 BYTES>
DEVICE void fetch_table(const Block& b, u32 to, const void* from) {
  const u8* source = static_cast<const u8*>(from);
  if constexpr (BYTES % 16 == 0) {
    for (u32 i = b.thread; i < BYTES / 16; i += THREADS) {
      copy_async16(b.shared + to + 16 * i, source + 16 * i);
    }
  } else {
    static_assert(BYTES % 2 == 0, "rows of 16-bit numbers");
    for (u32 i = b.thread; i < BYTES / 2; i += THREADS) {
      reinterpret_cast<u16*>(b.shared + to)[i] = reinterpret_cast<const u16*>(source)[i];
    }
  }
}

// The scales of the norm that reads an event. They have one place, which is free from the barrier
// behind a norm on; they are there when the next one begins, long before its words are.
DEVICE void fetch_gains(const Block& b, u32 event) {
  const u64 row = event * GAIN_LANES + (GAIN_LANES > 1 ? b.lane : 0);
  fetch_table<2 * HIDDEN>(b, AT_GAINS, b.p.gains + row * HIDDEN);
  copy_async_commit();
}
// At the beginning of a pass, whose positions are known: its rotary rows, and the first norm's
// scales. The last barrier guards what the pass before has left there.
DEVICE void fetch_tables(const Block& b) {
  copy_async_wait<0>();  // a model without a norm of its own before the head leaves scales behind
  for (u32 i = 0; i < ROTARIES * b.state->width; ++i) {
    const u32 which = i / b.state->width, t = i % b.state->width;
    const u64 row = (static_cast<u64>(which) * CONTEXT + b.state->position[t]) * HEAD_DIM;
    fetch_table<4 * HEAD_DIM>(b, AT_ROTARY + (which * WIDTH + t) * 4 * HEAD_DIM, b.p.rotary + row);
  }
  fetch_gains(b, 0);
}
DEVICE f32 gain_of(const Block& b, const f32* scale, u32 column) {
  if constexpr (SWITCH_TABLES) {
    const u32 bits = reinterpret_cast<const u16*>(b.shared + AT_GAINS)[column];
    return GAINS == BF16 ? bf16_low(bits) : f16_low(bits);
  }
  return scale[column];
}

DEVICE f32 warp_total(f32 value) {
#pragma unroll
  for (u32 mask = 16; mask; mask >>= 1) value += shuffle_xor(value, mask);
  return value;
}

// After the own rows of an event have been published: the sum of their squares. The barrier
// publishes all rows in shared memory to the warps that add them.
DEVICE void publish_squares(const Block& b, u32 event, u32 rows) {
  compute_barrier();
  for (u32 t = b.warp; t < b.state->width; t += WARPS) {
    f32 sum = 0;
    for (u32 r = b.index; r < rows; r += 32) sum += b.stream(t)[r] * b.stream(t)[r];
    sum = warp_total(sum);
    if (b.index == 0) {
      publish(square_words(b, event) + t * even(BLOCKS) + b.member, bits_of_float(sum),
              b.stamp(event));
    }
  }
}

// With NORM the squares are summed by who reads the rows; a head that norms each lane's own stream
// before it joins them still awaits their sums.
constexpr bool TELLS_SQUARES = TOUCHES[OP_EMBED][1] != 0;
template <typename... Before>
DEVICE constexpr bool update_is_proven(Op op, Before... before) {
  return TELLS_SQUARES ? is_proven(op, before..., tell(AWAIT_STREAM), BARRIER, tell(AWAIT_SQUARES))
                       : is_proven(op, before..., tell(AWAIT_STREAM));
}

static_assert(update_is_proven(OP_EMBED));
DEVICE void embed(const Block& b) {
  if constexpr (SWITCH_TABLES) fetch_tables(b);
  Share own = b.share(SHARE_O);
  u32 rows = own.end - own.begin;
  Word* out = stream_words(b, 0, b.lane);
  for (u32 i = b.thread; i < rows * b.state->width; i += THREADS) {
    u32 t = i / rows, r = i % rows;
    f32 x = low16(b.p.embedding[static_cast<u64>(b.state->token[t]) * HIDDEN + own.begin + r]);
    if constexpr (EMBEDDING_SCALE != 1) x *= EMBEDDING_SCALE;
    b.stream(t)[r] = x;
    publish(out + t * HIDDEN + own.begin + r, bits_of_float(x), b.stamp(0));
  }
  if constexpr (TELLS_SQUARES) publish_squares(b, 0, rows);
}

constexpr u32 BATCH = WIDE ? 4 : 1;  // elements whose other lanes a thread reads at a time
static_assert(LANES * BATCH <= 32, "the readiness of a word is a bit");

struct Elements {  // of the stream, BATCH of them from number `begin` on, THREADS apart
  u32 rows, count;
  u32 first_row;
  DEVICE_MEMBER bool has(u32 i) const { return i < count; }
  DEVICE_MEMBER u64 at(u32 i) const {  // in [T][D]
    return static_cast<u64>(i / rows) * HIDDEN + first_row + i % rows;
  }
};

// Adds up the same elements of the other lanes' outputs of a layer, in ascending order of the
// lanes; the own lane's, `own`, takes part where all are summed now.
DEVICE void add_lanes(const Block& b, const Elements& e, u32 begin, u32 layer, Module module,
                      bool with_own, const f32 (&own)[BATCH], f32 (&sum)[BATCH]) {
  const u32 stamp = b.stamp(event_after(layer, module));
  Word got[BATCH][LANES] = {};
  u32 pending = 0;
  const bool early = SWITCH_LANES && !with_own && begin == b.thread;
#pragma unroll
  for (u32 k = 0; k < BATCH; ++k) {
#pragma unroll
    for (u32 lane = 0; lane < LANES; ++lane) {
      pending |= (e.has(begin + k * THREADS) && lane != b.lane) << (k * LANES + lane);
    }
  }
  if constexpr (SWITCH_LANES) {
#pragma unroll
    for (u32 lane = 0; lane < LANES; ++lane) {
      if (!early || lane == b.lane) continue;
      got[0][lane] = b.early[lane];
      if (got[0][lane].stamp == stamp) pending &= ~(1u << lane);
    }
  }
  Patience patience;
  while (pending) {
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) {
#pragma unroll
      for (u32 lane = 0; lane < LANES; ++lane) {
        if (pending >> (k * LANES + lane) & 1) {
          got[k][lane] =
              look(AWAIT_LANES, raw_words(b, layer, module, lane) + e.at(begin + k * THREADS));
        }
      }
    }
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) {
#pragma unroll
      for (u32 lane = 0; lane < LANES; ++lane) {
        if (got[k][lane].stamp == stamp) pending &= ~(1u << (k * LANES + lane));
      }
    }
    if (!pending) break;
    const u32 source = lowest(pending) % LANES * BLOCKS + b.member;
    if (give_up(b, patience, AWAIT_LANES, layer * 2 + module, source)) break;
  }
#pragma unroll
  for (u32 k = 0; k < BATCH; ++k) {
    sum[k] = 0;
#pragma unroll
    for (u32 lane = 0; lane < LANES; ++lane) {
      if (lane != b.lane) {
        sum[k] += float_of_bits(got[k][lane].value);
      } else if (with_own) {
        sum[k] += own[k];
      }
    }
  }
}

// Before the product whose sums join the stream: what other lanes made some layers ago has long
// been there, so it is in registers when it is needed. Whatever is not is awaited then. Of the
// first element of a thread, which has one only where a pass has one row.
DEVICE void ask_for_lanes(Block& b, u32 layer, Module module) {
  const Share own = b.share(module == ATTENTION ? SHARE_O : SHARE_DOWN);
  const i32 delay = LAYER_TABLE[layer].delay[module];
  const Elements e{own.end - own.begin, (own.end - own.begin) * b.state->width, own.begin};
  if (delay <= 0 || !e.has(b.thread)) return;
#pragma unroll
  for (u32 lane = 0; lane < LANES; ++lane) {
    if (lane == b.lane) continue;
    const Word* words = raw_words(b, layer - delay, module, lane);
    b.early[lane] = look(AWAIT_LANES, words + e.at(b.thread));
  }
}

// x += norm(gained), of the own rows. All blocks of a lane sum the squares of all its rows.
DEVICE void join_normed(const Block& b, const Elements& e, u32 layer, Module module) {
  const u32 event = event_after(layer, module), stamp = b.stamp(event);
  Word* squares = gained_words(b, layer, module);
  const u64 row = (2 * layer + module) * NORM_LANES + (NORM_LANES > 1 ? b.lane : 0);
  const f32* scale = b.p.after_norm + row * HIDDEN + e.first_row;
  compute_barrier();  // publishes what is gained to the warps that add its squares
  for (u32 t = b.warp; t < b.state->width; t += WARPS) {
    f32 sum = 0;
    for (u32 r = b.index; r < e.rows; r += 32) sum += b.gained(t)[r] * b.gained(t)[r];
    sum = warp_total(sum);
    if (b.index == 0) {
      publish(squares + t * even(BLOCKS) + b.member, bits_of_float(sum), stamp);
    }
  }
  for (u32 t = b.warp; t < b.state->width; t += WARPS) {
    f32 sum = 0;
    for (u32 i = b.index; i < BLOCKS; i += 32) {
      sum += float_of_bits(await_word(b, squares + t * even(BLOCKS) + i, stamp, AWAIT_GAINED));
    }
    sum = warp_total(sum);
    const f32 norm = divide(1.0f, square_root(sum / HIDDEN + NORM_EPS));
    if (b.index == 0) b.state->inverse_norm[t] = norm;
  }
  compute_barrier();  // publishes the norms of what is gained to all threads
  const u32 told = b.stamp(event);
  Word* out = stream_words(b, event, b.lane);
  for (u32 i = b.thread; i < e.count; i += THREADS) {
    const u32 t = i / e.rows, r = i % e.rows;
    f32 gain = b.gained(t)[r] * b.state->inverse_norm[t] * scale[r];
    if constexpr (RESIDUAL_SCALE != 1) gain *= RESIDUAL_SCALE;
    const f32 x = b.stream(t)[r] + gain;
    b.stream(t)[r] = x;
    publish(out + e.at(i), bits_of_float(x), told);
  }
}

// x += reduce(outputs), the outputs being the sums that the last product left; see
// src/monolane/model/_reduce.py for the rule.
template <typename... Norm>
DEVICE constexpr bool joining_is_proven(Norm... norm) {
  return update_is_proven(OP_UPDATE, await(AWAIT_LANES, WHEN_LATE), tell(AWAIT_LANES, WHEN_READ),
                          await(AWAIT_LANES, WHEN_NOW), norm...);
}
static_assert(NORM_AFTER
                  ? joining_is_proven(BARRIER, tell(AWAIT_GAINED), await(AWAIT_GAINED), BARRIER)
                  : joining_is_proven());
template <u32 PARTS, u32 ROWS, bool FOLDED>
DEVICE void update_stream(const Block& b, u32 layer, Module module) {
  const Share own = b.share(module == ATTENTION ? SHARE_O : SHARE_DOWN);
  const u32 event = event_after(layer, module);
  const i32 delay = LAYER_TABLE[layer].delay[module];
  const bool read = LANES > 1 && LAYER_TABLE[layer].read[module];
  const Elements e{own.end - own.begin, (own.end - own.begin) * b.state->width, own.begin};
  Word* raw = raw_words(b, layer, module, b.lane);
  Word* out = stream_words(b, event, b.lane);
  for (u32 begin = b.thread; begin < e.count; begin += BATCH * THREADS) {
    f32 output[BATCH] = {}, gain[BATCH];
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) {
      u32 i = begin + k * THREADS;
      if (e.has(i)) output[k] = row_total<PARTS, ROWS, FOLDED>(b, i / e.rows, i % e.rows);
      if constexpr (OUT_BIAS) {
        const u64 row = static_cast<u64>(layer) * HIDDEN + e.first_row + i % e.rows;
        if (module == ATTENTION && e.has(i)) output[k] += b.p.out_bias[row];
      }
      gain[k] = delay < 0 ? output[k] * square_root(static_cast<f32>(LANES)) : output[k];
    }
    // Outputs of layer - delay are read before those of this layer are published: whoever sees
    // the latter then knows that the former are no longer needed.
    if (LANES > 1 && delay > 0) {
      add_lanes(b, e, begin, layer - delay, module, false, output, gain);
#pragma unroll
      for (u32 k = 0; k < BATCH; ++k) gain[k] += output[k];
    }
    const u32 told = b.stamp(event);
    if (read) {
#pragma unroll
      for (u32 k = 0; k < BATCH; ++k) {
        u32 i = begin + k * THREADS;
        if (e.has(i)) post<AWAIT_LANES>(b, raw + e.at(i), bits_of_float(output[k]), told);
      }
    }
    if (LANES > 1 && delay == 0) add_lanes(b, e, begin, layer, module, true, output, gain);
    const u32 stamp = b.stamp(event);
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) {
      u32 i = begin + k * THREADS;
      if (!e.has(i)) continue;
      if constexpr (NORM_AFTER) {
        b.gained(i / e.rows)[i % e.rows] = gain[k];
        continue;
      }
      f32* x = b.stream(i / e.rows) + i % e.rows;
      if constexpr (RESIDUAL_SCALE != 1) gain[k] *= RESIDUAL_SCALE;
      *x += gain[k];
      publish(out + e.at(i), bits_of_float(*x), stamp);
    }
  }
  if constexpr (NORM_AFTER) join_normed(b, e, layer, module);
  if constexpr (TELLS_SQUARES) publish_squares(b, event, e.rows);
}

// 1 / sqrt(mean of squares + eps) of a token's stream, by a warp.
DEVICE void await_norm(const Block& b, u32 event, u32 t) {
  const Word* words = square_words(b, event) + t * even(BLOCKS);
  f32 sum = 0;
  for (u32 i = b.index; i < BLOCKS; i += 32) {
    sum += float_of_bits(await_word(b, words + i, b.stamp(event), AWAIT_SQUARES));
  }
  sum = warp_total(sum);
  if (b.index == 0) {
    b.state->inverse_norm[t] = divide(1.0f, square_root(sum / HIDDEN + NORM_EPS));
  }
}

template <typename... First>
DEVICE constexpr bool norm_is_proven(First... first) {
  return WIDE ? is_proven(OP_NORMALISE, first..., tell(AWAIT_ACTIVATIONS))
              : is_proven(OP_NORMALISE, first...);
}

// With NORM, one exchange: each warp reads the rows of some of the lane's blocks as the block
// itself would, sums their squares in its order, and keeps them until all sums are there. So the
// bits are those of sums that the blocks tell each other.
struct LocalNorm {
  static constexpr u32 SOURCES = (BLOCKS + WARPS - 1) / WARPS;  // blocks that a warp reads
  static constexpr u32 EACH = (OWN_ROWS + 31) / 32;             // rows of each, by a thread
  f32* sums;          // [2][BLOCKS], by turns: a token's barrier guards those of the last but one
  const u32* begins;  // [BLOCKS + 1] first rows
  DEVICE_MEMBER explicit LocalNorm(const Block& b)
      : sums(reinterpret_cast<f32*>(b.shared + AT_SQUARES)),
        begins(reinterpret_cast<const u32*>(sums + 2 * BLOCKS)) {}
};

// At the beginning of a launch; a block barrier publishes them.
DEVICE void fetch_begins(const Block& b) {
  u32* begins = const_cast<u32*>(LocalNorm(b).begins);
  for (u32 i = b.thread; i <= BLOCKS; i += THREADS + 32) {
    begins[i] = i < BLOCKS ? b.p.shares[SHARE_O * WORKERS + b.lane * BLOCKS + i].begin : HIDDEN;
  }
}

DEVICE void normalise_alone(const Block& b, u32 event, const f32* scale) {
  constexpr u32 SOURCES = LocalNorm::SOURCES, EACH = LocalNorm::EACH;
  static_assert(!SWITCH_NORM || SOURCES * EACH <= 32, "NORM: a bit for each row of a thread");
  const LocalNorm local(b);
  const u32 stamp = b.stamp(event);
  if constexpr (SWITCH_TABLES) copy_async_wait<0>();
  for (u32 n = 0; n < b.prepared_tokens(); ++n) {
    const u32 t = b.prepared_token(n);
    const Word* words = stream_words(b, event, b.lane) + t * HIDDEN;
    f32* sums = local.sums + n % 2 * BLOCKS;
    Word got[SOURCES * EACH] = {};
    u32 first[SOURCES], pending = 0;
#pragma unroll
    for (u32 s = 0; s < SOURCES; ++s) {
      const u32 block = s * WARPS + b.warp;
      first[s] = block < BLOCKS ? local.begins[block] + b.index : HIDDEN;
      const u32 end = block < BLOCKS ? local.begins[block + 1] : 0;
#pragma unroll
      for (u32 k = 0; k < EACH; ++k) pending |= (first[s] + 32 * k < end) << (s * EACH + k);
    }
    const u32 there = pending;
    u32 asked = pending;
    Patience patience;
    while (pending) {
#pragma unroll
      for (u32 i = 0; i < SOURCES * EACH; ++i) {
        if (asked >> i & 1) got[i] = look(AWAIT_STREAM, words + first[i / EACH] + 32 * (i % EACH));
      }
      const u32 before = pending;
#pragma unroll
      for (u32 i = 0; i < SOURCES * EACH; ++i) {
        if (got[i].stamp == stamp) pending &= ~(1u << i);
      }
      if (!pending || give_up(b, patience, AWAIT_STREAM, t)) break;
      asked = next_asked(pending, before);
    }
#pragma unroll
    for (u32 s = 0; s < SOURCES; ++s) {
      f32 square = 0;
#pragma unroll
      for (u32 k = 0; k < EACH; ++k) {
        const f32 x = float_of_bits(got[s * EACH + k].value);
        if (there >> (s * EACH + k) & 1) square += x * x;
      }
      square = warp_total(square);
      if (b.index == 0 && s * WARPS + b.warp < BLOCKS) sums[s * WARPS + b.warp] = square;
    }
    compute_barrier();  // publishes the sums, and the scales that were on their way
    f32 sum = 0;
    for (u32 i = b.index; i < BLOCKS; i += 32) sum += sums[i];
    sum = warp_total(sum);
    const f32 norm = divide(1.0f, square_root(sum / HIDDEN + NORM_EPS));
#pragma unroll
    for (u32 i = 0; i < SOURCES * EACH; ++i) {
      const u32 c = first[i / EACH] + 32 * (i % EACH);
      if (!(there >> i & 1)) continue;
      const f32 x = float_of_bits(got[i].value) * norm * gain_of(b, scale, c);
      reinterpret_cast<u16*>(b.activations(t))[c] = static_cast<u16>(pack16(x, 0.0f));
    }
  }
}

// The lane's stream after `event`, normalised, as the activations of the next product. The barrier
// publishes the norms to all threads.
static_assert(SWITCH_NORM ? norm_is_proven(await(AWAIT_STREAM), BARRIER)
                          : norm_is_proven(await(AWAIT_SQUARES), BARRIER, await(AWAIT_STREAM)));
DEVICE void normalise_stream(const Block& b, u32 event, const f32* scale) {
  if constexpr (SWITCH_NORM) return normalise_alone(b, event, scale);
  const u32 tokens = b.prepared_tokens();
  if constexpr (SWITCH_TABLES) copy_async_wait<0>();
  for (u32 i = b.warp; i < tokens; i += WARPS) await_norm(b, event, b.prepared_token(i));
  compute_barrier();
  const Word* words = stream_words(b, event, b.lane);
  await_pairs(
      b, tokens * (HIDDEN / 2), b.stamp(event), AWAIT_STREAM,
      [&](u32 i) {
        return words + b.prepared_token(i / (HIDDEN / 2)) * HIDDEN + i % (HIDDEN / 2) * 2;
      },
      [&](u32 i, u32 first, u32 second) {
        u32 t = b.prepared_token(i / (HIDDEN / 2)), c = i % (HIDDEN / 2) * 2;
        f32 norm = b.state->inverse_norm[t];
        put_activations(b, t, c, float_of_bits(first) * norm * gain_of(b, scale, c),
                        float_of_bits(second) * norm * gain_of(b, scale, c + 1));
      });
}
static_assert(HIDDEN % 2 == 0, "words are read in pairs");

// The same without a norm.
static_assert(WIDE ? is_proven(OP_FETCH_STREAM, await(AWAIT_STREAM), tell(AWAIT_ACTIVATIONS))
                   : is_proven(OP_FETCH_STREAM, await(AWAIT_STREAM)));
DEVICE void fetch_stream(const Block& b, u32 event) {
  const Word* words = stream_words(b, event, b.lane);
  await_pairs(
      b, b.prepared_tokens() * (HIDDEN / 2), b.stamp(event), AWAIT_STREAM,
      [&](u32 i) {
        return words + b.prepared_token(i / (HIDDEN / 2)) * HIDDEN + i % (HIDDEN / 2) * 2;
      },
      [&](u32 i, u32 first, u32 second) {
        const u32 t = b.prepared_token(i / (HIDDEN / 2)), c = i % (HIDDEN / 2) * 2;
        put_activations(b, t, c, float_of_bits(first), float_of_bits(second));
      });
}
