// Attention's partial results of all splits, merged in their order: by each block for itself, or,
// where splits are many, by each block a part for its lane.
#pragma once
#include "attend.cuh"

// Two numbers of a head's attention, on their way through its splits.
struct Merging {
  f32 top = NOTHING, total = 0, first = 0, second = 0;
  DEVICE_MEMBER void add(f32 other, f32 its_total, f32 a, f32 b) {
    if (other == NOTHING) return;
    const f32 larger = other > top ? other : top;
    const f32 keep = remainder(top, larger), gain = exp2_fast(other - larger);
    total = total * keep + its_total * gain;
    first = first * keep + a * gain;
    second = second * keep + b * gain;
    top = larger;
  }
};

// The lane's attention, merged from the splits in their order, as the activations of OUT.
static_assert(WIDE ? is_proven(OP_MERGE, await(AWAIT_PARTIAL), tell(AWAIT_ACTIVATIONS))
                   : is_proven(OP_MERGE, await(AWAIT_PARTIAL)));
DEVICE void merge_splits(const Block& b, u32 layer) {
  constexpr u32 PAIRS = HEADS * HEAD_DIM / 2;
  const u32 stamp = b.stamp(event_after(layer, ATTENTION));
  for (u32 i = b.thread; i < b.prepared_tokens() * PAIRS; i += THREADS) {
    u32 t = b.prepared_token(i / PAIRS), head = 2 * (i % PAIRS) / HEAD_DIM,
        d = 2 * (i % PAIRS) % HEAD_DIM;
    Merging merging;
    for (u32 begin = 0; begin < SPLITS; begin += 4) {
      WordPair sums[4] = {}, tail[4] = {};
      u32 pending = 0;
#pragma unroll
      for (u32 k = 0; k < 4; ++k) pending |= (begin + k < SPLITS) << k;
      u32 asked = pending;
      Patience patience;
      while (true) {
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
          if (asked >> k & 1) {
            const Word* from = partial_words(b, layer, begin + k, t, head);
            sums[k] = load_pair(from + d);
            tail[k] = load_pair(from + HEAD_DIM);
          }
        }
        const u32 before = pending;
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
          if (sums[k].a.stamp == stamp && sums[k].b.stamp == stamp && tail[k].a.stamp == stamp &&
              tail[k].b.stamp == stamp) {
            pending &= ~(1u << k);
          }
        }
        if (!pending || give_up(b, patience, AWAIT_PARTIAL, begin)) break;
        asked = next_asked(pending, before);
      }
#pragma unroll
      for (u32 k = 0; k < 4; ++k) {
        if (begin + k >= SPLITS) continue;
        merging.add(float_of_bits(tail[k].a.value), float_of_bits(tail[k].b.value),
                    float_of_bits(sums[k].a.value), float_of_bits(sums[k].b.value));
      }
    }
    const f32 scale = divide(1.0f, merging.total);
    put_activations(b, t, head * HEAD_DIM + d, merging.first * scale, merging.second * scale);
  }
}

// ---- merging apart: each block a part, for the lane ----------------------------------------
constexpr u32 MERGED_PAIRS = HEADS * HEAD_DIM / 2;

DEVICE Word* merged_words(const Block& b, u32 layer, u32 t) {
  const u32 lane = b.copy(0, layer, LAYERS) * LANES + b.lane;
  return b.p.merged_words + static_cast<u64>(lane * WIDTH + t) * MERGED_PAIRS;
}

// The block's pairs of all tokens, of all splits at once, through shared memory: [T][S][pairs, then
// the maximum and total of each head that they are of].
static_assert(is_proven(OP_MERGE_OWN, await(AWAIT_PARTIAL), BARRIER, tell(AWAIT_MERGED)));
DEVICE void merge_own(const Block& b, u32 layer) {
  const Share own = b.share(SHARE_MERGE);
  const u32 pairs = own.end - own.begin, first_head = own.begin / HEAD_PAIRS;
  const u32 heads = pairs ? (own.end - 1) / HEAD_PAIRS - first_head + 1 : 0;
  const u32 row = pairs + heads, width = b.state->width;
  struct Two {
    f32 a, b;
  };
  Two* held = reinterpret_cast<Two*>(b.partial());
  await_pairs(
      b, width * SPLITS * row, b.stamp(event_after(layer, ATTENTION)), AWAIT_PARTIAL,
      [&](u32 i) {
        const u32 t = i / (SPLITS * row), split = i / row % SPLITS, e = i % row;
        const u32 pair = own.begin + e,
                  head = e < pairs ? pair / HEAD_PAIRS : first_head + e - pairs;
        return partial_words(b, layer, split, t, head) +
               (e < pairs ? pair % HEAD_PAIRS * 2 : HEAD_DIM);
      },
      [&](u32 i, u32 first, u32 second) {
        held[i] = Two{float_of_bits(first), float_of_bits(second)};
      });
  compute_barrier();  // publishes what was read
  const u32 stamp = b.stamp(event_after(layer, ATTENTION));
  for (u32 i = b.thread; i < width * pairs; i += THREADS) {
    const u32 t = i / pairs, e = i % pairs;
    const Two* sums = held + t * SPLITS * row;
    const u32 tail = pairs + (own.begin + e) / HEAD_PAIRS - first_head;
    Merging merging;
    for (u32 split = 0; split < SPLITS; ++split, sums += row) {
      merging.add(sums[tail].a, sums[tail].b, sums[e].a, sums[e].b);
    }
    const f32 scale = divide(1.0f, merging.total);
    publish(merged_words(b, layer, t) + own.begin + e,
            pack16(merging.first * scale, merging.second * scale), stamp);
  }
}

static_assert(is_proven(OP_FETCH_MERGED, await(AWAIT_MERGED)));
DEVICE void fetch_merged(const Block& b, u32 layer) {
  constexpr u32 EACH = MERGED_PAIRS / 2;  // pairs of words
  await_pairs(
      b, b.state->width * EACH, b.stamp(event_after(layer, ATTENTION)), AWAIT_MERGED,
      [&](u32 i) { return merged_words(b, layer, i / EACH) + i % EACH * 2; },
      [&](u32 i, u32 first, u32 second) {
        u32* to = reinterpret_cast<u32*>(b.activations(i / EACH)) + i % EACH * 2;
        to[0] = first, to[1] = second;
      });
}
