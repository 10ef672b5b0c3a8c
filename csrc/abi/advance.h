// What the engine asks of one slot in an epoch, and what is drafted for it in a pass: shared by the
// executor, and by what drafts for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi/epoch_abi.h"

namespace monolane {

constexpr int32_t kAutoDrafts = -1;  // as many as pay

// Who drafts: monolane.executor_api.DRAFTERS names these.
enum class DraftBy : int32_t { kAny, kSuffix, kModel, kHeads };
constexpr int kDrafters = 4;

// What one slot does in an epoch, in memory of its own; see AdvanceRecord and
// monolane.executor_api.Advance.
struct Advance {
  int32_t slot = 0;
  std::vector<int32_t> tokens = {};
  int32_t budget = 1;
  Draw draw = kPlainDraw;
  std::vector<LogitBias> biases = {};
  std::vector<int32_t> stop_ids = {};
  int32_t logprobs = -1;              // alternatives to report with each token; -1: nothing
  bool guided = false;                // every draw waits for a Guide
  int32_t drafts = 0;                 // tokens drafted for a pass; kAutoDrafts: as many as pay
  DraftBy drafter = DraftBy::kAny;    // kAny: whose drafts promise more
  std::vector<int32_t> history = {};  // tokens that the slot holds, or none
  int32_t prompt = 0;                 // how many of history and tokens were given, not drawn
  std::vector<int32_t> earlier = {};  // texts to draft from, kTextEnd behind each
  // Where layers predict further ahead, [tokens, D]: what the model's head read of the token before
  // each. Those behind them go on from what their own head read.
  std::vector<float> states = {};
  int64_t before = 0;  // tokens of the sequence before the slot's first
};

// What is proposed behind a sequence, and how much of it goes into the pass.
struct Draft {
  std::vector<int32_t> tokens = {};
  std::vector<float> stated = {};    // by the drafter: that a token is right if those before it are
  std::vector<double> chances = {};  // that it is right and all before it are, by experience
  DraftBy by = DraftBy::kSuffix;     // whose tokens these are
  size_t used = 0;                   // tokens that the pass verifies, from the first on
  double wait = 0;                   // expected nanoseconds of each that is right, beside its row
  double worth = 0;                  // of each used one that is right, in passes; see DraftBudget

  void clear() {
    tokens.clear();
    stated.clear();
    chances.clear();
    by = DraftBy::kSuffix;
    used = 0;
    worth = 0;
  }
};

}  // namespace monolane
