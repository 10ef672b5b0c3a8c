// Attention. A block attends for its units, (KV head, split); split s holds the chunks of
// keys c with c % SPLITS == s, so a block reads only cached keys that it wrote itself, and nothing
// of the cache ever crosses blocks.
//
// Keys come in tiles of 16, one matrix product each for scores and for values, with up to 16 query
// rows (token, head) of one sequence. Tile n of the split belongs to warp n % WARPS, which keeps a
// running maximum and sums; the warps' results are merged at the end, in a fixed order. So a
// query's sums depend on its position alone, whatever the width of the pass.
#pragma once
#include "qkv.cuh"

constexpr u32 KEY_TILE = 16;
constexpr u32 QUERY_ROWS = 16;                   // of a matrix product
constexpr u32 HEAD_STEPS = KV_ELEMENTS / 16;     // matrix products along a head
constexpr u32 HEAD_TILES_OUT = KV_ELEMENTS / 8;  // and across it
constexpr u32 PARTIAL = even(HEAD_DIM + 2);      // words of a query's partial result
constexpr f32 NOTHING = -3.402823466e+38f;       // the maximum of no scores: below any other
static_assert(CHUNK % KEY_TILE == 0, "a chunk is whole tiles of keys");

DEVICE Word* partial_words(const Block& b, u32 layer, u32 split, u32 t, u32 head) {
  const u32 lane = b.copy(0, layer, LAYERS) * LANES + b.lane;
  return b.p.partial_words +
         (static_cast<u64>((lane * SPLITS + split) * WIDTH + t) * HEADS + head) * PARTIAL;
}
// The cache of a KV head: per tile of 16 positions the keys, [16][KV_ELEMENTS], and apart from
// them, as far again as all keys reach, the values, [KV_ELEMENTS][16]: each as the matrix unit
// takes it, so that a thread's four values lie side by side.
DEVICE u8* cached_tile(const Block& b, u32 layer, u32 kv_head, u32 value, u32 slot, u32 position) {
  const Layer& l = LAYER_TABLE[layer];
  u64 head = b.lane_here() * KV_HEADS + kv_head;
  return b.p.cache + slot * KV_BYTES + l.kv_offset +
         ((head * 2 + value) * l.capacity + position / KEY_TILE * KEY_TILE % l.capacity) *
             KV_ROW_BYTES;
}
// Where key k of a tile lies in a row of values: keys 2q, 2q + 1, 2q + 8, 2q + 9 side by side.
DEVICE u32 value_place(u32 k) { return k % 8 / 2 * 4 + k / 8 * 2 + k % 2; }

// What a unit reads of a token: queries of its group, then a key and a value, a warp each.
constexpr u32 UNIT_HEADS = GROUP_HEADS + 2;
// Of these a warp has so many under way at a time: 32 words a thread at most.
constexpr u32 HEADS_AT_ONCE = WIDE ? 4 : WIDTH > 1 ? 2 : 1;
constexpr u32 UNDER_WAY = HEADS_AT_ONCE * PAIRS_EACH <= 16 ? HEADS_AT_ONCE : 16 / PAIRS_EACH;

// The words of a pair of numbers of a head; of a value's two in one word, that one twice.
DEVICE WordPair look_at_numbers(const Word* head, u32 pair, bool both_in_one) {
  if (both_in_one) {
    const Word word = load_word(head + pair);
    return WordPair{word, word};
  }
  if constexpr (ROTARY_INTERLEAVED) return load_pair(head + 2 * pair);
  const Word* first = head + first_of_pair(pair);
  return WordPair{load_word(first), load_word(first + apart(pair))};
}

