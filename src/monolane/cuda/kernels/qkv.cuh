// What QKV makes of its sums before the lane sees them: biases, norms of heads, rotary embedding.
// The block that has the sums does it all, so that a reader takes queries, keys and values as they
// are.
#pragma once
#include "stream.cuh"

static_assert(HEAD_DIM % 2 == 0, "words are read in pairs");

DEVICE Word* qkv_words(const Block& b, u32 layer, u32 t) {
  const u32 lane = b.copy(0, layer, LAYERS) * LANES + b.lane;
  return b.p.qkv_words + static_cast<u64>(lane * WIDTH + t) * QKV_ROWS;
}

// A row of the block's QKV list: where it lies among the lane's query, key and value rows.
struct QkvRow {
  u32 row;        // of the lane: queries, then keys, then values
  u32 dimension;  // within its head
  bool turns;     // queries and keys
};
DEVICE QkvRow qkv_row(const Share (&shares)[3], u32 r) {
  u32 base = 0;
  for (u32 part = 0; part < 3; ++part) {
    u32 count = shares[part].end - shares[part].begin;
    if (r < count || part == 2) {
      u32 row = shares[part].begin + r;
      return QkvRow{base + row, row % HEAD_DIM, part < 2};
    }
    r -= count;
    base += (part == 0 ? HEADS : KV_HEADS) * HEAD_DIM;
  }
  return QkvRow{0, 0, false};
}

struct QkvWork {  // what makes queries, keys and values of a block's sums
  Share shares[3];
  const f32* bias;  // [QKV_ROWS] of the lane
  const f32* norm;  // [2][h]: scales of query heads and of key heads
  u32 layer, stamp;
};

DEVICE f32 qkv_total(const Block& b, const QkvWork& work, u32 t, u32 r, u32 row) {
  f32 value = ROW_TOTAL(b, QKV_TILES, t, r);
  if constexpr (QKV_BIAS) value += work.bias[row];
  return value;
}

// Cosine and sine of each pair at a token's position.
DEVICE const f32* turns_of(const Block& b, u32 t) {
  if constexpr (SWITCH_TABLES) {
    return reinterpret_cast<const f32*>(b.shared + AT_ROTARY) + t * HEAD_DIM;
  }
  return b.p.rotary + static_cast<u64>(b.state->position[t]) * HEAD_DIM;
}

// One row of a token out to the lane, turned if its layer turns: queries as floats, keys and values
// rounded as the cache holds them. Both rows of a rotary pair are this block's: the plan never cuts
// them apart. `gain`, 1 / rms of the row's head, is for queries and keys that are normed.
DEVICE f32 value_of_row(const Block& b, const QkvWork& work, const QkvRow& at, u32 t, u32 r,
                        f32 gain) {
  const bool query = at.row < HEADS * HEAD_DIM;
  const auto normed = [&](f32 value, u32 dimension) {
    if constexpr (QK_NORM) {
      if (at.turns) return value * gain * work.norm[(query ? 0 : HEAD_DIM) + dimension];
    }
    return value;
  };
  f32 value = normed(qkv_total(b, work, t, r, at.row), at.dimension);
  if (at.turns && (ALL_TURN || LAYER_TURNS[work.layer])) {
    constexpr u32 APART = ROTARY_INTERLEAVED ? 1 : HEAD_DIM / 2;
    bool second = ROTARY_INTERLEAVED ? at.dimension % 2 : at.dimension >= APART;
    u32 angle = ROTARY_INTERLEAVED ? at.dimension / 2 : at.dimension % APART;
    f32 other = qkv_total(b, work, t, second ? r - APART : r + APART,
                          second ? at.row - APART : at.row + APART);
    other = normed(other, second ? at.dimension - APART : at.dimension + APART);
    const f32* turn = turns_of(b, t) + angle * 2;
    value = second ? value * turn[0] + other * turn[1] : value * turn[0] - other * turn[1];
  }
  return value;
}
DEVICE void publish_row(const Block& b, const QkvWork& work, u32 t, u32 r, f32 gain) {
  const QkvRow at = qkv_row(work.shares, r);
  const f32 value = value_of_row(b, work, at, t, r, gain);
  publish(qkv_words(b, work.layer, t) + at.row,
          at.row < HEADS * HEAD_DIM ? bits_of_float(value) : pack16(value, 0.0f), work.stamp);
}

// The same of all rows, two neighbours of a key or a value in a word: shares begin at even rows. By
// whole warps: the last ones repeat a row, which they do not tell.
DEVICE void publish_paired(const Block& b, const QkvWork& work, u32 rows) {
  constexpr u32 QUERIES = HEADS * HEAD_DIM;
  const u32 count = rows * b.state->width;
  for (u32 begin = 0; begin < count; begin += THREADS) {
    const bool real = begin + b.thread < count;
    const u32 i = real ? begin + b.thread : count - 1, t = i / rows, r = i % rows;
    const QkvRow at = qkv_row(work.shares, r);
    const f32 value = value_of_row(b, work, at, t, r, 1.0f), next = shuffle_xor(value, 1);
    if (!real) continue;
    Word* words = qkv_words(b, work.layer, t);
    if (at.row < QUERIES) {
      publish(words + at.row, bits_of_float(value), work.stamp);
    } else if (b.thread % 2 == 0) {
      publish(words + QUERIES + (at.row - QUERIES) / 2, pack16(value, next), work.stamp);
    }
  }
}

// The first rows of the block's list, queries and keys, where each head is normed by itself: a warp
// to a head. The plan gives a block whole heads, so that all sums of a head are its own, and the
// norm costs no wait and no barrier; a reader would have to norm the same head once in each split.
DEVICE void publish_heads(const Block& b, const QkvWork& work, u32 rows) {
  const u32 heads = rows / HEAD_DIM;
  for (u32 i = b.warp; i < heads * b.state->width; i += WARPS) {
    u32 t = i / heads, first = i % heads * HEAD_DIM;
    f32 square = 0;
    for (u32 r = first + b.index; r < first + HEAD_DIM; r += 32) {
      f32 value = qkv_total(b, work, t, r, qkv_row(work.shares, r).row);
      square += value * value;
    }
    f32 gain = divide(1.0f, square_root(warp_total(square) / HEAD_DIM + NORM_EPS));
    for (u32 r = first + b.index; r < first + HEAD_DIM; r += 32) {
      publish_row(b, work, t, r, gain);
    }
  }
}

static_assert(is_proven(OP_PUBLISH_QKV, tell(AWAIT_QKV)));
DEVICE void publish_qkv(const Block& b, u32 layer) {
  const QkvWork work{{b.share(SHARE_Q), b.share(SHARE_K), b.share(SHARE_V)},
                     b.p.qkv_bias + (layer * LANES + b.lane) * QKV_ROWS,
                     b.p.qk_norm + layer * (2 * HEAD_DIM),
                     layer,
                     b.stamp(event_after(layer, ATTENTION))};
  u32 rows = 0, normed = 0;
  for (u32 part = 0; part < 3; ++part) {
    rows += work.shares[part].end - work.shares[part].begin;
    if (QK_NORM && part == 1) normed = rows;
  }
  if constexpr (PAIRED_KEYS) return publish_paired(b, work, rows);
  if constexpr (QK_NORM) publish_heads(b, work, normed);
  rows -= normed;
  for (u32 i = b.thread; i < rows * b.state->width; i += THREADS) {
    publish_row(b, work, i / rows, normed + i % rows, 1.0f);
  }
}
