// Requests and tokens as they cross between Python and native code. Generated: do not edit.
// To write it anew: scripts/headers. Described in src/monolane/executor_api/_abi.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolane {

constexpr int32_t kMaxLogprobs = 20;
constexpr int32_t kNoToken = -1;
constexpr int32_t kGone = -2;

struct Draw {
  uint64_t seed;             // a draw depends on it, its position and the logits alone
  float temperature;         // 0: the most probable token
  uint32_t top_k;            // 0: all tokens
  double top_p;              // 1: all tokens
  double min_p;              // 0: all tokens
  float frequency_penalty;   // Taken off a token's logit for each time that the answer has it.
  float presence_penalty;    // Taken off a token's logit once the answer has it.
  float repetition_penalty;  // 1: none; divides positive logits of all seen
};
static_assert(sizeof(Draw) == 48);
static_assert(offsetof(Draw, seed) == 0);
static_assert(offsetof(Draw, temperature) == 8);
static_assert(offsetof(Draw, top_k) == 12);
static_assert(offsetof(Draw, top_p) == 16);
static_assert(offsetof(Draw, min_p) == 24);
static_assert(offsetof(Draw, frequency_penalty) == 32);
static_assert(offsetof(Draw, presence_penalty) == 36);
static_assert(offsetof(Draw, repetition_penalty) == 40);

// The most probable token, without any limit or penalty.
constexpr Draw kPlainDraw = {
    .seed = 0,
    .temperature = 0,
    .top_k = 0,
    .top_p = 1,
    .min_p = 0,
    .frequency_penalty = 0,
    .presence_penalty = 0,
    .repetition_penalty = 1,
};

struct LogitBias {
  uint32_t token;  // each once, in ascending order
  float value;     // added to its logit; -infinity bans the token
};
static_assert(sizeof(LogitBias) == 8);
static_assert(offsetof(LogitBias, token) == 0);
static_assert(offsetof(LogitBias, value) == 4);

struct AdvanceRecord {
  Draw draw;
  uint32_t slot;           // of the cache
  uint32_t budget;         // tokens to draw at most
  uint32_t tokens_begin;   // in the list of tokens to feed
  uint32_t tokens_count;   // at least one
  uint32_t stops_begin;    // in the list of ids that end the slot's epoch
  uint32_t stops_count;    // may be none
  uint32_t biases_begin;   // in the list of LogitBias
  uint32_t biases_count;   // may be none
  int32_t logprobs;        // alternatives to report with each token; -1: nothing
  uint32_t guided;         // 1: every draw waits for a guide
  int32_t drafts;          // tokens to be drafted for a pass; -1: as many as pay
  uint32_t drafter;        // whose drafts count: a place in DRAFTERS
  uint32_t history_begin;  // in the list of tokens that the slot holds
  uint32_t history_count;  // all of them, or none
  uint32_t prompt;         // how many of history and tokens were given, not drawn
  uint32_t earlier_begin;  // in the list of texts to draft from
  uint32_t earlier_count;  // may be none
};
static_assert(sizeof(AdvanceRecord) == 120);
static_assert(offsetof(AdvanceRecord, draw) == 0);
static_assert(offsetof(AdvanceRecord, slot) == 48);
static_assert(offsetof(AdvanceRecord, budget) == 52);
static_assert(offsetof(AdvanceRecord, tokens_begin) == 56);
static_assert(offsetof(AdvanceRecord, tokens_count) == 60);
static_assert(offsetof(AdvanceRecord, stops_begin) == 64);
static_assert(offsetof(AdvanceRecord, stops_count) == 68);
static_assert(offsetof(AdvanceRecord, biases_begin) == 72);
static_assert(offsetof(AdvanceRecord, biases_count) == 76);
static_assert(offsetof(AdvanceRecord, logprobs) == 80);
static_assert(offsetof(AdvanceRecord, guided) == 84);
static_assert(offsetof(AdvanceRecord, drafts) == 88);
static_assert(offsetof(AdvanceRecord, drafter) == 92);
static_assert(offsetof(AdvanceRecord, history_begin) == 96);
static_assert(offsetof(AdvanceRecord, history_count) == 100);
static_assert(offsetof(AdvanceRecord, prompt) == 104);
static_assert(offsetof(AdvanceRecord, earlier_begin) == 108);
static_assert(offsetof(AdvanceRecord, earlier_count) == 112);