// Fetches the queries of a KV head's group, of all rows of the pass, into shared memory, rounded to
// 16 bits; writes the keys and values of this split's chunks into the cache.
DEVICE void fetch_unit(const Block& b, u32 layer, u32 kv_head, u32 split) {
  const u32 stamp = b.stamp(event_after(layer, ATTENTION));
  const u32 heads = b.state->width * UNIT_HEADS;
  const auto words_of = [&](u32 t, u32 kind) {
    const Word* words = qkv_words(b, layer, t);
    if (kind < GROUP_HEADS) return words + (kv_head * GROUP_HEADS + kind) * HEAD_DIM;
    if (kind == GROUP_HEADS) return words + (HEADS + kv_head) * HEAD_DIM;
    return words + VALUES_BEGIN + kv_head * (HEAD_DIM / VALUE_NUMBERS);
  };
  for (u32 begin = b.warp; begin < heads; begin += WARPS * UNDER_WAY) {
    WordPair got[UNDER_WAY][PAIRS_EACH] = {};
    HeadTables tables[UNDER_WAY] = {};
    u32 pending = 0;
#pragma unroll
    for (u32 n = 0; n < UNDER_WAY; ++n) {
      const u32 head = begin + n * WARPS, kind = head % UNIT_HEADS;
      if (head < heads && kind <= GROUP_HEADS) {
        tables[n] =
            head_tables(b, layer, head / UNIT_HEADS,
                        kind < GROUP_HEADS ? kv_head * GROUP_HEADS + kind : HEADS + kv_head);
      }
#pragma unroll
      for (u32 k = 0; k < PAIRS_EACH; ++k) {
        const bool there = begin + n * WARPS < heads && b.index + 32 * k < HEAD_PAIRS;
        pending |= there << (n * PAIRS_EACH + k);
      }
    }
    u32 asked = pending;
    Patience patience;
    while (pending) {
#pragma unroll
      for (u32 n = 0; n < UNDER_WAY; ++n) {
        const u32 head = begin + n * WARPS, kind = head % UNIT_HEADS;
#pragma unroll
        for (u32 k = 0; k < PAIRS_EACH; ++k) {
          if (!(asked >> (n * PAIRS_EACH + k) & 1)) continue;
          got[n][k] = look_at_numbers(words_of(head / UNIT_HEADS, kind), b.index + 32 * k,
                                      PAIRED_VALUES && kind > GROUP_HEADS);
        }
      }
      const u32 before = pending;
#pragma unroll
      for (u32 i = 0; i < UNDER_WAY * PAIRS_EACH; ++i) {
        const WordPair& pair = got[i / PAIRS_EACH][i % PAIRS_EACH];
        if (pair.a.stamp == stamp && pair.b.stamp == stamp) pending &= ~(1u << i);
      }
      if (!pending || give_up(b, patience, AWAIT_QKV, begin)) break;
      asked = next_asked(pending, before);
    }
    warp_barrier();
#pragma unroll
    for (u32 n = 0; n < UNDER_WAY; ++n) {
      const u32 head = begin + n * WARPS, t = head / UNIT_HEADS, kind = head % UNIT_HEADS;
      if (head >= heads) continue;
      const u32 position = b.state->position[t], key = position % KEY_TILE;
      const bool kept = position / CHUNK % SPLITS == split;
      u16* tile = reinterpret_cast<u16*>(
          cached_tile(b, layer, kv_head, kind > GROUP_HEADS, b.state->slot[t], position));
      if (kind > GROUP_HEADS) {
#pragma unroll
        for (u32 k = 0; k < PAIRS_EACH; ++k) {
          const u32 pair = b.index + 32 * k;
          if (!kept || pair >= HEAD_PAIRS) continue;
          // Two numbers of one word are neighbours, whatever pairs turn together.
          const u32 d = PAIRED_VALUES ? 2 * pair : first_of_pair(pair);
          const u32 first = got[n][k].a.value, second = got[n][k].b.value;
          tile[d * KEY_TILE + value_place(key)] = static_cast<u16>(first);
          tile[(d + (PAIRED_VALUES ? 1 : apart(pair))) * KEY_TILE + value_place(key)] =
              static_cast<u16>(PAIRED_VALUES ? first >> 16 : second);
        }
        continue;
      }
      f32 x[PAIRS_EACH][2];
#pragma unroll
      for (u32 k = 0; k < PAIRS_EACH; ++k) {
        x[k][0] = float_of_bits(got[n][k].a.value);
        x[k][1] = float_of_bits(got[n][k].b.value);
      }
      finish_head(layer, tables[n], x);
      u16* to = kind == GROUP_HEADS ? tile + key * KV_ELEMENTS : b.query(t * GROUP_HEADS + kind);
#pragma unroll
      for (u32 k = 0; k < PAIRS_EACH; ++k) {
        const u32 pair = b.index + 32 * k;
        if (pair >= HEAD_PAIRS || (kind == GROUP_HEADS && !kept)) continue;
        const u32 d = first_of_pair(pair), both = pack16(x[k][0], x[k][1]);
        if constexpr (ROTARY_INTERLEAVED) {
          *reinterpret_cast<u32*>(to + d) = both;
        } else {
          to[d] = static_cast<u16>(both), to[d + apart(pair)] = static_cast<u16>(both >> 16);
        }
      }
    }
  }
  // Beyond the head's dimension a step of the product has zeros: in the cache from the start.
  if constexpr (KV_ELEMENTS > HEAD_DIM) {
    constexpr u32 REST = KV_ELEMENTS > HEAD_DIM ? KV_ELEMENTS - HEAD_DIM : 1;
    for (u32 i = b.thread; i < b.state->width * GROUP_HEADS * REST; i += THREADS) {
      b.query(i / REST)[HEAD_DIM + i % REST] = 0;
    }
  }
}

