#include "draft/speculation.h"

#include <algorithm>

#include "draft/suffix_drafter.h"
#include "memory/token_ring.h"

namespace monolane {
namespace {

constexpr float kFade = 0.98f;  // of a count, with each that is added: some 50 last ones count
constexpr float kPrior = 4;     // counts that what was thought before is worth
constexpr int64_t kLeastTokens = 128;  // that a drafter remembers
// Of earlier texts, beside a sequence that fills its context; see monolane.engine's
// _answer_history.py.
constexpr int64_t kEarlierTokens = 8192;
constexpr size_t kCatchUp = 512;  // tokens that a drafter reads in a pass: tens of microseconds
// What drafts must promise over none. Estimates are noisy: without it, text with nothing to copy
// would pay for passes that only seem to be worth it.
constexpr double kMargin = 1.03;
// Of a joint drafter that nobody knows yet: what makes it worth a first try.
constexpr float kFirstFollows = 0.7f;
// What it may cost where it does not pay: this part of the time that passes take is saved up for
// short drafts, from which one learns whether it would by now, up to so much.
constexpr double kProbing = 0.005;
constexpr double kMostProbing = 2e9;  // ns: it may have a long prompt to read first
constexpr size_t kProbe = 2;          // tokens of such a draft
constexpr int64_t kMostLeft = 256;    // tokens that an answer is taken to have left at most

// What a drafter states as a chance; of logits that are no numbers it may be none.
float chance_in(float stated) { return stated > 0 ? std::min(stated, 1.0f) : 0.0f; }

template <typename T>
bool begins_with(const std::vector<T>& whole, size_t at, const std::vector<T>& part, size_t from) {
  const size_t count = std::min(whole.size() - at, part.size() - from);
  return std::equal(part.begin() + from, part.begin() + from + count, whole.begin() + at);
}

}  // namespace

// ---- Acceptance ----

int Acceptance::bin(float stated) {
  return std::min(static_cast<int>(chance_in(stated) * kBins), kBins - 1);
}

float Acceptance::of(float stated, float prior) const {
  const Bin& mine = bins_[bin(stated)];
  return (mine.right + kPrior * prior) / (mine.tries + kPrior);
}

void Acceptance::add(float stated, bool right) {
  Bin& mine = bins_[bin(stated)];
  mine.tries = mine.tries * kFade + 1;
  mine.right = mine.right * kFade + (right ? 1 : 0);
}

// ---- Between epochs ----

Speculation::Speculation(int slots, int max_width, int64_t context, const std::vector<float>& read)
    : slots_(slots),
      max_width_(max_width),
      context_(context),
      cost_(max_width, read),
      clock_(now_ns) {}

void Speculation::begin(int slot, const std::vector<int32_t>& history,
                        const std::vector<int32_t>& tokens, size_t prompt,
                        const std::vector<int32_t>& earlier) {
  Slot& mine = slots_[slot];
  mine.prompt = prompt;
  if (mine.drafter == nullptr)
    mine.drafter =
        std::make_unique<SuffixDrafter>(std::max<int64_t>(context_ + kEarlierTokens, kLeastTokens));
  std::vector<int32_t>& known = mine.tokens;
  const bool longer = known.size() <= history.size() + tokens.size();
  const bool same =
      mine.earlier.size() <= earlier.size() && begins_with(earlier, 0, mine.earlier, 0);
  if (!longer || !same || !begins_with(known, 0, history, 0) ||
      (known.size() > history.size() && !begins_with(known, history.size(), tokens, 0))) {
    known.clear();
    allowance_.begin();
    mine.unlearnt = 0;
    mine.earlier = earlier;
    mine.earlier_read = 0;
    mine.drafter->clear();
    if (joint_ != nullptr) joint_->forget(slot);
    mine.acceptance = {};
    mine.follows = {};
  }
  const size_t old = std::min(known.size(), history.size());
  const size_t fed = known.size() - old;
  known.insert(known.end(), history.begin() + old, history.end());
  known.insert(known.end(), tokens.begin() + fed, tokens.end());
}

void Speculation::script(int slot, std::vector<int32_t> drafts, std::vector<int32_t> draws) {
  slots_[slot].drafts = std::move(drafts);
  slots_[slot].draws = std::move(draws);
}

// ---- In an epoch ----

bool Speculation::may_look(int slot, int rows) {
  const double plain = cost_.of(rows);
  if (plain == 0) return true;
  // A look is in vain where nothing is left for what it finds.
  const double row = std::max(0.0, cost_.of(std::min(rows + 1, max_width_)) - plain);
  if (allowance_.covers((lookup_.of(1) + row) / plain)) return true;
  slots_[slot].unlearnt = slots_[slot].tokens.size();
  return false;
}

void Speculation::add_lookup(int rows, int64_t nanoseconds) {
  lookup_.add(1, nanoseconds);
  const double plain = cost_.of(rows);
  if (plain > 0) allowance_.spend(lookup_.of(1) / plain);
}

void Speculation::catch_up(int slot) {
  Slot& mine = slots_[slot];
  const size_t texts = std::min(kCatchUp, mine.earlier.size() - mine.earlier_read);
  mine.drafter->add_texts(mine.earlier.data() + mine.earlier_read, texts);
  mine.earlier_read += texts;
  const size_t read = mine.drafter->length();
  const int32_t* next = mine.tokens.data() + read;
  const size_t count = std::min(kCatchUp - texts, mine.tokens.size() - read);
  const size_t unlearnt = std::max(mine.prompt, mine.unlearnt);
  const size_t given = std::min(count, unlearnt > read ? unlearnt - read : 0);
  mine.drafter->append(next, given);
  mine.drafter->observe(next + given, count - given);
}

// Adds the chances of a token behind those of the ones before it.
void Speculation::state(Slot& mine, Draft& draft, float said) const {
  const int by = static_cast<int>(draft.by);
  const float stated = chance_in(said);
  const double before = draft.chances.empty() ? 1 : draft.chances.back();
  draft.chances.push_back(before *
                          mine.acceptance[by].of(stated, acceptance_[by].of(stated, stated)));
}

void Speculation::propose(const Advance& advance, int64_t position, size_t most, Draft& draft) {
  Slot& mine = slots_[advance.slot];
  draft.tokens.resize(most);
  draft.stated.resize(most);
  size_t count = 0;
  if (!mine.drafts.empty()) {
    for (; count < most && position + count < mine.drafts.size(); ++count) {
      draft.tokens[count] = mine.drafts[position + count];
      draft.stated[count] = 1;
    }
  } else if ((advance.drafter == DraftBy::kAny || advance.drafter == DraftBy::kSuffix) &&
             mine.drafter->length() == mine.tokens.size()) {  // else it has not caught up yet
    count = mine.drafter->draft(most, draft.tokens.data(), draft.stated.data());
  }
  draft.tokens.resize(count);
  draft.stated.resize(count);
  for (const float stated : draft.stated) state(mine, draft, stated);
}

void Speculation::ask_joint(const Advance& advance, int64_t position, size_t most, int64_t left,
                            const float* hidden, Draft& draft, std::vector<DraftAsk>& asks) const {
  const Slot& mine = slots_[advance.slot];
  // It has to know the whole sequence. What is scripted is not to be replaced.
  const bool known = static_cast<int64_t>(mine.tokens.size()) == position;
  if (joint_ == nullptr || !known || !mine.drafts.empty()) return;
  if (advance.drafter != DraftBy::kAny && advance.drafter != joint_->by()) return;
  if (joint_->reads_hidden() && hidden == nullptr) return;
  if (joint_->block() > 0) most = std::min(most, joint_->block());
  asks.push_back({&advance, &mine.tokens, mine.prompt, most, left, &draft, hidden});
}

void Speculation::draft_jointly(std::vector<DraftAsk>& asks, int rows,
                                const std::function<void()>& lend, const std::atomic<bool>& stop) {
  const int sequences = static_cast<int>(asks.size());
  bool probes = true;
  std::erase_if(asks, [&](DraftAsk& ask) {
    const bool given = ask.advance->drafts != kAutoDrafts;
    if (!given && !pays(ask, rows, sequences)) return true;
    ask.draft->clear();
    ask.draft->by = joint_->by();
    probes &= ask.probe;
    return false;
  });
  if (asks.empty()) return;
  const auto go_on = [&](const DraftAsk& ask, int32_t token, float stated) {
    ask.draft->tokens.push_back(token);
    ask.draft->stated.push_back(stated);
    state(slots_[ask.advance->slot], *ask.draft, stated);
    return ask.draft->chances.back() * ask.rate >= ask.least;
  };
  const int64_t begun = clock_();
  joint_->draft(asks, go_on, lend, stop);
  if (probes) {
    probing_ -= static_cast<double>(clock_() - begun);
    return;
  }
  const double plain = cost_.of(rows);
  for (const DraftAsk& ask : asks) {  // what it has to read is weighed by `pays` alone
    const bool given = ask.advance->drafts != kAutoDrafts;
    const double time = drafting(ask.draft->tokens.size(), sequences);
    if (!given && plain > 0) allowance_.spend(time / plain);
  }
}

// What the joint drafter takes for so many tokens of one of the sequences.
double Speculation::drafting(size_t tokens, int sequences) const {
  const size_t steps = joint_->block() > 0 ? std::min<size_t>(tokens, 1) : tokens;
  return joint_->cost(sequences) / sequences * static_cast<double>(steps);
}

// Tokens a nanosecond, at the best use of a draft that is there.
double Speculation::best_rate(const Draft& draft, int rows) const {
  const double plain = cost_.of(rows);
  double expected = rows, best = expected / plain, waited = 0;
  int width = rows;
  for (const double chance : draft.chances) {
    if (++width > max_width_) break;
    expected += chance;
    waited += chance * draft.wait;
    best = std::max(best, expected / (std::max(plain, cost_.of(width)) + waited));
  }
  return best;
}

// Whether asking the joint drafter promises more tokens a second, what it has to read first
// included, or may be tried to learn that. Then says when to stop drafting.
bool Speculation::pays(DraftAsk& ask, int rows, int sequences) const {
  const Slot& mine = slots_[ask.advance->slot];
  const double plain = cost_.of(rows);
  if (plain == 0) return false;  // nothing was run yet
  const double reading = joint_->reading_cost(ask);
  const double other = best_rate(*ask.draft, rows);
  ask.rate = mine.follows.of(0, follows_.of(0, kFirstFollows));
  double expected = rows, chance = 1, waited = 0, best = 0;
  size_t length = 1;
  for (size_t i = 1; i <= ask.most; ++i) {
    chance *= ask.rate;
    expected += chance;
    waited += chance * ask.draft->wait;
    const double pass = std::max(plain, cost_.of(rows + static_cast<int>(i)));
    const double time = pass + drafting(i, sequences) + waited;
    if (expected / time <= best) continue;
    best = expected / time;
    length = i;
  }
  const double left = static_cast<double>(std::min(ask.left, kMostLeft));
  const bool covered = allowance_.covers(drafting(length, sequences) / plain);
  if (covered && best > kMargin * other && (1 / other - 1 / best) * left > reading) {
    const double widening = cost_.of(rows + static_cast<int>(length)) - plain;
    const double more = drafting(length + 1, sequences) - drafting(length, sequences);
    ask.least = best * (more + widening / static_cast<double>(length));
    return true;
  }
  ask.probe = true;
  ask.most = std::min(ask.most, kProbe);
  const bool copies = other * plain > kMargin * rows;  // there is something better to do
  return !copies && probing_ > reading + drafting(ask.most, sequences);
}

void Speculation::add_cost(int width, int64_t nanoseconds) {
  cost_.add(width, nanoseconds);
  // A pass that was interrupted for milliseconds is no fault of its drafts, nor pays for others.
  const double took = cost_.known(width) ? cost_.of(width) : static_cast<double>(nanoseconds);
  probing_ = std::min(probing_ + kProbing * took, kMostProbing);
  const int rows = width - widened_;
  widened_ = 0;
  const double plain = cost_.of(rows);
  if (plain == 0) return;
  if (width > rows) allowance_.spend((took - plain) / plain);
  allowance_.grant(took / plain);
}

// The most probable drafted tokens of all sequences go in first. A draft's chances fall from token
// to token, so those taken of it are its first ones.
void Speculation::share_out(const std::vector<Draft*>& drafts, int rows) {
  widened_ = 0;
  const double plain = cost_.of(rows);
  if (plain == 0) return;  // nothing was run yet
  candidates_.clear();
  for (Draft* draft : drafts) {
    for (const double chance : draft->chances) candidates_.push_back({chance, draft});
  }
  std::stable_sort(candidates_.begin(), candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.chance > b.chance; });
  const int widest = std::min(max_width_, cost_.reach());
  const size_t room = static_cast<size_t>(std::max(0, widest - rows));
  candidates_.resize(std::min(candidates_.size(), room));
  double expected = static_cast<double>(rows);  // tokens of the pass: each row so far brings one
  double best = kMargin * expected / plain;
  double waited = 0;
  size_t used = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    expected += candidates_[i].chance;
    waited += candidates_[i].chance * candidates_[i].draft->wait;
    // No pass takes less than one of fewer rows: where it seems so, a busy machine was measured.
    const double cost = std::max(plain, cost_.of(rows + static_cast<int>(i) + 1));
    const double rate = expected / (cost + waited);
    if (rate <= best || !allowance_.covers((cost - plain) / plain)) continue;
    best = rate;
    used = i + 1;
  }
  for (size_t i = 0; i < used; ++i) ++candidates_[i].draft->used;
  for (Draft* draft : drafts) draft->worth = 1.0 / rows - draft->wait / plain;
  widened_ = static_cast<int>(used);
}

int32_t Speculation::drawn(int slot, int64_t position, int32_t token) const {
  const std::vector<int32_t>& draws = slots_[slot].draws;
  return position < static_cast<int64_t>(draws.size()) ? draws[position] : token;
}

void Speculation::learn(int slot, const Draft& draft, size_t i, bool right) {
  const int by = static_cast<int>(draft.by);
  slots_[slot].acceptance[by].add(draft.stated[i], right);
  acceptance_[by].add(draft.stated[i], right);
  if (right && i < draft.used) allowance_.bring(draft.worth);
  if (draft.by == DraftBy::kSuffix) return;
  slots_[slot].follows.add(0, right);
  follows_.add(0, right);
}

}  // namespace monolane
