// The leader among the workers: what goes into a pass, and what comes out of it.
#include "run/pass_scheduler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/head.h"

namespace monolane {
namespace {

constexpr int64_t kMostDrafts = 32;  // of a sequence in a pass

// Tokens in flight towards Python before the decode waits for it: seconds of decoding.
constexpr uint32_t kRingEvents = 4096;

}  // namespace

PassScheduler::PassScheduler(Forward& f, int slots)
    : f_(f),
      guides_(slots),
      busy_(slots),
      guided_(slots),
      leaving_(slots),
      ring_(kRingEvents),
      speculation_(slots, decode_width(f.plan.header), f.plan.header.context,
                   {std::begin(f.plan.header.read), std::end(f.plan.header.read)}) {}

void PassScheduler::set_leader(Worker& leader, int32_t helpers) {
  leader_ = &leader;
  if (helpers > 0) scratch_.parallel.enlist(helpers, [this] { call_helpers(); });
}

void PassScheduler::begin_chore(const Chore& chore) {
  running_.clear();
  chore_ = chore;
}

void PassScheduler::begin_epoch(std::vector<Advance> advances, bool open, OnToken on_token) {
  check(advances);
  running_.clear();
  f_.adapters.begin();
  drop_guides();
  for (std::atomic<bool>& guided : guided_) guided.store(false, std::memory_order_relaxed);
  for (Advance& advance : advances) {
    forget_posts(advance);
    admit(make_running(std::move(advance)));
  }
  on_token_ = std::move(on_token);
  begun_ = false;
  yield_.store(false, std::memory_order_relaxed);
  if (on_token_) return;  // a draft model's: who drafts by it knows when it is through
  for (const Running& running : running_) busy_[running.advance.slot] = true;
  const std::scoped_lock lock(joining_);
  open_ = open;
}

// What takes long of a slot's beginning, and needs nothing that the leader writes.
PassScheduler::Running PassScheduler::make_running(Advance advance) const {
  f_.cache.reach(advance.slot, f_.sequences.length(advance.slot) + advance.tokens.size());
  Running running{.advance = std::move(advance)};
  look_back(running);
  return running;
}

void PassScheduler::admit(Running running) {
  const Advance& advance = running.advance;
  f_.adapters.use(advance.slot);
  if (advance.drafts != 0) {
    speculation_.begin(advance.slot, advance.history, advance.tokens,
                       static_cast<size_t>(advance.prompt), advance.earlier);
  }
  running_.push_back(std::move(running));
}

void PassScheduler::script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws) {
  f_.sequences.length(slot);  // throws where there is no such slot
  for (const int32_t token : drafts) check_token("drafts", token);
  for (const int32_t token : draws) check_token("draws", token);
  speculation_.script(slot, std::move(drafts), std::move(draws));
}

void PassScheduler::check_room(int slot, size_t count) const {
  const int64_t now = f_.sequences.length(slot);
  if (count == 0) throw std::invalid_argument("tokens: expected at least one");
  if (now + static_cast<int64_t>(count) > f_.plan.header.context) {
    throw std::invalid_argument("context: expected at most " +
                                std::to_string(f_.plan.header.context) + " tokens in a slot, got " +
                                std::to_string(now) + " there and " + std::to_string(count) +
                                " more");
  }
}

void PassScheduler::check_token(const char* what, int32_t token) const {
  if (token >= 0 && token < f_.plan.header.vocab) return;
  throw std::invalid_argument(std::string(what) + ": expected ids from 0 to " +
                              std::to_string(f_.plan.header.vocab - 1) + ", got " +
                              std::to_string(token));
}

