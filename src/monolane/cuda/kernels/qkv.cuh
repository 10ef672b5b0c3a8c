// Queries, keys and values on their way from the blocks that have their sums to those that attend:
// the former add biases, the latter norm heads and turn them.
#pragma once
#include "stream.cuh"

static_assert(HEAD_DIM % 2 == 0, "words are read in pairs");

DEVICE Word* qkv_words(const Block& b, u32 layer, u32 t) {
  const u32 lane = b.copy(layer % SHARE_LAYERS, layer, LAYERS) * LANES + b.lane;
  return b.p.qkv_words + static_cast<u64>(lane * WIDTH + t) * QKV_ROWS;
}

// Where the values of a lane lie among its words. With PAIRS a word has two neighbours of a value;
// queries and keys are always told one by one, as float32.
constexpr u32 VALUES_BEGIN = (HEADS + KV_HEADS) * HEAD_DIM;
constexpr u32 VALUE_NUMBERS = PAIRED_VALUES ? 2 : 1;

// Where row r of the block's list lies among the lane's query, key and value rows.
DEVICE u32 qkv_row(Share queries, Share keys, Share values, u32 r) {
  u32 count = queries.end - queries.begin;
  if (r < count) return queries.begin + r;
  r -= count, count = keys.end - keys.begin;
  if (r < count) return HEADS * HEAD_DIM + keys.begin + r;
  return VALUES_BEGIN + values.begin + r - count;
}

DEVICE f32 qkv_total(const Block& b, const f32* bias, u32 t, u32 r, u32 row) {
  f32 value = ROW_TOTAL(b, QKV_TILES, t, r);
  if constexpr (QKV_BIAS) value += bias[row];
  return value;
}

// The block's rows out to the lane, as they are: whoever attends norms and turns them, since a
// block may have any rows of a head. Values are rounded as the cache holds them.
static_assert(QK_NORM == 2 ? is_proven(OP_PUBLISH_QKV, tell(AWAIT_QKV), tell(AWAIT_HEAD_SQUARES))
                           : is_proven(OP_PUBLISH_QKV, tell(AWAIT_QKV)));
DEVICE void publish_qkv(const Block& b, u32 layer) {
  const Share queries = b.share(SHARE_Q, layer), keys = b.share(SHARE_K, layer),
              values = b.share(SHARE_V, layer);
  const f32* bias = b.p.qkv_bias + (layer * LANES + b.lane) * QKV_ROWS;
  const u32 stamp = b.stamp(event_after(layer, ATTENTION));
  const u32 rows = queries.end - queries.begin + keys.end - keys.begin + values.end - values.begin;
  const u32 count = rows * b.state->width;
  for (u32 begin = 0; begin < count; begin += THREADS) {
    // By whole warps: the last ones repeat a row, which they do not tell.
    const bool real = begin + b.thread < count;
    const u32 i = real ? begin + b.thread : count - 1, t = i / rows, r = i % rows;
    const u32 row = qkv_row(queries, keys, values, r);
    const f32 value = qkv_total(b, bias, t, r, row);
    Word* words = qkv_words(b, layer, t);
    if constexpr (PAIRED_VALUES) {
      const f32 next = shuffle_xor(value, 1);
      if (real && row >= VALUES_BEGIN && row % 2 == 0) {
        publish(words + VALUES_BEGIN + (row - VALUES_BEGIN) / 2, pack16(value, next), stamp);
      }
    }
    if (real && (!PAIRED_VALUES || row < VALUES_BEGIN)) {
      publish(words + row, row < VALUES_BEGIN ? bits_of_float(value) : pack16(value, 0.0f), stamp);
    }
  }
}

// ---- a norm that goes over all heads -----------------------------------------------------------
DEVICE Word* head_square_words(const Block& b, u32 layer, u32 t, u32 kind) {
  const u32 lane = b.copy(0, layer, LAYERS) * LANES + b.lane;
  return b.p.head_square_words + ((lane * WIDTH + t) * 2 + kind) * even(BLOCKS);
}

// The squares of the block's rows of queries, and of keys; of no rows their sum is 0.
DEVICE void publish_head_squares(const Block& b, u32 layer) {
  const Share queries = b.share(SHARE_Q, layer), keys = b.share(SHARE_K, layer);
  const f32* bias = b.p.qkv_bias + (layer * LANES + b.lane) * QKV_ROWS;
  const u32 told = b.stamp(event_after(layer, ATTENTION));
  for (u32 i = b.warp; i < 2 * b.state->width; i += WARPS) {
    const u32 t = i / 2, kind = i % 2;
    const Share own = kind ? keys : queries;
    const u32 first = kind ? queries.end - queries.begin : 0;  // among the block's rows
    const u32 begin = kind ? HEADS * HEAD_DIM + keys.begin : queries.begin;  // and the lane's
    f32 sum = 0;
    for (u32 r = b.index; r < own.end - own.begin; r += 32) {
      const f32 x = qkv_total(b, bias, t, first + r, begin + r);
      sum += x * x;
    }
    sum = warp_total(sum);
    if (b.index == 0) {
      publish(head_square_words(b, layer, t, kind) + b.member, bits_of_float(sum), told);
    }
  }
}