struct Queries {  // up to QUERY_ROWS query rows of one sequence
  u32 first;      // row of the pass at which the sequence begins
  u32 begin;      // row r here is (token, head) number begin + r of the sequence's
  u32 count;
};

// What a thread knows of two query rows, g and g + 8 of the tile, g = index / 4.
struct Running {
  f32 top[2];    // largest score so far, in powers of two
  f32 total[2];  // this thread's share of the sum of 2^(score - top)
  f32 sum[HEAD_TILES_OUT][4];
};

DEVICE f32 quad_largest(f32 value) {
  f32 other = shuffle_xor(value, 1);
  value = other > value ? other : value;
  other = shuffle_xor(value, 2);
  return other > value ? other : value;
}

DEVICE void mma16(f32 (&sum)[4], Vec4 a, u32 b0, u32 b1) {
  if constexpr (WEIGHTS == BF16) {
    mma_bf16(sum, a, b0, b1);
  } else {
    mma_f16(sum, a, b0, b1);
  }
}

// How much of a sum remains when its maximum becomes `top`; nothing was summed at NOTHING.
DEVICE f32 remainder(f32 was, f32 top) { return was == NOTHING ? 0.0f : exp2_fast(was - top); }

// Four numbers of the cache, side by side.
DEVICE void load_cached(const u8* from, u64 policy, u32 (&pair)[2]) {
  if constexpr (SWITCH_KEYS) {
    load_pair_once(from, policy, pair[0], pair[1]);
  } else {
    pair[0] = reinterpret_cast<const u32*>(from)[0];
    pair[1] = reinterpret_cast<const u32*>(from)[1];
  }
}

// One tile of keys, positions from `base` on. Row r sees keys oldest[r] .. last[r]; nobody sees
// keys outside first .. end - 1, which may be anything, not numbers even.
DEVICE void attend_tile(const Block& b, Running& s, const u16* const (&query)[2], u32 base,
                        const u8* keys, const u8* values, const u32 (&oldest)[2],
                        const u32 (&last)[2], u32 first, u32 end, u64 policy) {
  const u32 g = b.index / 4, q = b.index % 4;
  f32 score[2][4] = {};
#pragma unroll 3  // all loads of a key in flight at once take more registers than there are
  for (u32 step = 0; step < HEAD_STEPS; ++step) {
    const u32* low = reinterpret_cast<const u32*>(query[0] + step * 16);
    const u32* high = reinterpret_cast<const u32*>(query[1] + step * 16);
    Vec4 a{low[0], high[0], low[1], high[1]};
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {  // keys 8 * half + g
      u32 key[2];
      load_cached(keys + (half * 8 + g) * KV_ROW_BYTES + step * 32 + q * 8, policy, key);
      mma16(score[half], a, key[0], key[1]);
    }
  }
  constexpr f32 SCALE = LOG2E * SCORE_SCALE;
  u32 weight[2][2];  // [half of the keys][row g, row g + 8], as the second product takes them
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    f32 largest = NOTHING;
    bool seen[2][2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        u32 position = base + half * 8 + 2 * q + k;
        f32& x = score[half][2 * r + k];
        x = SCORE_CAP > 0 ? capped(x * SCORE_SCALE, SCORE_CAP) * LOG2E : x * SCALE;
        seen[half][k] = position >= oldest[r] && position <= last[r];
        if (seen[half][k] && x > largest) largest = x;
      }
    }
    largest = quad_largest(largest);
    f32 top = largest > s.top[r] ? largest : s.top[r];
    f32 keep = remainder(s.top[r], top), total = s.total[r] * keep;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      f32 w[2];
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        w[k] = seen[half][k] ? exp2_fast(score[half][2 * r + k] - top) : 0.0f;
        total += w[k];
      }
      weight[half][r] = pack16(w[0], w[1]);
    }
    s.top[r] = top, s.total[r] = total;