void PassScheduler::check(const std::vector<Advance>& advances) const {
  std::vector<bool> used(f_.sequences.slots(), false);
  if (advances.empty() || advances.size() > static_cast<size_t>(decode_width(f_.plan.header))) {
    throw std::invalid_argument("advances: expected 1 to " +
                                std::to_string(decode_width(f_.plan.header)) + ", got " +
                                std::to_string(advances.size()));
  }
  for (const Advance& advance : advances) {
    if (advance.budget < 1) throw std::invalid_argument("budget: expected at least 1");
    check_room(advance.slot, advance.tokens.size() + advance.budget - 1);
    if (advance.drafts < kAutoDrafts) throw std::invalid_argument("drafts: expected -1 or more");
    if (advance.tokens.empty()) throw std::invalid_argument("tokens: expected at least one");
    if (used[advance.slot]) throw std::invalid_argument("advances: a slot occurs twice");
    used[advance.slot] = true;
    if (f_.sequences.lacks_states(advance.slot)) {
      throw std::invalid_argument(
          "restore: expected the last part with its tail before the slot goes on, got none");
    }
    for (const int32_t token : advance.tokens) check_token("tokens", token);
    for (const int32_t token : advance.earlier) {
      if (token != kTextEnd) check_token("earlier", token);
    }
    check_history(advance);
    const PlanHeader& h = f_.plan.header;
    const size_t states = reads_states(h) ? advance.tokens.size() * h.hidden : 0;
    if (advance.states.size() != states) {
      throw std::invalid_argument("states: expected " + std::to_string(states) +
                                  " numbers, for as many tokens, got " +
                                  std::to_string(advance.states.size()));
    }
    for (const LogitBias& bias : advance.biases) {
      check_token("logit_bias", static_cast<int32_t>(bias.token));
    }
  }
}

void PassScheduler::check_history(const Advance& advance) const {
  for (const int32_t token : advance.history) check_token("history", token);
  const int64_t held = f_.sequences.length(advance.slot),
                given = static_cast<int64_t>(advance.history.size());
  if (given != held && (given > 0 || TokenCounts(advance.draw, 1).penalises())) {
    throw std::invalid_argument("history: expected the " + std::to_string(held) +
                                " tokens that the slot holds, got " + std::to_string(given));
  }
}

void PassScheduler::lay_out_pass() {
  time_pass();
  for (;;) {
    f_.pass.width = 0;
    f_.pass.runs = 0;
    f_.pass.wanted = 0;
    f_.pass.hidden = all_hidden_ != nullptr;
    f_.pass.offered = false;
    f_.pass.chore = chore_;
    const uint32_t calls = calls_.count();  // before looking for them
    // Not before the first pass: who comes and goes would else keep all others from theirs.
    if (begun_ && yield_.load(std::memory_order_relaxed)) {
      // A parked slot gives its last token back: the next epoch feeds it, and has its logits then.
      for (const Running& running : running_) {
        const int32_t slot = running.advance.slot;
        if (running.parked) f_.sequences.set_length(slot, f_.sequences.length(slot) - 1);
      }
      const std::scoped_lock lock(joining_);
      open_ = false;  // who has joined and not been admitted is left for the next epoch
      return;
    }
    admit_joined();
    end_leaving();
    const bool parked = settle_parked();
    lay_out_rows();
    begun_ = true;
    if (f_.pass.width > 0) return;
    if (parked) {
      calls_.await(calls + 1);
    } else if (close_unless_joined()) {
      return;
    }
  }
}

// Notes what the pass before has cost, if it says what drafts cost: prompts and guides do not.
void PassScheduler::time_pass() {
  if (pass_begun_ns_ > 0) speculation_.add_cost(f_.pass.width, now_ns() - pass_begun_ns_);
  pass_begun_ns_ = 0;
}

void PassScheduler::lay_out_rows() {
  draft();
  const PlanHeader& h = f_.plan.header;
  int64_t waiting = 0;  // tokens of prompts
  decoding_.clear();
  reading_.clear();
  for (Running& running : running_) {
    if (running.done) continue;
    const int64_t left = left_of(running);
    waiting += left;
    if (left > 0) {
      reading_.push_back(&running);
    } else if (!running.parked) {
      decoding_.push_back(&running);
    }
  }
  // Sequences that decode come first, with their drafts, and prompts have what is left. Where that
  // is less than the prompts want, and than half of a pass, these have a pass of their own before
  // each in which all decode: else beside 63 of them a prompt would be read a token a pass. A short
  // one then waits for its own rows alone, and nobody who decodes for more than a pass.
  const int32_t most = decode_width(h);
  const bool fits =
      static_cast<int64_t>(decoding_.size()) + std::min<int64_t>(waiting, most / 2) <= most;
  prompts_alone_ = !fits && !prompts_alone_;
  if (prompts_alone_) {
    for (Running* running : decoding_) running->draft.clear();
  } else {
    add_decoding(most);
  }
  // Nobody waits for his next token during a wider pass, and it has no room for all rows' logits.
  const bool wide = decoding_.empty() && all_logits_ == nullptr;
  add_reading(wide ? h.max_width : most);
  if (reading_.empty() && f_.pass.width > 0) pass_begun_ns_ = now_ns();
}

// Tokens of a prompt that have not gone in.
int64_t PassScheduler::left_of(const Running& running) {
  return static_cast<int64_t>(running.advance.tokens.size() - running.fed);
}

