// The choice of the next tokens, as docs/sampling.md defines it.
//
// Greedy draws and draws among all tokens need one exchange: every block offers the best of its
// vocabulary rows, all blocks read all offers and choose alike. On several devices it takes two
// hops: the first block of each reads the offers there, posts the best of them to all devices, and
// all blocks read those. Where top-k, top-p or min-p limit
// the choice, the scaled logits of the row go out instead, and one block chooses for all.
#pragma once
#include "joined.cuh"
#include "merge.cuh"

constexpr u32 NO_TOKEN = 0xffffffffu;
// A token without a bit in the mask: ranks below all others, one of a logit of -infinity, a banned
// one, too: where nothing else is left, the lowest of these comes.
constexpr u32 MASKED_OUT = 0xffffffffu;  // a NaN
constexpr u32 BANNED = 0xff800000u;      // -infinity, the logit of a token with such a bias
// BROKEN_TOKEN, in the place of a logit of the model that is no finite number, ranks above all that
// are: its key is a NaN's.
constexpr u32 BROKEN_KEY = 0xffffffffu;

DEVICE u32 choice_copy(const Block& b) { return b.copy(b.state->pass_number % CHOICE_SLOTS); }
DEVICE Word* candidate_words(const Block& b, u32 row) {
  return b.p.candidate_words + static_cast<u64>(choice_copy(b) * WIDTH + row) * WORKERS * 2;
}
DEVICE Word* best_words(const Block& b, u32 row) {
  return b.p.best_words + static_cast<u64>(choice_copy(b) * WIDTH + row) * DEVICES * 2;
}
DEVICE Word* logit_words(const Block& b, u32 row) {
  return b.p.logit_words + static_cast<u64>(b.copy(0) * WIDTH + row) * even(VOCAB);
}

// ---- randomness --------------------------------------------------------------------------------
// First word of Philox4x32-10(key = seed, counter = (token, position, 0, 0)).
DEVICE u32 philox_word(u32 key0, u32 key1, u32 token, u32 position) {
  u32 c0 = token, c1 = position, c2 = 0, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u32 high0 = multiply_high(0xd2511f53u, c0), low0 = 0xd2511f53u * c0;
    u32 high1 = multiply_high(0xcd9e8d57u, c2), low1 = 0xcd9e8d57u * c2;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return c0;
}
// In double, rounded once: in float the largest u would round to 1 and its noise to infinity.
DEVICE f32 gumbel(const Advance& a, u32 token, u32 position) {
  u32 word = philox_word(static_cast<u32>(a.draw.seed), static_cast<u32>(a.draw.seed >> 32), token,
                         position);
  double u = (static_cast<double>(word >> 8) + 0.5) * 5.9604644775390625e-8;  // 2^-24
  return static_cast<f32>(-log_double(-log_double(u)));
}

