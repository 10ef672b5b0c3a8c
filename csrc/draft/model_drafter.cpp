#include "draft/model_drafter.h"

#include <algorithm>

#include "abi/plan.h"
#include "memory/token_ring.h"
#include "sample/token_counts.h"

namespace monolane {
namespace {

constexpr size_t kReadAtOnce =
    256;                     // tokens that it reads between two passes: four passes of its own
constexpr size_t kFew = 32;  // to be read, in addition to drafting: hardly more than none
// Of a draw with limits, so many best tokens are looked at: sorting a large vocabulary would take
// longer than a small model's pass, and hardly any draw goes beyond.
constexpr uint32_t kMostSorted = 64;
constexpr int32_t kLarge = 1024;  // tokens of a vocabulary from which on that is worth it

// How the draft model draws for a sequence that draws like this.
Draw draw_for(Draw draw, int32_t vocab) {
  const bool limited = vocab >= kLarge && (draw.top_p < 1 || draw.min_p > 0);
  if (limited) draw.top_k = draw.top_k == 0 ? kMostSorted : std::min(draw.top_k, kMostSorted);
  return draw;
}

}  // namespace

ModelDrafter::ModelDrafter(DraftModel& model, int slots, int32_t vocab)
    : model_(model), vocab_(vocab), first_(slots), held_(slots), cost_(slots) {
  if (reads_states(model.header())) states_.emplace(slots, model.header().hidden);
}

// How much of a sequence, from a token on, the model's slot has read and need not read again; the
// last token is always fed, for its logits.
size_t ModelDrafter::common(int slot, const std::vector<int32_t>& tokens, size_t first) const {
  const std::vector<int32_t>& held = held_[slot];
  const size_t most = std::min(held.size(), tokens.size() - first - 1);
  const auto differ = std::mismatch(held.begin(), held.begin() + most, tokens.begin() + first);
  const size_t same = static_cast<size_t>(differ.first - held.begin());
  const bool resumes = same == held.size() || model_.resumable(slot, static_cast<int64_t>(same));
  return resumes ? same : 0;
}

// Of a model that reads states, nothing where the last one was not kept.
std::optional<ModelDrafter::Reading> ModelDrafter::find_reading(
    int slot, const std::vector<int32_t>& tokens) const {
  if (!states_) return Reading{0, common(slot, tokens, 0)};
  const size_t begin = static_cast<size_t>(states_->begin(slot)), count = tokens.size();
  const size_t end = static_cast<size_t>(states_->end(slot));
  if (end + 1 < count || begin + 1 >= count) return std::nullopt;
  const size_t first = first_[slot];
  if (first > 0 && first < count) {
    const size_t held = common(slot, tokens, first);
    if (first + held > begin) return Reading{first, held};  // it reads the state before that token
  }
  return Reading{begin + 1, 0};
}

double ModelDrafter::reading_cost(const DraftAsk& ask) const {
  const std::optional<Reading> reading = find_reading(ask.advance->slot, *ask.tokens);
  if (!reading) return 0;
  const size_t unread = ask.tokens->size() - reading->first - reading->held;
  return unread <= kFew ? 0 : static_cast<double>(unread) * read_.of(1);
}

// Fills in what the model's slot is to do; returns whether it has to do anything.
bool ModelDrafter::prepare(const DraftAsk& ask, Advance& advance) {
  const PlanHeader& header = model_.header();
  const std::vector<int32_t>& tokens = *ask.tokens;
  const int slot = ask.advance->slot;
  const std::optional<Reading> reading = find_reading(slot, tokens);
  if (!reading) return false;
  const size_t first = reading->first, begin = first + reading->held;
  std::vector<int32_t>& held = held_[slot];
  first_[slot] = first;
  held.resize(reading->held);
  if (static_cast<int64_t>(held.size()) < model_.length(slot)) {
    model_.truncate(slot, static_cast<int64_t>(held.size()));
  }
  const int64_t room = header.context - static_cast<int64_t>(tokens.size() - first) + 1;
  const auto unknown = [&](int32_t token) { return token >= header.vocab; };
  if (room < 1 || std::any_of(tokens.begin() + begin, tokens.end(), unknown)) return false;
  advance.slot = slot;
  advance.before = static_cast<int64_t>(first);
  advance.draw = draw_for(ask.advance->draw, header.vocab);
  if (TokenCounts(advance.draw, 1).penalises()) advance.history = held;
  advance.prompt = static_cast<int32_t>(ask.prompt - std::min(first, ask.prompt));
  const size_t end = std::min(tokens.size(), begin + kReadAtOnce);
  advance.tokens.assign(tokens.begin() + begin, tokens.begin() + end);
  if (states_) {
    states_->append(slot, static_cast<int64_t>(begin) - 1, static_cast<int64_t>(end - begin),
                    advance.states);
  }
  held.insert(held.end(), advance.tokens.begin(), advance.tokens.end());
  if (end < tokens.size()) return true;  // reads, and draws one token, which nobody wants
  advance.budget = static_cast<int32_t>(std::min<int64_t>(room, ask.most));
  advance.stop_ids = ask.advance->stop_ids;
  for (const LogitBias& bias : ask.advance->biases) {
    if (!unknown(static_cast<int32_t>(bias.token))) advance.biases.push_back(bias);
  }
  return true;
}

void ModelDrafter::take_part(int worker) { model_.take_part(worker); }

void ModelDrafter::draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                         const std::function<void()>& lend, const std::atomic<bool>& stop) {
  std::vector<Advance> advances;
  std::vector<const DraftAsk*> asked(held_.size(), nullptr);  // by slot: those that draft
  std::vector<int> steps(held_.size(), 0);                    // by slot: tokens drawn
  size_t most_read = 0, all_read = 0;
  for (const DraftAsk& ask : asks) {
    Advance advance;
    if (!prepare(ask, advance)) continue;
    const int slot = advance.slot;
    if (first_[slot] + held_[slot].size() == ask.tokens->size()) asked[slot] = &ask;
    most_read = std::max(most_read, advance.tokens.size());
    all_read += advance.tokens.size();
    advances.push_back(std::move(advance));
  }
  if (advances.empty()) return;
  const int sequences = static_cast<int>(advances.size());
  model_.prepare(std::move(advances), [&](int32_t slot, int32_t token, const float* logits) {
    ++steps[slot];
    const DraftAsk* ask = asked[slot];
    if (ask == nullptr || token >= vocab_) return false;
    held_[slot].push_back(token);
    const float stated = chance_of(logits, model_.header().vocab, token);
    return go_on(*ask, token, stated) && !stop.load(std::memory_order_relaxed);
  });
  const int64_t begun = now_ns();
  lend();
  const int64_t took = now_ns() - begun;
  if (most_read <= kFew) {
    cost_.add(sequences, took / std::max(1, *std::max_element(steps.begin(), steps.end())));
  } else {
    read_.add(1, took / static_cast<int64_t>(all_read));
  }
  for (const DraftAsk& ask : asks) {  // the last token drawn was not fed
    const int slot = ask.advance->slot;
    size_t held = static_cast<size_t>(model_.length(slot));
    // What it drafted it read by states of its own: it reads that again by the model's.
    if (states_) held = std::min(held, ask.tokens->size() - first_[slot]);
    held_[slot].resize(held);
  }
}

}  // namespace monolane