#pragma unroll
    for (u32 n = 0; n < HEAD_TILES_OUT; ++n) {
      s.sum[n][2 * r] *= keep;
      s.sum[n][2 * r + 1] *= keep;
    }
  }
  u32 keep[2];  // zero times anything must be zero
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    u32 low = base + half * 8 + 2 * q;
    keep[half] = (low >= first && low < end ? 0xffffu : 0) |
                 (low + 1 >= first && low + 1 < end ? 0xffff0000u : 0);
  }
  Vec4 a{weight[0][0], weight[0][1], weight[1][0], weight[1][1]};
#pragma unroll
  for (u32 n = 0; n < HEAD_TILES_OUT; ++n) {  // dimension 8 * n + g
    u32 pair[2];
    load_cached(values + (n * 8 + g) * 32 + q * 8, policy, pair);
    mma16(s.sum[n], a, pair[0] & keep[0], pair[1] & keep[1]);
  }
}

// The warps' results, added in their order, and out to the lane: [h] sums, maximum, total.
DEVICE void publish_partial(const Block& b, const Queries& q, const Running& s, u32 layer,
                            u32 kv_head, u32 split) {
  constexpr u32 ROW = HEAD_DIM + 2;
  f32* scratch = b.partial();  // [WARPS][MERGED_ROWS][ROW]
  for (u32 begin = 0; begin < q.count; begin += MERGED_ROWS) {
#pragma unroll
    for (u32 r = 0; r < 2; ++r) {
      u32 row = b.index / 4 + 8 * r - begin;  // wraps below `begin`
      if (row >= MERGED_ROWS) continue;
      f32* out = scratch + (b.warp * MERGED_ROWS + row) * ROW;
#pragma unroll
      for (u32 n = 0; n < HEAD_TILES_OUT; ++n) {
        u32 dimension = n * 8 + b.index % 4 * 2;
        if (dimension >= HEAD_DIM) continue;
        out[dimension] = s.sum[n][2 * r];
        out[dimension + 1] = s.sum[n][2 * r + 1];
      }
      if (b.index % 4 == 0) out[HEAD_DIM] = s.top[r], out[HEAD_DIM + 1] = s.total[r];
    }
    compute_barrier();  // publishes the warps' results
    u32 rows = q.count - begin < MERGED_ROWS ? q.count - begin : MERGED_ROWS;
    for (u32 i = b.thread; i < rows * ROW; i += THREADS) {
      u32 row = i / ROW, d = i % ROW, number = q.begin + begin + row;
      f32 top = NOTHING, sum = 0;
      for (u32 warp = 0; warp < WARPS; ++warp) {
        f32 other = scratch[(warp * MERGED_ROWS + row) * ROW + HEAD_DIM];
        top = other > top ? other : top;
      }
      for (u32 warp = 0; warp < WARPS; ++warp) {
        const f32* from = scratch + (warp * MERGED_ROWS + row) * ROW;
        sum += from[d] * remainder(from[HEAD_DIM], top);
      }
      if (d == HEAD_DIM) sum = top;
      Word* out = partial_words(b, layer, split, q.first + number / GROUP_HEADS,
                                kv_head * GROUP_HEADS + number % GROUP_HEADS);
      publish(out + d, bits_of_float(sum), b.stamp(event_after(layer, ATTENTION)));
    }
    compute_barrier();  // guards the scratch against the next rows
  }
}

// The oldest key that a position sees.
DEVICE u32 oldest_key(u32 window, u32 position) {
  return window && position >= window ? position - window + 1 : 0;
}
// A split's tiles in their order, its own chunks one after the other: the first that may hold keys
// from `first` on, and where a tile begins.
constexpr u32 CHUNK_TILES = CHUNK / KEY_TILE;
DEVICE u32 first_tile(u32 first, u32 split) {
  return (first / CHUNK + SPLITS - 1 - split) / SPLITS * CHUNK_TILES;
}
DEVICE u32 tile_base(u32 tile, u32 split) {
  return (tile / CHUNK_TILES * SPLITS + split) * CHUNK + tile % CHUNK_TILES * KEY_TILE;
}
// A tile's keys and values, by two threads of a warp.
DEVICE void ask_for_tile(const Block& b, u32 layer, u32 kv_head, u32 slot, u32 base, u64 policy) {
  if (b.index >= 2) return;
  ask_for(cached_tile(b, layer, kv_head, b.index, slot, base), KEY_TILE * KV_ROW_BYTES, policy);
}
// Before the wait for queries: each warp's first tile of each unit and sequence. What the pass
// itself writes there goes through L2, too.
DEVICE void ask_for_first_tiles(const Block& b, u32 layer, Share units) {
  const u64 policy = policy_evict_first();
  for (u32 unit = units.begin; unit < units.end; ++unit) {
    for (u32 t = 0; t < b.state->width; ++t) {
      if (b.state->first[t] != t) continue;
      const u32 position = b.state->position[t], split = unit % SPLITS;
      const u32 first = oldest_key(LAYER_TABLE[layer].window, position);
      u32 tile = first_tile(first, split);
      tile += (b.warp + WARPS - tile % WARPS) % WARPS;
      if (tile_base(tile, split) + KEY_TILE <= first) tile += WARPS;
      if (tile_base(tile, split) > position) continue;
      ask_for_tile(b, layer, unit / SPLITS, b.state->slot[t], tile_base(tile, split), policy);
    }
  }
}