// 1 / sqrt(mean of squares + eps) of all queries, and of all keys, of each token.
DEVICE void await_head_squares(const Block& b, u32 layer) {
  const u32 told = b.stamp(event_after(layer, ATTENTION));
  for (u32 i = b.warp; i < 2 * b.state->width; i += WARPS) {
    const Word* words = head_square_words(b, layer, i / 2, i % 2);
    f32 sum = 0;
    for (u32 k = b.index; k < BLOCKS; k += 32) {
      sum += float_of_bits(await_word(b, words + k, told, AWAIT_HEAD_SQUARES));
    }
    sum = warp_total(sum);
    const f32 numbers = static_cast<f32>((i % 2 ? KV_HEADS : HEADS) * HEAD_DIM);
    if (b.index == 0) b.state->head_gain[i] = divide(1.0f, square_root(sum / numbers + NORM_EPS));
  }
  compute_barrier();  // publishes the norms of all heads to all threads
}

// ---- what a reader makes of a head ----------------------------------------------------------
constexpr u32 HEAD_PAIRS = HEAD_DIM / 2;            // rotary pairs
constexpr u32 PAIRS_EACH = (HEAD_PAIRS + 31) / 32;  // of a thread, where a warp has a head
constexpr u32 TURNED_PAIRS = TURNED / 2;            // what follows is neighbours that do not turn

// The dimension of a pair's first number, and how far behind it the second is.
DEVICE u32 first_of_pair(u32 pair) {
  if constexpr (ROTARY_INTERLEAVED) return 2 * pair;
  return TURNED == HEAD_DIM || pair < TURNED_PAIRS ? pair : 2 * pair;
}
DEVICE u32 apart(u32 pair) {
  if constexpr (ROTARY_INTERLEAVED) return 1;
  return TURNED == HEAD_DIM || pair < TURNED_PAIRS ? TURNED_PAIRS : 1;
}

// Cosine and sine of each pair at a token's position.
DEVICE const f32* turns_of(const Block& b, u32 layer, u32 t) {
  const u32 which = ROTARIES > 1 && LAYER_TURNS[layer] > 1;
  if constexpr (SWITCH_TABLES) {
    return reinterpret_cast<const f32*>(b.shared + AT_ROTARY) + (which * WIDTH + t) * HEAD_DIM;
  }
  return b.p.rotary + (static_cast<u64>(which) * CONTEXT + b.state->position[t]) * HEAD_DIM;
}

// What a head's pairs are multiplied by; asked for before the wait for its words.
struct HeadTables {
  f32 scale[PAIRS_EACH][2];  // of the norm
  f32 turn[PAIRS_EACH][2];   // cosine and sine
  f32 temperature;           // of a query
  f32 gain;                  // of all heads, where they are normed at once
};
DEVICE bool layer_turns(u32 layer) { return ALL_TURN || LAYER_TURNS[layer]; }
DEVICE HeadTables head_tables(const Block& b, u32 layer, u32 t, u32 head) {
  HeadTables found = {};
  const bool query = head < HEADS;
  const u32 row = QK_NORM == 2 ? layer * (HEADS + KV_HEADS) + head : 2 * layer + !query;
  const f32* scale = b.p.qk_norm + row * HEAD_DIM;
  if constexpr (QK_NORM == 2) found.gain = b.state->head_gain[2 * t + !query];
#pragma unroll
  for (u32 k = 0; k < PAIRS_EACH; ++k) {
    const u32 pair = b.index + 32 * k;
    if (pair >= HEAD_PAIRS) continue;
    const u32 d = first_of_pair(pair);
    if constexpr (QK_NORM) found.scale[k][0] = scale[d], found.scale[k][1] = scale[d + apart(pair)];
    if (!layer_turns(layer)) continue;
    const f32* turn = turns_of(b, layer, t) + 2 * pair;
    found.turn[k][0] = turn[0], found.turn[k][1] = turn[1];
  }
  found.temperature = 1;
  if constexpr (TEMPERED) {
    if (query && LAYER_TEMPERED[layer]) found.temperature = b.p.temperature[b.state->position[t]];
  }
  return found;
}

DEVICE void norm_head(const HeadTables& tables, f32 (&x)[PAIRS_EACH][2]) {
  f32 square = 0;
#pragma unroll
  for (u32 k = 0; k < PAIRS_EACH; ++k) {
    square += x[k][0] * x[k][0];
    square += x[k][1] * x[k][1];
  }
  f32 gain = tables.gain;
  if constexpr (QK_NORM == 1) {
    gain = divide(1.0f, square_root(warp_total(square) / HEAD_DIM + NORM_EPS));
  }
#pragma unroll
  for (u32 k = 0; k < PAIRS_EACH; ++k) {
    x[k][0] = x[k][0] * gain * tables.scale[k][0];
    x[k][1] = x[k][1] * gain * tables.scale[k][1];
  }
}
DEVICE void turn_head(const HeadTables& tables, f32 (&x)[PAIRS_EACH][2]) {
#pragma unroll
  for (u32 k = 0; k < PAIRS_EACH; ++k) {
    const f32 cosine = tables.turn[k][0], sine = tables.turn[k][1];
    const f32 first = x[k][0], second = x[k][1];
    x[k][0] = first * cosine - second * sine;
    x[k][1] = second * cosine + first * sine;
  }
}
// Norms a head of queries or of keys, and turns it. A warp has it in pairs, thread i those of
// number i + 32 k.
DEVICE void finish_head(u32 layer, const HeadTables& tables, f32 (&x)[PAIRS_EACH][2]) {
  if constexpr (QK_NORM != 0 && NORM_TURNED == 0) norm_head(tables, x);
  if (layer_turns(layer)) turn_head(tables, x);
  if constexpr (QK_NORM != 0 && NORM_TURNED != 0) norm_head(tables, x);
  if constexpr (TEMPERED) {
#pragma unroll
    for (u32 k = 0; k < PAIRS_EACH; ++k)
      x[k][0] *= tables.temperature, x[k][1] *= tables.temperature;
  }
}
