// Decoding as one persistent program: every block runs the steps that the host lowered from the
// plan (PROGRAM in specialisation.h), each on its own rows, pass after pass, until the epoch is
// over. See docs/monokernel.md.
#include "passes.cuh"

DEVICE Word* hidden_words(const Block& b, u32 layer) {
  const u32 lane = b.copy(layer % SHARE_LAYERS, layer, LAYERS) * LANES + b.lane;
  return b.p.hidden_words + static_cast<u64>(lane) * WIDTH * even(INNER);
}

DEVICE f32 hidden_of(const Block& b, u32 rows, u32 t, u32 r) {
  f32 gate = ROW_TOTAL(b, GATE_UP_TILES, t, r), up = ROW_TOTAL(b, GATE_UP_TILES, t, rows + r);
  f32 steep = gate;
  // tanh's approximation of a normal distribution is a logistic function of twice its argument.
  if constexpr (GELU) steep = 1.5957691216057308f * (gate + 0.044715f * (gate * gate * gate));
  return divide(gate, 1.0f + exp2_fast(-steep * LOG2E)) * up;
}

// silu(gate) * up of the own rows. A wide pass stores them where the lane's next product reads
// them.
static_assert(is_proven(OP_PUBLISH_HIDDEN, tell(WIDE ? AWAIT_ACTIVATIONS : AWAIT_HIDDEN)));
DEVICE void publish_hidden(Block& b, u32 layer) {
  Share own = b.share(SHARE_GATE, layer);
  u32 rows = own.end - own.begin, stamp = b.stamp(event_after(layer, MLP));
  Word* out = hidden_words(b, layer);
  if constexpr (PAIRED_HIDDEN) {
    // By whole warps: the last ones repeat a row, which they do not tell.
    const u32 count = rows * b.state->width;
    for (u32 begin = 0; begin < count; begin += THREADS) {
      const u32 i = begin + b.thread < count ? begin + b.thread : count - 1;
      const f32 hidden = hidden_of(b, rows, i / rows, i % rows), next = shuffle_xor(hidden, 1);
      if (begin + b.thread >= count || b.thread % 2) continue;
      publish(out + (i / rows * INNER + own.begin + i % rows) / 2, pack16(hidden, next), stamp);
    }
    return;
  }
  for (u32 i = b.thread; i < rows * b.state->width; i += THREADS) {
    u32 t = i / rows, r = i % rows;
    f32 hidden = hidden_of(b, rows, t, r);
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

static_assert(WIDE ? is_proven(OP_FETCH_HIDDEN) : is_proven(OP_FETCH_HIDDEN, await(AWAIT_HIDDEN)));
DEVICE void fetch_hidden(const Block& b, u32 layer) {
  if constexpr (!WIDE) {
    constexpr u32 PAIRS = PAIRED_HIDDEN ? INNER / 4 : even(INNER) / 2;  // of words
    const Word* hidden = hidden_words(b, layer);
    await_pairs(
        b, b.state->width * PAIRS, b.stamp(event_after(layer, MLP)), AWAIT_HIDDEN,
        [&](u32 i) { return hidden + 2 * i; },
        [&](u32 i, u32 first, u32 second) {
          if constexpr (PAIRED_HIDDEN) {
            u32* at = reinterpret_cast<u32*>(b.activations(i / PAIRS)) + i % PAIRS * 2;
            at[0] = first, at[1] = second;
          } else {
            put_activations(b, i / PAIRS, i % PAIRS * 2, float_of_bits(first),
                            float_of_bits(second));
          }
        });
  }
}

// Lays out the next pass from the tokens that were chosen.
static_assert(is_proven(OP_NEXT_PASS, BARRIER));
DEVICE void next_pass(Block& b) {
  State& s = *b.state;
  if (b.thread == 0) {
    take_tokens(b);
    note(b, ENDED);
    s.pass_number += 1;
    s.first_stamp += PASS_STAMPS;
    lay_out_pass(b);
  }
  compute_barrier();  // publishes the next pass; guards the state of this one
}

// The scale of the norm before the product of a phase.
template <PhaseKind KIND>
DEVICE const f32* norm_scale(const Block& b, u32 layer) {
  if constexpr (KIND == PHASE_HEAD) {
    return b.p.final_norm + (FINAL_NORM_LANES > 1 ? b.lane * HIDDEN : 0);
  } else {
    const f32* scales = KIND == PHASE_QKV ? b.p.attention_norm : b.p.mlp_norm;
    return scales + static_cast<u64>(layer * NORM_LANES + (NORM_LANES > 1 ? b.lane : 0)) * HIDDEN;
  }
}

// One operation of step STEP of the program; LAYERS stands for the layer behind the last one.
template <Op OP, u32 STEP>
DEVICE void run_op(Block& b, u32 layer) {
  constexpr PhaseKind KIND = PROGRAM[STEP].kind;
  constexpr Tiling TILES = tiles_of<KIND>();
  constexpr Module MODULE = KIND == PHASE_OUT ? ATTENTION : MLP;
  if constexpr (OP == OP_EMBED) embed(b);
  if constexpr (OP == OP_NORMALISE) {
    normalise_stream(b, 2 * layer + PROGRAM[STEP].event, norm_scale<KIND>(b, layer));
  }
  if constexpr (OP == OP_FETCH_STREAM) fetch_stream(b, 2 * layer + PROGRAM[STEP].event);
  if constexpr (OP == OP_MULTIPLY) {
    // Asked for now, so that the answer has crossed the bus by the end of the product.
    if constexpr (KIND == PHASE_HEAD) {
      b.asked = b.worker == 0 && b.thread == 0 ? load_host(b.p.control) : 0;
    }
    if constexpr (SWITCH_LANES && LANES > 1 && (KIND == PHASE_OUT || KIND == PHASE_DOWN)) {
      ask_for_lanes(b, layer, MODULE);
    }
    MULTIPLY(b, TILES, rounds_of<KIND>(b, layer));
    if constexpr (SWITCH_TABLES && PROGRAM[STEP].ops[0] == OP_NORMALISE) {
      const u32 event = 2 * layer + PROGRAM[STEP].event;
      if (event < LAST_EVENT) fetch_gains(b, event + 1);
    }
  }
  if constexpr (OP == OP_PUBLISH_QKV) {
    publish_qkv(b, layer);
    if constexpr (QK_NORM == 2) publish_head_squares(b, layer);
  }
  if constexpr (OP == OP_ATTEND) attend(b, layer);
  if constexpr (OP == OP_MERGE) merge_splits(b, layer);
  if constexpr (OP == OP_MERGE_OWN) merge_own(b, layer);
  if constexpr (OP == OP_FETCH_MERGED) fetch_merged(b, layer);
  if constexpr (OP == OP_UPDATE) {
    static_assert(PROGRAM[STEP].event == MODULE, "an update makes the event behind its step's");
    update_stream<TILES.parts, TILES.padded_rows, TILES.folded>(b, layer, MODULE);
  }
  if constexpr (OP == OP_PUBLISH_HIDDEN) publish_hidden(b, layer);
  if constexpr (OP == OP_FETCH_HIDDEN) fetch_hidden(b, layer);
  if constexpr (OP == OP_JOIN) join(b);
  if constexpr (OP == OP_SETTLE_GUIDES) {
    if (b.p.guides != nullptr) settle_guides(b);
  }
  if constexpr (OP == OP_OFFER) offer_candidates(b);
  if constexpr (OP == OP_CHOOSE) choose(b);
  if constexpr (OP == OP_NEXT_PASS) next_pass(b);
}

template <u32 STEP, u32 I = 0>
DEVICE void run_ops(Block& b, u32 layer) {
  if constexpr (I < PROGRAM[STEP].count) {
    run_op<PROGRAM[STEP].ops[I], STEP>(b, layer);
    run_ops<STEP, I + 1>(b, layer);
  }
}

// Steps FROM .. TO - 1 of the program, the first of which is number 0 of its layer.
template <u32 FROM, u32 TO, u32 NUMBER = 0>
DEVICE void run_steps(Block& b, u32 layer) {
  if constexpr (FROM < TO) {
    b.phase = LAYER_STEPS * layer + NUMBER;
    note(b, ARRIVED);
    run_ops<FROM>(b, layer);
    // The last step ends when the next pass is about to be laid out.
    if constexpr (FROM + 1 < STEPS) note(b, ENDED);
    run_steps<FROM + 1, TO, NUMBER + 1>(b, layer);
  }
}

DEVICE void run_passes(Block& b) {
  static_assert(FIRST_STEP == 1, "what comes before the layers is EMBED, which is not traced");
  while (b.state->width > 0) {
    run_ops<0>(b, 0);
    for (u32 layer = 0; layer < LAYERS; ++layer) {
      run_steps<FIRST_STEP, FIRST_STEP + LAYER_STEPS>(b, layer);
    }
    run_steps<FIRST_STEP + LAYER_STEPS, STEPS>(b, LAYERS);
  }
}

KERNEL(monokernel, Params, (WARPS + 1) * 32) {
  u8* shared = dynamic_shared();
  State& s = *reinterpret_cast<State*>(shared + AT_STATE);
  const u32 worker = (DEVICES > 1 ? p.device * DEVICE_WORKERS : 0) + block_index();
  Block b{p,
          shared,
          &s,
          worker,
          worker / BLOCKS,
          worker % BLOCKS,
          thread_index(),
          warp_index(),
          warp_thread()};
  if constexpr (WIDE) b.syncs = p.epoch_in->syncs;
  if constexpr (SWITCH_TABLES) {
    if (b.thread < SHARE_LAYERS * SHARE_TABLES) {
      reinterpret_cast<Share*>(shared + AT_SHARES)[b.thread] =
          p.shares[b.thread * WORKERS + worker];
    }
  }
  if constexpr (UNEVEN) {
    constexpr u32 ROUNDS = 4 * SHARE_LAYERS + 1;
    if (b.thread < ROUNDS) (shared + AT_ROUNDS)[b.thread] = p.rounds[worker * ROUNDS + b.thread];
  }
  if constexpr (SWITCH_NORM) fetch_begins(b);
  if constexpr (SWITCH_TOKEN_END) {
    fetch_requests(b);
    block_barrier();  // publishes the requests to the thread that lays out the first pass
  }
  if (b.thread == 0) {
    init_ring(b);
    s.pass_number = p.epoch_in->pass_number;
    s.first_stamp = s.pass_number * PASS_STAMPS + 1;
    s.events = p.epoch_in->events;
    s.logit_rows = p.epoch_in->logit_rows;
    s.stop = p.epoch_in->over;
    s.over = s.failed = 0;
    for (u32 i = 0; i < p.advance_count; ++i) s.running[i] = p.progress_in[i];
    lay_out_pass(b);
  }
  block_barrier();  // publishes the ring's barriers, the first pass and the block's shares
  if (b.warp == WARPS) {
    if (s.width > 0) produce(b);
    return;
  }
  run_passes(b);
  if (b.thread == 0) {
    shared_poke(&s.over, 1);
    if (b.leads()) {
      for (u32 i = 0; i < p.advance_count; ++i) p.progress_out[i] = s.running[i];
      bool over = s.stop || s.failed || waiting_rows(b) == 0;
      // Read again where it has not changed: kept from the beginning it would take a register.
      const u32 syncs = WIDE ? b.syncs : p.epoch_in->syncs;
      *p.epoch_out = Epoch{s.pass_number, s.events, s.logit_rows, over, syncs};
    }
  }
}