// Adds the rows of sequences that decode; where they are more than the pass has they take turns,
// and have no drafts.
void PassScheduler::add_decoding(int32_t most) {
  if (static_cast<int32_t>(decoding_.size()) <= most) {
    for (Running* running : decoding_) add_rows(*running, most);
    return;
  }
  const int32_t slots = f_.sequences.slots();
  std::ranges::sort(decoding_, {}, [&](const Running* running) {
    return (running->advance.slot - turn_ + slots) % slots;
  });
  for (Running* running : decoding_) {
    running->draft.clear();
    if (f_.pass.width == most) break;
    add_rows(*running, most);
  }
  turn_ = decoding_[most]->advance.slot;
}

// Adds rows of prompts as they came, but the shortest first, in up to half of them. So a short one
// does not wait for long ones, nor a long one for many short ones. Of equally short ones that comes
// first which wants the fewest tokens: it is through the soonest.
void PassScheduler::add_reading(int32_t most) {
  const auto by_work = [](const Running* running) {
    return std::pair(left_of(*running), running->advance.budget);
  };
  const auto shortest = std::ranges::min_element(reading_, {}, by_work);
  const bool overtakes = shortest != reading_.begin();
  if (overtakes) add_rows(**shortest, f_.pass.width + (most - f_.pass.width + 1) / 2);
  for (auto each = reading_.begin(); each != reading_.end(); ++each) {
    if (each != shortest || !overtakes) add_rows(**each, most);
  }
}

// Fills in the drafts of this pass. A slot that reads its prompt has none; and while it does,
// passes are full without any.
void PassScheduler::draft() {
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
    const int32_t room = std::max(0, decode_width(f_.plan.header) - rows);
    draft.used = std::min<size_t>(draft.tokens.size(), room);
    rows += static_cast<int>(draft.used);
  }
  if (!drafts_.empty()) speculation_.share_out(drafts_, rows);
}

// Has the slot's own drafter propose tokens, and notes whether the joint one is to be asked, too.
// Returns whether the slot may have drafts in this pass.
bool PassScheduler::ask_for_drafts(Running& running, int rows, bool reading) {
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
      std::min<int64_t>({left, kMostDrafts, int64_t{decode_width(f_.plan.header)} - rows});
  const int64_t most = given ? std::min<int64_t>(room, advance.drafts) : room;
  if (most <= 0 || (reading && !given)) return false;
  const int64_t position = f_.sequences.length(advance.slot) + 1;
  const size_t wanted = static_cast<size_t>(most);
  speculation_.propose(advance, position, wanted, running.draft);
  if (!given) speculation_.add_lookup(rows, now_ns() - begun);
  running.draft.wait = advance.guided ? speculation_.wait() : 0;
  // Forced tokens that were not fed yet lie between what the head read and the last token: then
  // the slot is fed them first, and does not come here.
  const float* hidden = running.hidden.empty()
                            ? nullptr
                            : running.hidden.data() + running.right * f_.plan.header.hidden;
  speculation_.ask_joint(advance, position, wanted, left, hidden, running.draft, asks_);
  return true;
}

// Has all workers, this one too, take part in what the joint drafter does. They meet in it, so
// nobody still reads this pass when it returns.
void PassScheduler::lend_workers() {
  f_.pass.lent = true;
  f_.exchange.publish_pass(leader_->passes++);
  speculation_.joint()->take_part(0);
  f_.pass.lent = false;
}

