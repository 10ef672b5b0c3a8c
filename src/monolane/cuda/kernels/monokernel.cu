// Decoding as one persistent program: every block runs the plan's phases on its own rows, pass
// after pass, until the epoch is over. See docs/monokernel.md.
#include "passes.cuh"

// silu(gate) * up of the own rows. A wide pass stores them where the lane's next product reads
// them.
DEVICE void publish_hidden(Block& b, u32 layer) {
  Share own = b.share(SHARE_GATE);
  u32 rows = own.end - own.begin, stamp = b.stamp(event_after(layer, MLP));
  Word* out = b.p.hidden_words + static_cast<u64>(b.lane) * WIDTH * even(INNER);
  for (u32 i = b.thread; i < rows * b.state->width; i += THREADS) {
    u32 t = i / rows, r = i % rows;
    f32 gate = ROW_TOTAL(b, GATE_UP_TILES, t, r), up = ROW_TOTAL(b, GATE_UP_TILES, t, rows + r);
    f32 hidden = divide(gate, 1.0f + exp2_fast(-gate * LOG2E)) * up;
    if constexpr (WIDE) {
      reinterpret_cast<u16*>(b.activations(t))[own.begin + r] =
          static_cast<u16>(pack16(hidden, 0.0f));
    } else {
      publish(out + t * even(INNER) + own.begin + r, bits_of_float(hidden), stamp);
    }
  }
  // An odd row ends with a value that nobody computes, and that is read all the same.
  if (INNER % 2 && own.end == INNER && b.thread < b.state->width) {
    if constexpr (WIDE) {
      reinterpret_cast<u16*>(b.activations(b.thread))[INNER] = 0;
    } else {
      publish(out + b.thread * even(INNER) + INNER, 0, stamp);
    }
  }
}

DEVICE void fetch_hidden(const Block& b, u32 layer) {
  if constexpr (!WIDE) {
    constexpr u32 PAIRS = even(INNER) / 2;
    const Word* hidden = b.p.hidden_words + static_cast<u64>(b.lane) * WIDTH * even(INNER);
    await_pairs(
        b, b.state->width * PAIRS, b.stamp(event_after(layer, MLP)), AWAIT_HIDDEN,
        [&](u32 i) { return hidden + 2 * i; },
        [&](u32 i, u32 first, u32 second) {
          put_activations(b, i / PAIRS, i % PAIRS * 2, float_of_bits(first), float_of_bits(second));
        });
  }
}

DEVICE void run_layer(Block& b, u32 layer) {
  constexpr u32 QKV = 0, ATTEND = 1, OUT = 2, GATE_UP = 3, DOWN = 4;
  const u32 base = 5 * layer;
  const auto scale = [&](const f32* norm) {
    return norm + static_cast<u64>(layer * NORM_LANES + (NORM_LANES > 1 ? b.lane : 0)) * HIDDEN;
  };

  b.phase = base + QKV;
  note(b, ARRIVED);
  normalise_stream(b, 2 * layer, scale(b.p.attention_norm));
  MULTIPLY(b, QKV_TILES);
  publish_qkv(b, layer);
  note(b, ENDED);

  b.phase = base + ATTEND;
  note(b, ARRIVED);
  attend(b, layer);
  note(b, ENDED);

  b.phase = base + OUT;
  note(b, ARRIVED);
  merge_splits(b, layer);
  MULTIPLY(b, OUT_TILES);
  update_stream<OUT_TILES.parts, OUT_TILES.padded_rows>(b, layer, ATTENTION);
  note(b, ENDED);

  b.phase = base + GATE_UP;
  note(b, ARRIVED);
  normalise_stream(b, event_after(layer, ATTENTION), scale(b.p.mlp_norm));
  MULTIPLY(b, GATE_UP_TILES);
  publish_hidden(b, layer);
  note(b, ENDED);

  b.phase = base + DOWN;
  note(b, ARRIVED);
  fetch_hidden(b, layer);
  MULTIPLY(b, DOWN_TILES);
  update_stream<DOWN_TILES.parts, DOWN_TILES.padded_rows>(b, layer, MLP);
  note(b, ENDED);
}

DEVICE void run_head(Block& b) {
  b.phase = 5 * LAYERS;
  note(b, ARRIVED);
  if constexpr (HEAD == 0) {
    normalise_stream(b, LAST_EVENT, b.p.final_norm + (FINAL_NORM_LANES > 1 ? b.lane * HIDDEN : 0));
  } else {
    publish_joined(b);
    if constexpr (HEAD == 1) join_mean(b);
    if constexpr (HEAD == 2) join_sum(b);
    if constexpr (HEAD == 3) join_concat(b);
  }
  // Asked for now, so that the answer has crossed the bus by the end of the product.
  u32 asked = b.worker == 0 && b.thread == 0 ? load_host(b.p.control) : 0;
  MULTIPLY(b, HEAD_TILES);
  if (b.p.guides != nullptr) settle_guides(b);
  offer_candidates(b);
  note(b, ENDED);

  b.phase = 5 * LAYERS + 1;
  note(b, ARRIVED);
  choose(b, asked);
}

DEVICE void run_passes(Block& b) {
  State& s = *b.state;
  while (s.width > 0) {
    embed(b);
    for (u32 layer = 0; layer < LAYERS; ++layer) run_layer(b, layer);
    run_head(b);
    if (b.thread == 0) {
      take_tokens(s, b.p, b.worker);
      note(b, ENDED);
      s.pass_number += 1;
      s.consumed += PASS_SLOTS;
      lay_out_pass(s, b.p);
    }
    meet();  // publishes the next pass; guards the state of this one
  }
}

KERNEL(monokernel, Params, (WARPS + 1) * 32) {
  u8* shared = dynamic_shared();
  State& s = *reinterpret_cast<State*>(shared + AT_STATE);
  Block b{p,
          shared,
          &s,
          block_index(),
          block_index() / BLOCKS,
          block_index() % BLOCKS,
          thread_index(),
          warp_index(),
          lane_index()};
  if constexpr (WIDE) b.syncs = p.epoch_in->syncs;
  if (b.thread == 0) {
    init_ring(b);
    s.pass_number = p.epoch_in->pass_number;
    s.events = p.epoch_in->events;
    s.logit_rows = p.epoch_in->logit_rows;
    s.stop = p.epoch_in->over;
    s.over = s.consumed = s.failed = 0;
    for (u32 i = 0; i < p.advance_count; ++i) s.running[i] = p.progress_in[i];
    lay_out_pass(s, p);
  }
  block_barrier();  // publishes the ring's barriers and the first pass
  if (b.warp == WARPS) {
    if (s.width > 0) produce(b);
    return;
  }
  run_passes(b);
  if (b.thread == 0) {
    shared_poke(&s.over, 1);  // after `consumed`, which run_passes left
    if (b.worker == 0) {
      for (u32 i = 0; i < p.advance_count; ++i) p.progress_out[i] = s.running[i];
      bool over = s.stop || s.failed || waiting_rows(s, p) == 0;
      // Read again where it has not changed: kept from the beginning it would take a register.
      const u32 syncs = WIDE ? b.syncs : p.epoch_in->syncs;
      *p.epoch_out = Epoch{s.pass_number, s.events, s.logit_rows, over, syncs};
    }
  }
}
