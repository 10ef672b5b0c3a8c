// What a head reads that reads all lanes: their streams, normed and joined.
#pragma once
#include "stream.cuh"

// Offers the own rows, normalised unless the head norms their sum.
DEVICE void publish_joined(const Block& b) {
  Share own = b.share(SHARE_DOWN);
  u32 rows = own.end - own.begin;
  const f32* scale = b.p.final_norm + (FINAL_NORM_LANES > 1 ? b.lane * HIDDEN : 0);
  if constexpr (HEAD != HEAD_SUM) {
    for (u32 t = b.warp; t < b.state->width; t += WARPS) await_norm(b, LAST_EVENT, t);
    compute_barrier();  // publishes the norms to all threads
  }
  for (u32 i = b.thread; i < rows * b.state->width; i += THREADS) {
    u32 t = i / rows, r = i % rows;
    f32 x = b.stream(t)[r];
    if constexpr (HEAD != HEAD_SUM) x = x * b.state->inverse_norm[t] * scale[own.begin + r];
    Word* out =
        b.p.joined_words + static_cast<u64>((b.copy(0) * LANES + b.lane) * WIDTH + t) * HIDDEN;
    post<AWAIT_JOINED>(b, out + own.begin + r, bits_of_float(x), b.stamp(LAST_EVENT));
  }
}

// Columns c and c + 1 of a token, added over the lanes in ascending order.
DEVICE void add_joined(const Block& b, u32 t, u32 c, f32& first, f32& second) {
  first = second = 0;
  for (u32 lane = 0; lane < LANES; ++lane) {
    const Word* at =
        b.p.joined_words + static_cast<u64>((b.copy(0) * LANES + lane) * WIDTH + t) * HIDDEN + c;
    Patience patience;
    WordPair got = look_at_pair(AWAIT_JOINED, at);
    u32 stamp = b.stamp(LAST_EVENT);
    while (got.a.stamp != stamp || got.b.stamp != stamp) {
      if (give_up(b, patience, AWAIT_JOINED, lane, lane * BLOCKS)) break;
      got = look_at_pair(AWAIT_JOINED, at);
    }
    first += float_of_bits(got.a.value);
    second += float_of_bits(got.b.value);
  }
}

DEVICE void join_mean(const Block& b) {
  for (u32 i = b.thread; i < b.prepared_tokens() * (HIDDEN / 2); i += THREADS) {
    u32 t = b.prepared_token(i / (HIDDEN / 2)), c = i % (HIDDEN / 2) * 2;
    f32 first, second;
    add_joined(b, t, c, first, second);
    constexpr f32 SHARE = 1.0f / LANES;
    put_activations(b, t, c, first * SHARE, second * SHARE);
  }
}

DEVICE void join_concat(const Block& b) {
  for (u32 lane = 0; lane < LANES; ++lane) {
    const Word* words =
        b.p.joined_words + static_cast<u64>(b.copy(0) * LANES + lane) * WIDTH * HIDDEN;
    await_pairs(
        b, b.prepared_tokens() * (HIDDEN / 2), b.stamp(LAST_EVENT), AWAIT_JOINED,
        [&](u32 i) {
          return words + b.prepared_token(i / (HIDDEN / 2)) * HIDDEN + i % (HIDDEN / 2) * 2;
        },
        [&](u32 i, u32 first, u32 second) {
          u32 t = b.prepared_token(i / (HIDDEN / 2)), c = lane * HIDDEN + i % (HIDDEN / 2) * 2;
          put_activations(b, t, c, float_of_bits(first), float_of_bits(second));
        },
        [&](u32) { return lane * BLOCKS; });
  }
}

// The norm of the sum of the lanes: token by token, the sums read twice rather than kept.
DEVICE void join_sum(const Block& b) {
  for (u32 n = 0; n < b.prepared_tokens(); ++n) {
    u32 t = b.prepared_token(n);
    f32 square = 0;
    for (u32 c = 2 * b.thread; c < HIDDEN; c += 2 * THREADS) {
      f32 first, second;
      add_joined(b, t, c, first, second);
      square += first * first + second * second;
    }
    square = warp_total(square);
    compute_barrier();  // guards the sums below against the readers of the previous token's
    if (b.index == 0) b.state->warp_sums[b.warp] = square;
    compute_barrier();  // publishes the warps' sums
    f32 sum = 0;
    for (u32 warp = 0; warp < WARPS; ++warp) sum += b.state->warp_sums[warp];
    f32 norm = divide(1.0f, square_root(sum / HIDDEN + NORM_EPS));
    for (u32 c = 2 * b.thread; c < HIDDEN; c += 2 * THREADS) {
      f32 first, second;
      add_joined(b, t, c, first, second);
      put_activations(b, t, c, first * norm * b.p.final_norm[c],
                      second * norm * b.p.final_norm[c + 1]);
    }
  }
}

template <typename... Norms>
DEVICE constexpr bool join_is_proven(Norms... norms) {
  return WIDE ? is_proven(OP_JOIN, norms..., tell(AWAIT_JOINED), await(AWAIT_JOINED),
                          tell(AWAIT_ACTIVATIONS))
              : is_proven(OP_JOIN, norms..., tell(AWAIT_JOINED), await(AWAIT_JOINED));
}
static_assert(HEAD == HEAD_SUM ? join_is_proven() : join_is_proven(await(AWAIT_SQUARES), BARRIER));
DEVICE void join(const Block& b) {
  publish_joined(b);
  if constexpr (HEAD == HEAD_MEAN) join_mean(b);
  if constexpr (HEAD == HEAD_SUM) join_sum(b);
  if constexpr (HEAD == HEAD_CONCAT) join_concat(b);
}