void PassScheduler::add_rows(Running& running, int32_t most) {
  const Advance& advance = running.advance;
  running.row = -1;
  running.right = 0;
  running.row_logits = nullptr;
  const int32_t begin = f_.pass.width;
  int64_t length = f_.sequences.length(advance.slot);
  const bool decoding = running.fed == advance.tokens.size();
  size_t count = decoding ? 1 : advance.tokens.size() - running.fed;
  count = std::min<size_t>(count, std::max(0, most - f_.pass.width));
  for (size_t i = 0; i < count; ++i) {
    if (reads_states(f_.plan.header)) add_state(running);
    const int32_t token = decoding ? running.next : advance.tokens[running.fed++];
    const bool last = decoding || running.fed == advance.tokens.size();
    if ((last || all_logits_ != nullptr) && !f_.pass.hidden) {
      running.row = f_.pass.wanted;
      const JointDrafter* joint = speculation_.joint();
      f_.pass.offered |= advance.drafts != 0 && joint != nullptr && joint->reads_hidden();
      f_.pass.offered |= reads_states(f_.plan.header);
      f_.pass.wanted_row[f_.pass.wanted++] = f_.pass.width;
    }
    f_.pass.rows[f_.pass.width++] = {advance.slot, static_cast<int32_t>(length++), token};
  }
  f_.sequences.set_length(advance.slot, length);
  // Drafted tokens count once they are accepted. What a ring loses by those that are not, nothing
  // sees: it holds max_width positions beyond its window.
  for (size_t i = 0; i < running.draft.used; ++i) {
    f_.pass.wanted_row[f_.pass.wanted++] = f_.pass.width;
    f_.pass.rows[f_.pass.width++] = {advance.slot, static_cast<int32_t>(length++),
                                     running.draft.tokens[i]};
  }
  f_.sequences.note_written(advance.slot, length);
  const JointDrafter* joint = speculation_.joint();
  f_.pass.offered |= advance.drafts != 0 && joint != nullptr && joint->sees_states();
  // Where others have filled the pass, a sequence has no rows in it.
  if (f_.states.any() && count > 0) add_run(running, begin, static_cast<int32_t>(count));
}

// Lays out the state that the pass's next row reads: a given one, or what the head read of the
// token before. All workers are through with those of the pass before: the leader waited for what
// they made of them.
void PassScheduler::add_state(const Running& running) {
  const int64_t hidden = f_.plan.header.hidden;
  const bool given = running.fed < running.advance.tokens.size();
  const float* state =
      given ? running.advance.states.data() + running.fed * hidden : running.hidden.data();
  std::copy_n(state, hidden, f_.buffer(PlanBuffer::kStates) + f_.pass.width * hidden);
}

// Says which rows states may go over for good: all but drafts, and but the one whose draw may have
// to wait for its guide, and be taken back with the end of the epoch.
void PassScheduler::add_run(const Running& running, int32_t first, int32_t given) {
  const int32_t slot = running.advance.slot;
  const bool waits = running.advance.guided && running.fed == running.advance.tokens.size();
  const int32_t certain = given - (waits ? 1 : 0);
  const int32_t position = f_.pass.rows[first].position;
  const int32_t settled = static_cast<int32_t>(f_.states.position(slot));
  f_.pass.run[f_.pass.runs++] = {slot, first, f_.pass.width - first, certain, position, settled};
  f_.states.set_position(slot, position + certain);
}

void PassScheduler::choose_tokens() {
  const int64_t vocab = f_.plan.header.vocab;
  const float* logits = f_.exchange.logits();
  if (all_logits_ != nullptr) {  // one slot, whose rows are all wanted
    std::memcpy(all_logits_, logits, floats(f_.pass.wanted * vocab));
    all_logits_ += f_.pass.wanted * vocab;
    Running& only = running_.front();
    only.done = only.fed == only.advance.tokens.size();
    return;
  }
  if (f_.pass.hidden) {  // one slot, whose rows are all there
    for (int64_t t = 0; t < f_.pass.width; ++t, all_hidden_ += f_.plan.header.hidden) {
      merge_lanes(f_, t, all_hidden_);
    }
    Running& only = running_.front();
    only.done = only.fed == only.advance.tokens.size();
    return;
  }
  scratch_.parallel.gather();  // they are through with their part of the logits
  if (f_.pass.offered) show_states();
  for (Running& running : running_) {
    if (running.done || running.row < 0) continue;
    if (f_.pass.offered) keep_hidden(running);
    const float* row = logits + running.row * vocab;
    running.row = -1;
    settle(running, row);
  }
  scratch_.parallel.dismiss();
  f_.pass.help = false;
}

// Has the other workers help with a draw, in a pass of its own. All have read the pass before: the
// draw is behind its last products, which it waits for.
void PassScheduler::call_helpers() {
  f_.pass.help = true;
  f_.exchange.publish_pass(++leader_->passes);
}

// Keeps what the head read of a slot's rows: heads draft from that of the row drawn from last.
void PassScheduler::keep_hidden(Running& running) {
  const int64_t hidden = f_.plan.header.hidden;
  running.hidden.resize((running.draft.used + 1) * hidden);
  for (size_t i = 0; i <= running.draft.used; ++i) {
    merge_lanes(f_, f_.pass.wanted_row[running.row + i], running.hidden.data() + i * hidden);
  }
}