DEVICE void attend_queries(const Block& b, const Queries& q, u32 layer, u32 kv_head, u32 split) {
  const u32 window = LAYER_TABLE[layer].window;
  const u32 slot = b.state->slot[q.first], begin = b.state->position[q.first];
  const auto oldest_of = [&](u32 position) { return oldest_key(window, position); };
  const u32 first = oldest_of(begin + q.begin / GROUP_HEADS);
  const u32 end = begin + (q.begin + q.count - 1) / GROUP_HEADS + 1;
  const u16* query[2];
  u32 oldest[2], last[2];
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    u32 row = b.index / 4 + 8 * r;
    u32 number = q.begin + (row < q.count ? row : 0);  // a row too many repeats the first
    last[r] = begin + number / GROUP_HEADS;
    oldest[r] = oldest_of(last[r]);
    query[r] = b.query(q.first * GROUP_HEADS + number) + b.index % 4 * 4;
  }
  Running s = {{NOTHING, NOTHING}, {0, 0}, {}};
  const u64 policy = SWITCH_KEYS ? policy_evict_first() : 0;
  for (u32 tile = first_tile(first, split);; ++tile) {
    u32 base = tile_base(tile, split);
    if (base >= end) break;
    if (tile % WARPS != b.warp || base + KEY_TILE <= first) continue;
    if constexpr (SWITCH_KEYS) {
      const u32 next = tile_base(tile + WARPS, split);
      if (next < end) ask_for_tile(b, layer, kv_head, slot, next, policy);
    }
    attend_tile(b, s, query, base, cached_tile(b, layer, kv_head, 0, slot, base),
                cached_tile(b, layer, kv_head, 1, slot, base), oldest, last, first, end, policy);
  }
#pragma unroll
  for (u32 r = 0; r < 2; ++r) {
    s.total[r] += shuffle_xor(s.total[r], 1);
    s.total[r] += shuffle_xor(s.total[r], 2);
  }
  publish_partial(b, q, s, layer, kv_head, split);
}

// Unit after unit; stated is the last, behind whose partial sums those of the others are awaited.
template <typename... Norm>
DEVICE constexpr bool attending_is_proven(Norm... norm) {
  return is_proven(OP_ATTEND, norm..., await(AWAIT_QKV), BARRIER, tell(AWAIT_PARTIAL), BARRIER);
}
static_assert(QK_NORM == 2 ? attending_is_proven(await(AWAIT_HEAD_SQUARES), BARRIER)
                           : attending_is_proven());
DEVICE void attend(const Block& b, u32 layer) {
  Share units = b.share(SHARE_ATTEND);
  u32 width = b.state->width;
  if constexpr (WIDE) compute_barrier();  // guards the sums of QKV: queries take their place
  if constexpr (SWITCH_KEYS) ask_for_first_tiles(b, layer, units);
  if constexpr (QK_NORM == 2) await_head_squares(b, layer);
  for (u32 unit = units.begin; unit < units.end; ++unit) {
    u32 kv_head = unit / SPLITS, split = unit % SPLITS;
    fetch_unit(b, layer, kv_head, split);
    compute_barrier();  // publishes queries, and the pass's keys and values in the cache
    if (unit == units.begin) note(b, BEGUN);
    for (u32 t = 0; t < width;) {
      u32 end = t + 1;
      while (end < width && b.state->first[end] == t) ++end;
      u32 rows = (end - t) * GROUP_HEADS;
      for (u32 begin = 0; begin < rows; begin += QUERY_ROWS) {
        u32 count = rows - begin < QUERY_ROWS ? rows - begin : QUERY_ROWS;
        attend_queries(b, Queries{t, begin, count}, layer, kv_head, split);
      }
      t = end;
    }
  }
}