// ---- candidates --------------------------------------------------------------------------------
DEVICE u32 ordered_key(f32 value) {  // keys order as the values do, as unsigned integers
  u32 bits = bits_of_float(value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE f32 value_of_key(u32 key) {
  return float_of_bits(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
DEVICE Candidate better(Candidate a, Candidate b) {
  return b.key > a.key || (b.key == a.key && b.token < a.token) ? b : a;
}
DEVICE Candidate warp_best(Candidate c) {
#pragma unroll
  for (u32 mask = 16; mask; mask >>= 1) {
    c = better(c, Candidate{shuffle_xor(c.key, mask), shuffle_xor(c.token, mask)});
  }
  return c;
}
// Each warp leaves its best of a row; a barrier later any thread may ask for the block's.
DEVICE void put_best(const Block& b, u32 row, Candidate best) {
  best = warp_best(best);
  if (b.index == 0) b.state->best[row][b.warp] = best;
}
DEVICE Candidate get_best(const Block& b, u32 row) {
  if constexpr (WIDTH == 1) row = 0;  // a constant address, where registers are scarce
  Candidate best = b.state->best[row][0];
  for (u32 warp = 1; warp < WARPS; ++warp) best = better(best, b.state->best[row][warp]);
  return best;
}

// Who chooses for wanted row w where its choice is limited.
DEVICE u32 decider(u32 w) { return w % WORKERS; }

// ---- what may come -----------------------------------------------------------------------------
DEVICE const Word* guide_of(const Params& p, u32 advance) {
  return p.guides + static_cast<u64>(advance) * (1 + MASK_WORDS);
}
DEVICE u32 guide_stamp(const Block& b, u32 advance) {
  return b.request(advance).first_guide + b.state->running[advance].drawn;
}
DEVICE bool is_finite(f32 value) { return (bits_of_float(value) & 0x7f800000u) != 0x7f800000u; }
DEVICE bool is_parked(const State& s, const Params& p, u32 w) {
  return p.guides != nullptr && s.verdict[w] == PARKED;
}

// What the host has to say of a row, once it has said it: waited for where the pass is over but for
// the choice, so that a host which is as quick as a pass costs nothing. One that is late gets its
// row back, for the others have waited long enough.
DEVICE u32 await_guide(const Block& b, u32 advance) {
  const u32 stamp = guide_stamp(b, advance);
  const u64 since = time_ns();
  while (true) {
    Word got = load_host_word(guide_of(b.p, advance));
    if (got.stamp == stamp) return got.value;
    if (time_ns() - since >= b.p.guide_patience_ns || load_host(b.p.control) != 0) return PARKED;
    if (shared_peek(&b.state->failed)) {
      fence_block();
      return PARKED;
    }
  }
}

// After the product of the head: block 0 looks, and all blocks go by what it found.
static_assert(is_proven(OP_SETTLE_GUIDES, tell(AWAIT_GUIDE, WHEN_GUIDED),
                        await(AWAIT_GUIDE, WHEN_GUIDED), BARRIER + WHEN_GUIDED * TOUCH_WHEN));
DEVICE void settle_guides(const Block& b) {
  State& s = *b.state;
  if (b.thread < s.wanted) {
    const u32 advance = s.wanted_advance[b.thread];
    u32 verdict = FREE;
    if (b.request(advance).guided) {
      Word* words = b.p.verdict_words + b.copy(0) * even(WIDTH) + b.thread;
      if (b.worker == 0) {
        verdict = await_guide(b, advance);
        post<AWAIT_GUIDE>(b, words, verdict, b.stamp(LAST_EVENT));
      } else {
        verdict = await_word(b, words, b.stamp(LAST_EVENT), AWAIT_GUIDE, 0);
      }
    }
    s.verdict[b.thread] = verdict;
  }
  compute_barrier();  // publishes the verdicts
}

// Whether a row's mask has a token's bit. Its words are stamped each, so that a block needs no
// other sign that they are whole.
DEVICE bool is_allowed(const Block& b, u32 advance, u32 token) {
  const Word* at = guide_of(b.p, advance) + 1 + token / 32;
  const u32 stamp = guide_stamp(b, advance);
  Patience patience;
  Word got = load_host_word(at);
  while (got.stamp != stamp && !give_up(b, patience, AWAIT_GUIDE, token)) got = load_host_word(at);
  return got.value >> token % 32 & 1;
}

// A logit with its bias.
DEVICE f32 biased(const Params& p, const Advance& a, u32 token, f32 value) {
  u32 low = a.biases_begin, high = low + a.biases_count;
  const u32 end = high;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (p.biases[middle].token < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < end && p.biases[low].token == token ? value + p.biases[low].value : value;
}

// A logit with the penalties on a token that the sequence has had. The sum is taken in double, in
// which the product is exact: a compiler that fuses it changes nothing.
DEVICE f32 penalised(const Draw& draw, u32 seen, f32 value) {
  if (seen == 0) return value;
  value = value < 0 ? value * draw.repetition_penalty : divide(value, draw.repetition_penalty);
  if (seen == 1) return value;
  const double loss = static_cast<double>(draw.frequency_penalty) * (seen - 1) +
                      static_cast<double>(draw.presence_penalty);
  return static_cast<f32>(static_cast<double>(value) - loss);
}

DEVICE bool draws(const Advance& a) { return a.all_logits == 0; }
DEVICE bool records(const Advance& a) { return a.all_logits || a.logprobs >= 0; }
// In float, as the probabilities with which they are compared.
DEVICE f32 top_p_of(const Advance& a) { return static_cast<f32>(a.draw.top_p); }
DEVICE f32 min_p_of(const Advance& a) { return static_cast<f32>(a.draw.min_p); }
DEVICE bool is_limited(const Advance& a) {
  return a.draw.temperature != 0 && (a.draw.top_k > 0 || top_p_of(a) < 1 || min_p_of(a) > 0);
}

// After the product of the head: what this block's rows of the vocabulary contribute.
static_assert(is_proven(OP_OFFER, tell(AWAIT_LOGITS, WHEN_LIMITED), BARRIER,
                        tell(AWAIT_CANDIDATES)));
DEVICE void offer_candidates(const Block& b) {
  Share own = b.share(SHARE_HEAD);
  u32 rows = own.end - own.begin,
      first = (HEAD == HEAD_VOCAB_PARALLEL ? b.lane * HEAD_ROWS : 0) + own.begin;
  f32* record = b.p.logits + static_cast<u64>(b.state->logit_rows) * VOCAB;
  for (u32 w = 0; w < b.state->wanted; ++w) {
    const Advance& a = b.request(b.state->wanted_advance[w]);
    u32 t = b.state->wanted_row[w], position = b.state->position[t] + 1;
    const u32 verdict = b.p.guides != nullptr ? b.state->verdict[w] : static_cast<u32>(FREE);
    // Drawn in this launch, and not counted yet.
    const u32 counted =
        b.state->running[b.state->wanted_advance[w]].drawn ? b.state->token[t] : NO_TOKEN;
    f32* logits = records(a) && verdict != PARKED ? record : nullptr;
    if (logits) record += VOCAB;
    Candidate best{0, NO_TOKEN};
    for (u32 r = b.thread; r < rows && verdict != PARKED; r += THREADS) {
      u32 token = first + r;
      f32 value = ROW_TOTAL(b, HEAD_TILES, t, r);
      if constexpr (LOGIT_SCALE != 1) value *= LOGIT_SCALE;
      if constexpr (LOGIT_CAP > 0) value = capped(value, LOGIT_CAP);
      if (logits) logits[token] = value;
      if (!draws(a)) continue;
      if (!is_finite(value)) {
        best = Candidate{BROKEN_KEY, BROKEN_TOKEN};
        if (!is_limited(a)) continue;  // else who chooses waits for the whole row
      }
      const bool out = verdict == MASKED && !is_allowed(b, b.state->wanted_advance[w], token);
      if (a.biases_count) value = biased(b.p, a, token, value);
      if (a.seen) {
        // A token's count is its own thread's: nobody else reads or writes it. What the launch's
        // last pass drew is fed by this one, and counts from now on.
        u32 seen = a.seen[token];
        if (token == counted) a.seen[token] = seen = (seen ? seen : 1) + 1;
        value = penalised(a.draw, seen, value);
      }
      if (a.draw.temperature != 0) value = divide(value, a.draw.temperature);
      if (out) {
        if (!is_limited(a)) continue;
        value = float_of_bits(MASKED_OUT);
      }
      if (is_limited(a)) {
        post_to<AWAIT_LOGITS>(b, decider(w), logit_words(b, w) + token, bits_of_float(value),
                              b.stamp(LAST_EVENT));
        continue;
      }
      if (a.draw.temperature != 0) value += gumbel(a, token, position);
      best = better(best, Candidate{ordered_key(value), token});
    }
    put_best(b, w, best);
  }
  compute_barrier();  // publishes the warps' best
  // Without any wanted row one offer goes out all the same: it is how blocks end a pass together.
  u32 offers = b.state->wanted ? b.state->wanted : 1;
  if (b.thread < offers) {
    Candidate best = b.thread < b.state->wanted ? get_best(b, b.thread) : Candidate{0, NO_TOKEN};
    Word* out = candidate_words(b, b.thread) + b.worker * 2;
    publish(out, best.key, b.stamp(LAST_EVENT));
    publish(out + 1, best.token, b.stamp(LAST_EVENT));
  }
}

// Reads `count` candidates of row w: afterwards `best` holds the best of them.
template <typename Source>
DEVICE void gather(const Block& b, u32 w, const Word* words, u32 count, Awaited what,
                   Source source) {
  Candidate best{0, NO_TOKEN};
  await_pairs(
      b, count, b.stamp(LAST_EVENT), what, [&](u32 i) { return words + 2 * i; },
      [&](u32, u32 key, u32 token) { best = better(best, Candidate{key, token}); }, source);
  put_best(b, w, best);
}

// Reads all blocks' offers: afterwards `best` holds the whole vocabulary's.
DEVICE void gather_candidates(const Block& b) {
  compute_barrier();  // guards `best` against the readers in offer_candidates
  const u32 offers = b.state->wanted ? b.state->wanted : 1;
  if (DEVICES == 1 || b.leads()) {
    for (u32 w = 0; w < offers; ++w) {
      const Word* words = candidate_words(b, w) + (b.worker - b.here()) * 2;
      gather(b, w, words, DEVICE_WORKERS, AWAIT_CANDIDATES, FromItsOwn{});
    }
  }
  if constexpr (DEVICES > 1) {
    compute_barrier();  // publishes the warps' best of the device
    if (b.leads() && b.thread < offers) {
      const Candidate best = get_best(b, b.thread);
      Word* out = best_words(b, b.thread) + b.p.device * 2;
      post<AWAIT_BEST>(b, out, best.key, b.stamp(LAST_EVENT));
      post<AWAIT_BEST>(b, out + 1, best.token, b.stamp(LAST_EVENT));
    }
    compute_barrier();  // guards them against the best of all devices
    for (u32 w = 0; w < offers; ++w) {
      gather(b, w, best_words(b, w), DEVICES, AWAIT_BEST,
             [](u32 device) { return device * DEVICE_WORKERS; });
    }
  }
}

// ---- a choice among limited tokens -------------------------------------------------------------
// The front of the ranking (larger value first, then the lower token) that is kept: every token
// above `key`, and the `ties` lowest tokens that have it.
struct Front {
  u32 key, ties;
};

struct Histogram {  // of one digit of the keys
  u64 mass[256];    // probabilities in units of 2^-40 of the largest: integers add up exactly alike
  u32 count[256];
  u32 digit;  // where the limit was crossed
  u32 count_above;
  u64 mass_above;
};
static_assert(sizeof(Histogram) <= 4096, "the histogram lies in `partial`");

DEVICE f32 probability(f32 value, f32 top) { return exp2_fast((value - top) * LOG2E); }
DEVICE u64 mass_of(f32 value, f32 top) {
  return static_cast<u64>(probability(value, top) * 1099511627776.0f);  // 2^40
}

// Finds the shortest front of at least `count` tokens and of at least `mass`, digit by digit.
DEVICE Front find_front(const Block& b, const Word* words, f32 top, u32 count, u64 mass) {
  Histogram* h = reinterpret_cast<Histogram*>(b.partial());
  u32 prefix = 0, above = 0;
  u64 mass_above = 0;
  for (u32 shift = 24;; shift -= 8) {
    for (u32 i = b.thread; i < 256; i += THREADS) h->mass[i] = 0, h->count[i] = 0;
    compute_barrier();  // publishes the cleared histogram; guards the last digit's
    for (u32 token = b.thread; token < VOCAB; token += THREADS) {
      f32 value = float_of_bits(look(AWAIT_LOGITS, words + token).value);
      u32 key = ordered_key(value);
      if (key == 0 || (shift < 24 && key >> (shift + 8) != prefix)) continue;
      shared_add(&h->count[key >> shift & 255], 1u);
      shared_add(&h->mass[key >> shift & 255], mass_of(value, top));
    }
    compute_barrier();  // publishes the counts
    if (b.thread == 0) {
      u32 digit = 255;
      while (digit > 0 && (above + h->count[digit] < count || mass_above + h->mass[digit] < mass)) {
        above += h->count[digit];
        mass_above += h->mass[digit];
        --digit;
      }
      h->digit = digit, h->count_above = above, h->mass_above = mass_above;
    }
    compute_barrier();  // publishes the digit
    prefix = prefix << 8 | h->digit;
    above = h->count_above;
    mass_above = h->mass_above;
    if (shift == 0) break;
  }
  u32 equals = h->count[prefix & 255];
  u64 each = equals ? h->mass[prefix & 255] / equals : 0;
  u32 ties = count > above ? count - above : 0;
  if (mass > mass_above) {
    u64 needed = each ? (mass - mass_above + each - 1) / each : equals;
    if (needed > ties) ties = needed < equals ? static_cast<u32>(needed) : equals;
  }
  compute_barrier();  // guards the histogram against the next front
  return Front{prefix, ties < equals ? ties : equals};
}

DEVICE Front shorter(Front a, Front b) {
  if (a.key != b.key) return a.key > b.key ? a : b;
  return a.ties < b.ties ? a : b;
}

// Sums over the block; all threads get the result.
DEVICE u64 block_sum(const Block& b, u64 value) {
  u64* sum = reinterpret_cast<u64*>(b.partial());
  compute_barrier();  // guards the word against the readers of another sum
  if (b.thread == 0) *sum = 0;
  compute_barrier();  // publishes the zero
  shared_add(sum, value);
  compute_barrier();  // publishes the sum
  u64 total = *sum;
  compute_barrier();  // guards it against the next use of the place
  return total;
}

// Mass of the tokens of a front.
DEVICE u64 front_mass(const Block& b, const Word* words, f32 top, Front front) {
  u64 mass = 0;
  for (u32 token = b.thread; token < VOCAB; token += THREADS) {
    f32 value = float_of_bits(look(AWAIT_LOGITS, words + token).value);
    if (ordered_key(value) > front.key) mass += mass_of(value, top);
  }
  return block_sum(b, mass) + front.ties * mass_of(value_of_key(front.key), top);
}

// A block of the device that makes a token's logit, where a lane's rows say which that is.
DEVICE u32 owner_of(u32 token) {
  return HEAD == HEAD_VOCAB_PARALLEL ? token / HEAD_ROWS * BLOCKS : ITS_OWN;
}

// By a whole block: chooses the token of wanted row w from the row's scaled logits.
DEVICE u32 choose_limited(const Block& b, u32 w) {
  const Advance& a = b.request(b.state->wanted_advance[w]);
  const u32 position = b.state->position[b.state->wanted_row[w]] + 1;
  const Word* words = logit_words(b, w);
  u32 largest = 0;
  await_pairs(
      b, VOCAB / 2, b.stamp(LAST_EVENT), AWAIT_LOGITS, [&](u32 i) { return words + 2 * i; },
      [&](u32, u32 first, u32 second) {
        u32 one = ordered_key(float_of_bits(first)), two = ordered_key(float_of_bits(second));
        largest = one > largest ? one : largest;
        largest = two > largest ? two : largest;
      },
      [](u32 i) { return owner_of(2 * i); });
  if (VOCAB % 2 && b.thread == 0) {
    u32 last =
        await_word(b, words + VOCAB - 1, b.stamp(LAST_EVENT), AWAIT_LOGITS, owner_of(VOCAB - 1));
    u32 key = ordered_key(float_of_bits(last));
    largest = key > largest ? key : largest;
  }
  compute_barrier();  // guards `best` against its readers
  put_best(b, w, Candidate{largest, 0});
  compute_barrier();  // publishes the warps' largest
  const f32 top = value_of_key(get_best(b, w).key);
  compute_barrier();  // guards them against put_best below

  Front front{0, 0xffffffffu};  // everything
  // Where all that the mask allows is banned there are no probabilities to limit.
  const bool some = bits_of_float(top) != BANNED;
  if (some && a.draw.top_k > 0 && a.draw.top_k < VOCAB) {
    front = find_front(b, words, top, a.draw.top_k, 0);
  }
  if (some && top_p_of(a) < 1) {
    u64 kept = front_mass(b, words, top, front.key ? front : Front{0, 0});
    u64 wanted = static_cast<u64>(static_cast<double>(top_p_of(a)) * static_cast<double>(kept));
    front = shorter(front, find_front(b, words, top, 1, wanted ? wanted : 1));
  }
  // Each thread takes a run of neighbouring tokens, so that it knows how many ties come before.
  constexpr u32 RUN = (VOCAB + THREADS - 1) / THREADS;
  const u32 begin = b.thread * RUN, end = begin + RUN < VOCAB ? begin + RUN : VOCAB;
  u32 ties = 0;
  for (u32 token = begin; token < end; ++token) {
    ties += ordered_key(float_of_bits(look(AWAIT_LOGITS, words + token).value)) == front.key;
  }
  u32* before = reinterpret_cast<u32*>(b.partial());
  before[b.thread] = ties;
  compute_barrier();  // publishes the threads' ties
  u32 rank = 0;
  for (u32 i = 0; i < b.thread; ++i) rank += before[i];
  Candidate best{0, NO_TOKEN};
  const f32 min_p = min_p_of(a);
  for (u32 token = begin; token < end; ++token) {
    f32 value = float_of_bits(look(AWAIT_LOGITS, words + token).value);
    u32 key = ordered_key(value);
    if (key == 0) continue;  // masked out: a sum with that NaN could be one that ranks first
    if (key < front.key || (key == front.key && rank++ >= front.ties)) continue;
    if (min_p > 0 && value != top && probability(value, top) < min_p) continue;
    best = better(best, Candidate{ordered_key(value + gumbel(a, token, position)), token});
  }
  put_best(b, w, best);
  compute_barrier();  // publishes the warps' best
  return get_best(b, w).token;
}
static_assert(THREADS * 4 <= 4096, "a word a thread fits into `partial`");

// Leaves in `chosen` what all blocks agree on, and in `stop` whether the host wants the end.
template <typename... Hop>
DEVICE constexpr bool choice_is_proven(Hop... second) {
  return is_proven(OP_CHOOSE, tell(AWAIT_CONTROL), BARRIER, await(AWAIT_CANDIDATES), second...,
                   BARRIER, await(AWAIT_CONTROL), await(AWAIT_LOGITS, WHEN_LIMITED),
                   BARRIER + WHEN_LIMITED * TOUCH_WHEN, tell(AWAIT_DECISION, WHEN_LIMITED),
                   await(AWAIT_DECISION, WHEN_LIMITED), BARRIER);
}
static_assert(DEVICES == 1
                  ? choice_is_proven()
                  : choice_is_proven(BARRIER, tell(AWAIT_BEST), BARRIER, await(AWAIT_BEST)));
DEVICE void choose(Block& b) {
  u32 buffer = choice_copy(b), stamp = b.stamp(LAST_EVENT);
  Word control = {};
  if (b.worker == 0 && b.thread == 0) {
    post<AWAIT_CONTROL>(b, b.p.control_words + buffer, b.asked, stamp);
  }
  // Asked for now, so that it is mostly there by the time that the candidates are.
  if constexpr (SWITCH_TOKEN_END) {
    if (b.thread == 0) control = look(AWAIT_CONTROL, b.p.control_words + buffer);
  }
  gather_candidates(b);
  compute_barrier();  // publishes the warps' best
  note(b, BEGUN);
  if (b.thread < b.state->wanted) b.state->chosen[b.thread] = get_best(b, b.thread).token;
  if (b.thread == 0) {
    if (SWITCH_TOKEN_END && control.stamp == stamp) {
      b.state->stop = control.value;
    } else {
      b.state->stop = await_word(b, b.p.control_words + buffer, stamp, AWAIT_CONTROL, 0);
    }
  }
  for (u32 w = 0; w < b.state->wanted; ++w) {
    if (!is_limited(b.request(b.state->wanted_advance[w]))) continue;
    if (is_parked(*b.state, b.p, w) || get_best(b, w).token == BROKEN_TOKEN) continue;
    Word* decision = b.p.decision_words + buffer * WIDTH + w;
    if (b.worker == decider(w)) {
      u32 token = choose_limited(b, w);
      if (b.thread == 0) post<AWAIT_DECISION>(b, decision, token, b.stamp(LAST_EVENT));
    }
    if (b.thread == w) {
      b.state->chosen[w] = await_word(b, decision, stamp, AWAIT_DECISION, decider(w));
    }
  }
  compute_barrier();  // publishes `chosen` and `stop` to the thread that lays out the next pass
}
static_assert(WIDTH <= THREADS, "a thread for each wanted row");
