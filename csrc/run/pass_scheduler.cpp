// The leader among the workers: what goes into a pass, and what comes out of it.
#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/worker.h"

namespace monolane {
namespace {

constexpr int64_t kMostDrafts = 32;  // of a sequence in a pass

}  // namespace

void Executor::lay_out_pass() {
  time_pass();
  for (;;) {
    pass_.width = 0;
    pass_.runs = 0;
    pass_.wanted = 0;
    pass_.hidden = all_hidden_ != nullptr;
    pass_.offered = false;
    pass_.chore = chore_;
    const uint32_t calls = calls_.count();  // before looking for them
    if (yield_.load(std::memory_order_relaxed)) {
      // A parked slot gives its last token back: the next epoch feeds it, and has its logits then.
      for (const Running& running : running_) lengths_[running.advance.slot] -= running.parked;
      return;
    }
    const bool parked = settle_parked();
    lay_out_rows();
    if (pass_.width > 0 || !parked) return;
    calls_.await(calls + 1);
  }
}

// Notes what the pass before has cost, if it says what drafts cost: prompts and guides do not.
void Executor::time_pass() {
  if (pass_begun_ns_ > 0) speculation_.add_cost(pass_.width, now_ns() - pass_begun_ns_);
  pass_begun_ns_ = 0;
}

void Executor::lay_out_rows() {
  draft();
  // Sequences that decode come first, with their drafts; a prompt may take what is left.
  const PlanHeader& h = plan_.header;
  bool decoding = true;
  for (Running& running : running_) {
    const bool fed = running.fed == running.advance.tokens.size();
    if (fed && !running.done && !running.parked) add_rows(running, decode_width(h));
  }
  // Nobody waits for his next token during a wider pass, and it has no room for all rows' logits.
  const bool wide = pass_.width == 0 && all_logits_ == nullptr;
  for (Running& running : running_) {
    if (!running.done && running.fed < running.advance.tokens.size()) {
      decoding = false;
      add_rows(running, wide ? h.max_width : decode_width(h));
    }
  }
  if (decoding && pass_.width > 0) pass_begun_ns_ = now_ns();
}

// Fills in the drafts of this pass. A slot that reads its prompt has none; and while it does,
// passes are full without any.
void Executor::draft() {
  int rows = 0;
  bool reading = false;
  for (Running& running : running_) {
    if (running.done || running.parked) continue;  // what is parked may have rows left
    running.draft.clear();
    const bool decoding = running.fed == running.advance.tokens.size();
    rows += decoding;
    reading |= !decoding;
  }
  asks_.clear();
  for (Running& running : running_) {
    if (!ask_for_drafts(running, rows, reading)) running.draft.clear();
  }
  if (!asks_.empty()) speculation_.draft_jointly(asks_, rows, [this] { lend_workers(); }, yield_);
  drafts_.clear();
  for (Running& running : running_) {
    Draft& draft = running.draft;
    if (draft.tokens.empty() || running.done || running.parked) continue;
    if (running.advance.drafts == kAutoDrafts) {
      drafts_.push_back(&draft);
      continue;
    }
    const int32_t room = std::max(0, decode_width(plan_.header) - rows);
    draft.used = std::min<size_t>(draft.tokens.size(), room);
    rows += static_cast<int>(draft.used);
  }
  if (!drafts_.empty()) speculation_.share_out(drafts_, rows);
}

// Has the slot's own drafter propose tokens, and notes whether the joint one is to be asked, too.
// Returns whether the slot may have drafts in this pass.
bool Executor::ask_for_drafts(Running& running, int rows, bool reading) {
  const Advance& advance = running.advance;
  if (running.done || running.parked) return true;
  if (advance.drafts == 0) return false;
  const bool given = advance.drafts != kAutoDrafts;
  const bool decodes = running.fed == advance.tokens.size();
  if (decodes && !given && !speculation_.may_look(advance.slot, rows)) return false;
  const int64_t begun = now_ns();
  speculation_.catch_up(advance.slot);
  if (!decodes) return false;
  // A pass draws a token more than it has drafts, and all that is drawn but the last is fed.
  const int64_t left = advance.budget - running.drawn - 1;
  const int64_t room =
      std::min<int64_t>({left, kMostDrafts, int64_t{decode_width(plan_.header)} - rows});
  const int64_t most = given ? std::min<int64_t>(room, advance.drafts) : room;
  if (most <= 0 || (reading && !given)) return false;
  const int64_t position = lengths_[advance.slot] + 1;
  const size_t wanted = static_cast<size_t>(most);
  speculation_.propose(advance, position, wanted, running.draft);
  if (!given) speculation_.add_lookup(rows, now_ns() - begun);
  running.draft.wait = advance.guided ? speculation_.wait() : 0;
  // Forced tokens that were not fed yet lie between what the head read and the last token: then
  // the slot is fed them first, and does not come here.
  const float* hidden = running.hidden.empty()
                            ? nullptr
                            : running.hidden.data() + running.right * plan_.header.hidden;
  speculation_.ask_joint(advance, position, wanted, left, hidden, running.draft, asks_);
  return true;
}

// Has all workers, this one too, take part in what the joint drafter does. They meet in it, so
// nobody still reads this pass when it returns.
void Executor::lend_workers() {
  pass_.lent = true;
  exchange_.publish_pass(workers_.front()->passes++);
  speculation_.joint()->take_part(0);
  pass_.lent = false;
}

void Executor::add_rows(Running& running, int32_t most) {
  const Advance& advance = running.advance;
  running.row = -1;
  running.right = 0;
  running.row_logits = nullptr;
  const int32_t begin = pass_.width;
  int64_t length = lengths_[advance.slot];
  const bool decoding = running.fed == advance.tokens.size();
  size_t count = decoding ? 1 : advance.tokens.size() - running.fed;
  count = std::min<size_t>(count, std::max(0, most - pass_.width));
  for (size_t i = 0; i < count; ++i) {
    const int32_t token = decoding ? running.next : advance.tokens[running.fed++];
    const bool last = decoding || running.fed == advance.tokens.size();
    if ((last || all_logits_ != nullptr) && !pass_.hidden) {
      running.row = pass_.wanted;
      const JointDrafter* joint = speculation_.joint();
      pass_.offered |= advance.drafts != 0 && joint != nullptr && joint->reads_hidden();
      pass_.wanted_row[pass_.wanted++] = pass_.width;
    }
    pass_.rows[pass_.width++] = {advance.slot, static_cast<int32_t>(length++), token};
  }
  lengths_[advance.slot].store(length, std::memory_order_relaxed);
  // Drafted tokens count once they are accepted. What a ring loses by those that are not, nothing
  // sees: it holds max_width positions beyond its window.
  for (size_t i = 0; i < running.draft.used; ++i) {
    pass_.wanted_row[pass_.wanted++] = pass_.width;
    pass_.rows[pass_.width++] = {advance.slot, static_cast<int32_t>(length++),
                                 running.draft.tokens[i]};
  }
  highest_[advance.slot] = std::max(highest_[advance.slot], length);
  // Where others have filled the pass, a sequence has no rows in it.
  if (states_.any() && count > 0) add_run(running, begin, static_cast<int32_t>(count));
}

// Says which rows states may go over for good: all but drafts, and but the one whose draw may have
// to wait for its guide, and be taken back with the end of the epoch.
void Executor::add_run(const Running& running, int32_t first, int32_t given) {
  const int32_t slot = running.advance.slot;
  const bool waits = running.advance.guided && running.fed == running.advance.tokens.size();
  const int32_t certain = given - (waits ? 1 : 0);
  const int32_t position = pass_.rows[first].position;
  const int32_t settled = static_cast<int32_t>(states_.position(slot));
  pass_.run[pass_.runs++] = {slot, first, pass_.width - first, certain, position, settled};
  states_.set_position(slot, position + certain);
}

void Executor::run_choose(Worker& w, const PlanPhase&) {
  if (w.index == 0) choose_tokens();
}

void Executor::choose_tokens() {
  const int64_t vocab = plan_.header.vocab;
  const float* logits = exchange_.logits();
  if (all_logits_ != nullptr) {  // one slot, whose rows are all wanted
    std::memcpy(all_logits_, logits, floats(pass_.wanted * vocab));
    all_logits_ += pass_.wanted * vocab;
    Running& only = running_.front();
    only.done = only.fed == only.advance.tokens.size();
    return;
  }
  if (pass_.hidden) {  // one slot, whose rows are all there
    for (int64_t t = 0; t < pass_.width; ++t, all_hidden_ += plan_.header.hidden) {
      merge_lanes(t, all_hidden_);
    }
    Running& only = running_.front();
    only.done = only.fed == only.advance.tokens.size();
    return;
  }
  scratch_.crew.gather();  // they are through with their part of the logits
  for (Running& running : running_) {
    if (running.done || running.row < 0) continue;
    if (pass_.offered) keep_hidden(running);
    const float* row = logits + running.row * vocab;
    running.row = -1;
    settle(running, row);
  }
  scratch_.crew.dismiss();
  pass_.help = false;
}

// Has the other workers help with a draw, in a pass of its own. All have read the pass before: the
// draw is behind its last products, which it waits for.
void Executor::call_helpers() {
  pass_.help = true;
  exchange_.publish_pass(++workers_.front()->passes);
}

// Keeps what the head read of a slot's rows: heads draft from that of the row drawn from last.
void Executor::keep_hidden(Running& running) {
  const int64_t hidden = plan_.header.hidden;
  running.hidden.resize((running.draft.used + 1) * hidden);
  for (size_t i = 0; i <= running.draft.used; ++i) {
    merge_lanes(pass_.wanted_row[running.row + i], running.hidden.data() + i * hidden);
  }
}

// The next tokens of a slot. Each is drawn from its own logits with its own noise, and where it is
// guided under its own mask; as long as a draw is what was drafted, the row behind it has the
// logits of the next. A mask follows from the tokens before it: the slot is parked until it comes.
void Executor::settle(Running& running, const float* logits) {
  for (bool more = true; more; logits += plan_.header.vocab) {
    if (running.advance.guided && !take_guide(running)) return park(running, logits);
    if (running.guide && !running.guide->forced.empty() && !force(running, logits)) return;
    more = draw(running, logits);
  }
}

// Draws from a row; returns whether the one behind it is the next.
bool Executor::draw(Running& running, const float* logits) {
  const Advance& advance = running.advance;
  const uint32_t* mask = running.guide ? running.guide->mask.data() : nullptr;
  const int64_t position = lengths_[advance.slot];
  const int32_t token = choose(logits, plan_.header.vocab, advance.draw, advance.biases,
                               running.seen, static_cast<uint32_t>(position), mask, scratch_);
  running.guide.reset();
  const size_t used = running.right == 0 ? running.draft.used : 0;
  return accept(running, speculation_.drawn(advance.slot, position, token), logits,
                static_cast<int32_t>(used));
}

// A token of the answer: it leaves. Returns whether it was drafted and fed, and more may follow.
bool Executor::accept(Running& running, int32_t token, const float* logits, int32_t drafted) {
  const Draft& draft = running.draft;
  const size_t i = running.right;
  const int32_t slot = running.advance.slot;
  const bool right = i < draft.tokens.size() && token == draft.tokens[i];
  const bool accepted = right && i < draft.used;
  emit(running, token, logits, drafted, accepted ? static_cast<int32_t>(i) + 1 : 0);
  if (running.advance.drafts != 0) speculation_.push(slot, token);
  if (i < draft.tokens.size()) speculation_.learn(slot, draft, i, right);
  if (!accepted || running.done) return false;
  lengths_[slot].store(lengths_[slot] + 1, std::memory_order_relaxed);
  ++running.right;
  return true;
}

// Notes the tokens before the first draw, if penalties ask for them.
void Executor::look_back(Running& running) const {
  const Advance& advance = running.advance;
  running.seen = Seen(advance.draw, plan_.header.vocab);
  if (!running.seen.penalises()) return;
  int32_t i = 0;
  for (const std::vector<int32_t>* list : {&advance.history, &advance.tokens}) {
    for (const int32_t token : *list) running.seen.note(token, i++ >= advance.prompt);
  }
}

void Executor::emit(Running& running, int32_t token, const float* logits, int32_t drafted,
                    int32_t accepted) {
  const Advance& advance = running.advance;
  const std::vector<int32_t>& stops = advance.stop_ids;
  running.next = token;
  if (running.seen.penalises()) running.seen.note(token, true);
  running.done = ++running.drawn == advance.budget ||
                 std::find(stops.begin(), stops.end(), token) != stops.end();
  if (on_token_) {
    running.done |= !on_token_(advance.slot, token, logits);
    return;
  }
  TokenEvent event{};
  event.slot = advance.slot;
  event.token = token;
  event.drafted = drafted;
  event.accepted = accepted;
  event.drafter = drafted > 0 || accepted > 0 ? static_cast<int32_t>(running.draft.by) : 0;
  event.logprob = std::numeric_limits<float>::quiet_NaN();
  if (advance.logprobs >= 0 && logits != nullptr) {
    report_logprobs(logits, plan_.header.vocab, advance.logprobs, scratch_, event);
  }
  event.time_ns = now_ns();
  ring_.push(event);
}

}  // namespace monolane
