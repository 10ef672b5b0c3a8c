// What goes into a pass and what comes out of it, worked out by one thread of every block from the
// same facts, so that nobody has to be told.
#pragma once
#include "choose.cuh"

DEVICE void add_rows(const Block& b, u32 advance) {
  State& s = *b.state;
  const Advance& a = b.request(advance);
  Progress& running = s.running[advance];
  bool decoding = running.fed == a.tokens_count;
  u32 count = decoding ? 1 : a.tokens_count - running.fed;
  if (count > WIDTH - s.width) count = WIDTH - s.width;
  u32 first = s.width;
  for (u32 i = 0; i < count; ++i) {
    u32 t = s.width++;
    s.token[t] = decoding ? running.next : b.p.tokens[a.tokens_begin + running.fed++];
    s.slot[t] = a.slot;
    s.position[t] = running.length++;
    s.first[t] = first;
    if (a.all_logits || decoding || running.fed == a.tokens_count) {
      s.wanted_row[s.wanted] = t;
      s.wanted_advance[s.wanted++] = advance;
    }
  }
}

// Rows that the next pass would have.
DEVICE u32 waiting_rows(const Block& b) {
  u32 rows = 0;
  for (u32 i = 0; i < b.p.advance_count; ++i) {
    const Advance& a = b.request(i);
    const Progress& running = b.state->running[i];
    if (!running.done) rows += running.fed == a.tokens_count ? 1 : a.tokens_count - running.fed;
  }
  return rows;
}

// Sequences that decode come first: they hold one row each, and a prompt takes what is left.
DEVICE void lay_out_pass(const Block& b) {
  State& s = *b.state;
  s.width = s.wanted = 0;
  if (s.stop || s.failed || waiting_rows(b) <= b.p.handover) return;
  for (u32 i = 0; i < b.p.advance_count; ++i) {
    if (!s.running[i].done && s.running[i].fed == b.request(i).tokens_count) add_rows(b, i);
  }
  for (u32 i = 0; i < b.p.advance_count && s.width < WIDTH; ++i) {
    if (!s.running[i].done && s.running[i].fed < b.request(i).tokens_count) add_rows(b, i);
  }
}

// Takes the chosen tokens: block 0 tells the host, all blocks keep count.
DEVICE void take_tokens(const Block& b) {
  State& s = *b.state;
  const Params& p = b.p;
  // Of another block that gave up nothing has come here: its stamps are bad.
  const bool tells = b.worker == 0 && !s.failed;
  for (u32 w = 0; w < s.wanted; ++w) {
    const Advance& a = b.request(s.wanted_advance[w]);
    Progress& running = s.running[s.wanted_advance[w]];
    const bool parked = is_parked(s, p, w);
    if (records(a) && !parked) s.logit_rows += 1;
    if (!draws(a)) {
      running.done = running.fed == a.tokens_count;
      continue;
    }
    u32 token = s.chosen[w] < VOCAB ? s.chosen[w] : 0;  // if a wait starved, anything may be here
    if (parked) {
      // As if the pass had not fed this row: whoever goes on with the sequence feeds it again.
      token = PARKED_TOKEN;
      running.length -= 1;
      running.done = 1;
    } else if (s.chosen[w] == BROKEN_TOKEN) {
      token = BROKEN_TOKEN;
      running.done = 1;
    } else {
      running.next = token;
      running.done = ++running.drawn == a.budget;
      for (u32 i = 0; i < a.stops_count; ++i) {
        if (b.stop_token(a.stops_begin + i) == token) running.done = 1;
      }
    }
    if (tells) {
      Word* event = p.events + s.events % EVENTS * 2;
      publish_system(event, token, s.events + 1);
      publish_system(event + 1, s.wanted_advance[w], s.events + 1);
    }
    s.events += 1;
  }
}

// At the beginning of a launch: requests and stop tokens into shared memory, by all threads.
DEVICE void fetch_requests(const Block& b) {
  constexpr u32 EACH = sizeof(Advance) / 4, STEP = THREADS + 32;
  const u32* from = reinterpret_cast<const u32*>(b.p.advances);
  u32 stops = 0;
  for (u32 i = 0; i < b.p.advance_count; ++i) {
    const u32 end = b.p.advances[i].stops_begin + b.p.advances[i].stops_count;
    if (b.p.advances[i].stops_count && end > stops) stops = end;
  }
  if (stops > HELD_STOPS) stops = HELD_STOPS;
  for (u32 i = b.thread; i < b.p.advance_count * EACH; i += STEP) {
    reinterpret_cast<u32*>(b.requests())[i] = from[i];
  }
  for (u32 i = b.thread; i < stops; i += STEP) b.held_stops()[i] = b.p.stops[i];
}