// Shows what the head read of every row, or streams within, to whoever drafts by that. Those of
// drafts that are wrong are shown again, with the tokens in their place.
void PassScheduler::show_states() {
  JointDrafter* joint = speculation_.joint();
  if (joint == nullptr || !joint->sees_states()) return;
  const size_t hidden = f_.plan.header.hidden;
  state_.resize(hidden * std::max<size_t>(1, f_.taps.size()));
  for (int32_t t = 0; t < f_.pass.width; ++t) {
    if (f_.taps.empty()) merge_lanes(f_, t, state_.data());
    float* next = state_.data();
    for (const Tap& tap : f_.taps) {
      next = std::copy_n(tap.rows->as<float>() + t * hidden, hidden, next);
    }
    joint->see(f_.pass.rows[t].slot, f_.pass.rows[t].position, state_.data());
  }
}

// The next tokens of a slot. Each is drawn from its own logits with its own noise, and where it is
// guided under its own mask; as long as a draw is what was drafted, the row behind it has the
// logits of the next. A mask follows from the tokens before it: the slot is parked until it comes.
void PassScheduler::settle(Running& running, const float* logits) {
  for (bool more = true; more; logits += f_.plan.header.vocab) {
    if (running.advance.guided && !take_guide(running)) return park(running, logits);
    if (running.guide && !running.guide->forced.empty() && !force(running, logits)) return;
    more = draw(running, logits);
  }
}

// Draws from a row; returns whether the one behind it is the next.
bool PassScheduler::draw(Running& running, const float* logits) {
  const Advance& advance = running.advance;
  const uint32_t* mask = running.guide ? running.guide->mask.data() : nullptr;
  const int64_t position = f_.sequences.length(advance.slot);
  const uint32_t drawn_at = static_cast<uint32_t>(advance.before + position);
  const int32_t token = choose(logits, f_.plan.header.vocab, advance.draw, advance.biases,
                               running.seen, drawn_at, mask, scratch_);
  running.guide.reset();
  if (token == kNoToken) return break_off(running);
  const size_t used = running.right == 0 ? running.draft.used : 0;
  return accept(running, speculation_.drawn(advance.slot, position, token), logits,
                static_cast<int32_t>(used));
}

// Ends a slot whose logits have no finite peak, and tells its reader. Returns that nothing follows.
bool PassScheduler::break_off(Running& running) {
  running.done = true;
  if (on_token_) return false;  // a draft model's: it drafts no more
  TokenEvent event{};
  event.slot = running.advance.slot;
  event.token = kNoToken;
  event.logprob = std::numeric_limits<float>::quiet_NaN();
  event.time_ns = now_ns();
  send_off(running, event);
  return false;
}

// Sends a token off; with its last one the slot is whoever's reads it.
void PassScheduler::send_off(const Running& running, const TokenEvent& event) {
  if (running.done) busy_[running.advance.slot].store(false, std::memory_order_release);
  ring_.push(event);
}

// A token of the answer: it leaves. Returns whether it was drafted and fed, and more may follow.
bool PassScheduler::accept(Running& running, int32_t token, const float* logits, int32_t drafted) {
  const Draft& draft = running.draft;
  const size_t i = running.right;
  const int32_t slot = running.advance.slot;
  const bool right = i < draft.tokens.size() && token == draft.tokens[i];
  const bool accepted = right && i < draft.used;
  emit(running, token, logits, drafted, accepted ? static_cast<int32_t>(i) + 1 : 0);
  if (running.advance.drafts != 0) speculation_.push(slot, token);
  if (i < draft.tokens.size()) speculation_.learn(slot, draft, i, right);
  if (!accepted || running.done) return false;
  f_.sequences.set_length(slot, f_.sequences.length(slot) + 1);
  ++running.right;
  return true;
}

// Notes the tokens before the first draw, if penalties ask for them.
void PassScheduler::look_back(Running& running) const {
  const Advance& advance = running.advance;
  running.seen = TokenCounts(advance.draw, f_.plan.header.vocab);
  if (!running.seen.penalises()) return;
  int32_t i = 0;
  for (const std::vector<int32_t>* list : {&advance.history, &advance.tokens}) {
    for (const int32_t token : *list) running.seen.note(token, i++ >= advance.prompt);
  }
}

void PassScheduler::emit(Running& running, int32_t token, const float* logits, int32_t drafted,
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
    report_logprobs(logits, f_.plan.header.vocab, advance.logprobs, scratch_, event);
  }
  event.time_ns = now_ns();
  send_off(running, event);
}

}  // namespace monolane