struct TokenEvent {
  int64_t time_ns;        // of CLOCK_MONOTONIC, as Python's time.perf_counter_ns
  int32_t slot;           // whose token it is
  int32_t token;          // its id, or kNoToken or kGone; see TokenEvent
  float logprob;          // of the token, under the model itself; NaN if not asked for
  int32_t drafted;        // tokens drafted for its pass, with the first that this gave
  int32_t accepted;       // which of them it is, from 1 on; 0: none
  int32_t drafter;        // whose draft that was: a place in DRAFTERS; 0: none
  int32_t top_count;      // alternatives that follow
  int32_t top_token[20];  // the most probable, best first
  float top_logprob[20];  // theirs
};
static_assert(sizeof(TokenEvent) == 200);
static_assert(offsetof(TokenEvent, time_ns) == 0);
static_assert(offsetof(TokenEvent, slot) == 8);
static_assert(offsetof(TokenEvent, token) == 12);
static_assert(offsetof(TokenEvent, logprob) == 16);
static_assert(offsetof(TokenEvent, drafted) == 20);
static_assert(offsetof(TokenEvent, accepted) == 24);
static_assert(offsetof(TokenEvent, drafter) == 28);
static_assert(offsetof(TokenEvent, top_count) == 32);
static_assert(offsetof(TokenEvent, top_token) == 36);
static_assert(offsetof(TokenEvent, top_logprob) == 116);

struct Span {
  int64_t arrived_ns;  // of CLOCK_MONOTONIC, as the others
  int64_t begun_ns;    // when its waits were over
  int64_t ended_ns;    // when it was done
  int32_t worker;      // of the plan
  int32_t phase;       // index in the plan
  int32_t width;       // token positions of the pass
};
static_assert(sizeof(Span) == 40);
static_assert(offsetof(Span, arrived_ns) == 0);
static_assert(offsetof(Span, begun_ns) == 8);
static_assert(offsetof(Span, ended_ns) == 16);
static_assert(offsetof(Span, worker) == 24);
static_assert(offsetof(Span, phase) == 28);
static_assert(offsetof(Span, width) == 32);

struct Setup {
  int64_t delay_ns;       // until a rank sees what another published; to measure a link
  int32_t activation;     // an Activation
  int32_t kv_format;      // a Format, of keys and values
  int32_t rank;           // which of the ranks this is
  int32_t segment;        // file descriptor of what rank 0 shares; -1: this is rank 0
  uint32_t timed;         // 1: phases take the times that set_times says
  uint32_t apart;         // 1: ranks share no memory, and are connected by connect
  int32_t expert_file;    // an empty one, which may be closed afterwards; -1: none
  int32_t max_sequences;  // sequences that may be open at once
  int64_t expert_memory;  // bytes for experts, of all workers of a rank; 0 where all are in memory
  int32_t ranks;          // processes that decode together
};
static_assert(sizeof(Setup) == 56);
static_assert(offsetof(Setup, delay_ns) == 0);
static_assert(offsetof(Setup, activation) == 8);
static_assert(offsetof(Setup, kv_format) == 12);
static_assert(offsetof(Setup, rank) == 16);
static_assert(offsetof(Setup, segment) == 20);
static_assert(offsetof(Setup, timed) == 24);
static_assert(offsetof(Setup, apart) == 28);
static_assert(offsetof(Setup, expert_file) == 32);
static_assert(offsetof(Setup, max_sequences) == 36);
static_assert(offsetof(Setup, expert_memory) == 40);
static_assert(offsetof(Setup, ranks) == 48);

}  // namespace monolane
