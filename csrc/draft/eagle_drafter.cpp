#include "draft/eagle_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "memory/token_ring.h"

namespace monolane {
namespace {

constexpr int64_t kStepRows = 64;  // of a step
constexpr size_t kBeside = 32;  // tokens to be read, in addition to drafting: hardly more than none

std::unique_ptr<Arena> room(int64_t count) {
  return std::make_unique<Arena>(static_cast<size_t>(count) * sizeof(float));
}

Int8Matrix codes(const EagleWeights::Stored& stored, int64_t rows, int64_t columns) {
  return {stored.values, stored.format, rows, columns};
}

}  // namespace

EagleDrafter::EagleDrafter(const Kernels& kernels, const Matrix& embedding,
                           const EagleWeights& weights, int workers, int slots, int64_t context)
    : kernels_(kernels),
      embedding_(embedding),
      hidden_(weights.hidden),
      inner_(weights.inner),
      heads_(weights.heads),
      kv_heads_(weights.kv_heads),
      head_dim_(weights.head_dim),
      context_(context),
      norm_eps_(weights.norm_eps),
      amplitude_(weights.amplitude),
      norm_joins_(weights.norm_joins),
      choice_({weights.tokens, weights.tokens + weights.drafted}, embedding.rows),
      token_norm_(weights.token_norm, weights.token_norm + hidden_),
      state_norm_(weights.state_norm, weights.state_norm + hidden_),
      mlp_norm_(weights.mlp_norm, weights.mlp_norm + hidden_),
      final_norm_(weights.final_norm, weights.final_norm + hidden_),
      frequencies_(weights.frequencies, weights.frequencies + head_dim_ / 2),
      fc_(codes(weights.fc, hidden_, kEagleStreams * hidden_)),
      q_(codes(weights.q, heads_ * head_dim_, 2 * hidden_)),
      k_(codes(weights.k, kv_heads_ * head_dim_, 2 * hidden_)),
      v_(codes(weights.v, kv_heads_ * head_dim_, 2 * hidden_)),
      o_(codes(weights.o, hidden_, heads_ * head_dim_)),
      gate_(codes(weights.gate, inner_, hidden_)),
      up_(codes(weights.up, inner_, hidden_)),
      down_(codes(weights.down, hidden_, inner_)),
      head_(codes(weights.head, weights.drafted, hidden_)),
      states_(slots, kEagleStreams * hidden_),
      read_(slots),
      workers_(workers),
      steps_(workers, slots) {
  const int64_t most = std::max<int64_t>(kStepRows, slots);
  given_ = room(most * kEagleStreams * hidden_);
  x_ = room(most * hidden_);
  query_ = room(most * heads_ * head_dim_);
  key_ = room(most * kv_heads_ * head_dim_);
  value_ = room(most * kv_heads_ * head_dim_);
  attended_ = room(most * heads_ * head_dim_);
  product_ = room(most * inner_);
  logits_ = room(slots * weights.drafted);
  own_ = room(slots * hidden_);
  const int64_t widest = std::max({kEagleStreams * hidden_, inner_, heads_ * head_dim_});
  const int64_t group = heads_ / kv_heads_;
  for (Worker& w : workers_) {
    w.input = room(most * 2 * hidden_);
    w.packed = std::make_unique<Arena>(
        static_cast<size_t>(most * kernels_.packed_bytes(Activation::kI8, widest)));
    w.product = room(most * std::max(inner_, hidden_));
    w.second = room(most * inner_);
    w.query = room(group * head_dim_);
    w.partial = room(group * (head_dim_ + 2));
    w.scores = room(kAttendQueries * scores_of(context_));
    w.cosine.resize(static_cast<size_t>(head_dim_ / 2));
    w.sine.resize(static_cast<size_t>(head_dim_ / 2));
  }
}

// ---- By the leader ----

// The token of a sequence from which on a slot reads it, and how many from there it holds; nothing
// where the streams of the last token but one were not kept.
std::optional<size_t> EagleDrafter::find_reading(const DraftAsk& ask, size_t& held) const {
  const int slot = ask.advance->slot;
  const std::vector<int32_t>& tokens = *ask.tokens;
  const size_t begin = static_cast<size_t>(states_.begin(slot)), count = tokens.size();
  const size_t end = static_cast<size_t>(states_.end(slot));
  if (end + 1 < count || begin + 1 >= count) return std::nullopt;
  const Read& mine = read_[slot];
  if (mine.first > 0 && mine.first < count) {
    const size_t most = std::min(mine.held.size(), count - mine.first - 1);
    const auto differ =
        std::mismatch(mine.held.begin(), mine.held.begin() + most, tokens.begin() + mine.first);
    held = static_cast<size_t>(differ.first - mine.held.begin());
    if (mine.first + held > begin) return mine.first;
  }
  held = 0;
  return begin + 1;
}

double EagleDrafter::reading_cost(const DraftAsk& ask) const {
  size_t held = 0;
  const std::optional<size_t> first = find_reading(ask, held);
  if (!first) return 0;
  const size_t unread = ask.tokens->size() - *first - held;
  return unread <= kBeside ? 0 : static_cast<double>(unread) * read_cost_.of(1);
}

void EagleDrafter::prepare(const DraftAsk& ask) {
  size_t held = 0;
  const std::optional<size_t> first = find_reading(ask, held);
  if (!first || ask.tokens->size() - *first > static_cast<size_t>(context_)) return;
  Read& mine = read_[ask.advance->slot];
  mine.first = *first;
  mine.held.resize(held);
  unread_.push_back({*first + held, ask.tokens->size()});
  running_.push_back({.ask = &ask, .state = static_cast<int64_t>(running_.size())});
}

// Lays out the next step: tokens that were not read, or else one that was drafted of each sequence.
void EagleDrafter::lay_out() {
  rows_.clear();
  wanted_.clear();
  const int64_t kept = kv_heads_ * head_dim_;
  const auto add = [&](int slot, int32_t token) {
    Read& mine = read_[slot];
    rows_.push_back({slot, static_cast<int64_t>(mine.held.size()), token});
    mine.held.push_back(token);
    mine.keys.resize(mine.held.size() * static_cast<size_t>(kept));
    mine.values.resize(mine.held.size() * static_cast<size_t>(kept));
  };
  const auto want = [&](size_t i) {
    wanted_.push_back(rows() - 1);
    rows_.back().running = static_cast<int64_t>(i);
  };
  std::vector<float> streams;
  for (size_t i = 0; i < unread_.size(); ++i) {
    auto& [next, end] = unread_[i];
    if (next == end) continue;
    const int slot = running_[i].ask->advance->slot;
    const std::vector<int32_t>& tokens = *running_[i].ask->tokens;
    for (; next < end && rows() < kStepRows; ++next) {
      states_.append(slot, static_cast<int64_t>(next) - 1, 1, streams);
      add(slot, tokens[next]);
      if (next + 1 == end) want(i);
    }
  }
  streams_given_ = !rows_.empty();
  if (streams_given_) {
    std::copy(streams.begin(), streams.end(), given_->as<float>());
    return;
  }
  steps_.count();
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].ask == nullptr) continue;
    std::copy_n(own_->as<float>() + running_[i].state * hidden_, hidden_,
                x_->as<float>() + rows() * hidden_);
    add(running_[i].ask->advance->slot, running_[i].last);
    want(i);
  }
}

// Draws the tokens of a step, and lays out the next one.
void EagleDrafter::go_on_from_step() {
  const int64_t drafted = head_.matrix.rows;
  const bool stopped = steps_.stopped();
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const Row& row = rows_[wanted_[i]];
    Running& mine = running_[row.running];
    const DraftAsk& ask = *mine.ask;
    const float* logits = logits_->as<float>() + static_cast<int64_t>(i) * drafted;
    const uint32_t position = static_cast<uint32_t>(ask.tokens->size()) + mine.drafted;
    const int32_t best = choice_.draw(logits, ask.advance->draw, position);
    const float stated = chance_of(logits, static_cast<int32_t>(drafted), best);
    mine.last = choice_.token(best);
    std::copy_n(x_->as<float>() + wanted_[i] * hidden_, hidden_,
                own_->as<float>() + mine.state * hidden_);
    const bool more = steps_.go_on(ask, mine.last, stated, mine.drafted);
    if (!more || row.place + 1 >= context_) mine.ask = nullptr;
  }
  const bool reads =
      std::any_of(unread_.begin(), unread_.end(), [](const auto& x) { return x.first < x.second; });
  if (stopped && reads) {  // what is left is read in another pass
    rows_.clear();
    wanted_.clear();
    return;
  }
  lay_out();
}

void EagleDrafter::draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                         const std::function<void()>& lend, const std::atomic<bool>& stop) {
  running_.clear();
  unread_.clear();
  for (const DraftAsk& ask : asks) prepare(ask);
  if (running_.empty()) return;
  size_t all = 0, most = 0;
  for (const auto& [next, end] : unread_) {
    all += end - next;
    most = std::max(most, end - next);
  }
  const int sequences = static_cast<int>(running_.size());
  steps_.begin(go_on, stop);
  lay_out();
  const int64_t begun = now_ns();
  lend();
  const int64_t took = now_ns() - begun;
  if (most <= kBeside) {
    steps_.end(sequences, took);
  } else {
    read_cost_.add(1, took / static_cast<int64_t>(all));
  }
  for (const DraftAsk& ask : asks) {
    // What it drafted it read by states of its own: it reads that again by the model's.
    Read& mine = read_[ask.advance->slot];
    if (mine.first == 0 || mine.first > ask.tokens->size()) continue;
    mine.held.resize(std::min(mine.held.size(), ask.tokens->size() - mine.first));
  }
}

// ---- By every worker ----

void EagleDrafter::take_part(int worker) {
  while (!rows_.empty()) {
    run_attention(worker);
    run_mlp(worker);
    run_head(worker);
    if (worker == 0) go_on_from_step();
    steps_.meet(worker);  // the next step's rows are there
  }
  steps_.meet(worker);  // nobody looks at rows_ any more, so the leader may fill them again
}

void EagleDrafter::run_attention(int worker) {
  Worker& w = workers_[worker];
  float* x = x_->as<float>();
  if (streams_given_) {
    pack(w, given_->as<float>(), kEagleStreams * hidden_, rows());
    const int64_t first = share_begin(hidden_, worker, workers());
    multiply(w, worker, fc_, x + first, hidden_);
    steps_.meet(worker);  // the rows are there
  }
  for (int64_t t = 0; t < rows(); ++t) {  // every worker itself, like all that is no product
    float* input = w.input->as<float>() + t * 2 * hidden_;
    kernels_.widen(embedding_, rows_[t].token, input);
    kernels_.rms_norm(input, hidden_, token_norm_.data(), norm_eps_, hidden_, 1, input, hidden_);
    kernels_.rms_norm(x + t * hidden_, hidden_, state_norm_.data(), norm_eps_, hidden_, 1,
                      input + hidden_, hidden_);
  }
  pack(w, w.input->as<float>(), 2 * hidden_, rows());
  const int64_t wide = heads_ * head_dim_, narrow = kv_heads_ * head_dim_;
  const int64_t row = share_begin(narrow, worker, workers());
  multiply(w, worker, q_, query_->as<float>() + share_begin(wide, worker, workers()), wide);
  multiply(w, worker, k_, key_->as<float>() + row, narrow);
  multiply(w, worker, v_, value_->as<float>() + row, narrow);
  steps_.meet(worker);  // queries, keys and values are there
  store_keys(worker);
  steps_.meet(worker);  // and where attention reads them
  attend(worker);
  steps_.meet(worker);  // what heads give is there
  pack(w, attended_->as<float>(), wide, rows());
  add_product(w, worker, o_);
}

void EagleDrafter::run_mlp(int worker) {
  Worker& w = workers_[worker];
  float* normed = w.input->as<float>();
  kernels_.rms_norm(x_->as<float>(), hidden_, mlp_norm_.data(), norm_eps_, hidden_, rows(), normed,
                    hidden_);
  pack(w, normed, hidden_, rows());
  const int64_t first = share_begin(inner_, worker, workers());
  const int64_t inners = share_begin(inner_, worker + 1, workers()) - first;
  float *gate = w.product->as<float>(), *up = w.second->as<float>();
  multiply(w, worker, gate_, gate, inners);
  multiply(w, worker, up_, up, inners);
  for (int64_t t = 0; t < rows(); ++t) {
    kernels_.silu_times(gate + t * inners, up + t * inners, inners,
                        product_->as<float>() + t * inner_ + first);
  }
  steps_.meet(worker);  // the product is there, and nobody reads the stream
  pack(w, product_->as<float>(), inner_, rows());
  add_product(w, worker, down_);
}

void EagleDrafter::run_head(int worker) {
  if (wanted_.empty()) return steps_.meet(worker);  // nobody looks at this step any more
  Worker& w = workers_[worker];
  float* normed = w.input->as<float>();
  const int64_t count = static_cast<int64_t>(wanted_.size());
  for (int64_t i = 0; i < count; ++i) {
    kernels_.rms_norm(x_->as<float>() + wanted_[i] * hidden_, hidden_, final_norm_.data(),
                      norm_eps_, hidden_, 1, normed + i * hidden_, hidden_);
  }
  pack(w, normed, hidden_, count);
  const int64_t drafted = head_.matrix.rows;
  const int64_t begin = share_begin(drafted, worker, workers());
  const int64_t end = share_begin(drafted, worker + 1, workers());
  if (begin < end) {
    kernels_.multiply(head_.matrix, begin, end, Activation::kI8, w.packed->as<char>(), count,
                      logits_->as<float>() + begin, drafted);
  }
  steps_.meet(worker);  // the logits are there
}

// Turns the keys of this worker's rows, and puts them and the values where attention reads them.
void EagleDrafter::store_keys(int worker) {
  Worker& w = workers_[worker];
  const int64_t kept = kv_heads_ * head_dim_;
  for (int64_t t = worker; t < rows(); t += workers()) {
    const Row& row = rows_[t];
    float* key = key_->as<float>() + t * kept;
    set_angles(w, row.place);
    rotate(w, key, kv_heads_);
    Read& mine = read_[row.slot];
    std::copy_n(key, kept, mine.keys.data() + row.place * kept);
    std::copy_n(value_->as<float>() + t * kept, kept, mine.values.data() + row.place * kept);
    if (!norm_joins_) continue;
    const float* normed = w.input->as<float>() + t * 2 * hidden_ + hidden_;
    std::copy_n(normed, hidden_, x_->as<float>() + t * hidden_);
  }
}

// The heads of one KV head of a row after another, each by one worker.
void EagleDrafter::attend(int worker) {
  Worker& w = workers_[worker];
  const int64_t group = heads_ / kv_heads_, kept = kv_heads_ * head_dim_;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  for (int64_t unit = worker; unit < rows() * kv_heads_; unit += workers()) {
    const int64_t t = unit / kv_heads_, head = unit % kv_heads_;
    const Row& row = rows_[t];
    const int64_t first = (t * heads_ + head * group) * head_dim_, count = row.place + 1;
    float* query = w.query->as<float>();
    std::copy_n(query_->as<float>() + first, group * head_dim_, query);
    set_angles(w, row.place);
    rotate(w, query, group);
    const Read& mine = read_[row.slot];
    const Queries queries{query, 1, group, group * head_dim_, &count};
    const float* partial = w.partial->as<float>();
    kernels_.attend(queries, mine.keys.data() + head * head_dim_,
                    mine.values.data() + head * head_dim_, Format::kF32, kept, head_dim_, scale,
                    nullptr, w.scores->as<float>(), w.partial->as<float>());
    float* out = attended_->as<float>() + first;
    for (int64_t i = 0; i < group; ++i, partial += head_dim_ + 2, out += head_dim_) {
      for (int64_t j = 0; j < head_dim_; ++j) out[j] = partial[j] / partial[head_dim_ + 1];
    }
  }
}

void EagleDrafter::set_angles(Worker& w, int64_t place) const {
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const float angle = static_cast<float>(place) * frequencies_[i];
    w.cosine[i] = std::cos(angle) * amplitude_;
    w.sine[i] = std::sin(angle) * amplitude_;
  }
}

void EagleDrafter::rotate(const Worker& w, float* heads, int64_t count) const {
  const int64_t pairs = head_dim_ / 2;
  for (float* head = heads; head < heads + count * head_dim_; head += head_dim_) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = head[i], b = head[pairs + i];
      head[i] = a * w.cosine[i] - b * w.sine[i];
      head[pairs + i] = b * w.cosine[i] + a * w.sine[i];
    }
  }
}

void EagleDrafter::pack(Worker& w, const float* x, int64_t columns, int64_t rows) const {
  kernels_.pack(Activation::kI8, x, columns, rows, w.packed->as<char>());
}

// A worker's rows of a product, at y and `stride` floats further for each row of the step.
void EagleDrafter::multiply(Worker& w, int worker, const Int8Matrix& codes, float* y,
                            int64_t stride) const {
  const int64_t begin = share_begin(codes.matrix.rows, worker, workers());
  const int64_t end = share_begin(codes.matrix.rows, worker + 1, workers());
  if (begin == end) return;
  kernels_.multiply(codes.matrix, begin, end, Activation::kI8, w.packed->as<char>(), rows(), y,
                    stride);
}

// The stream gains a product, of which this worker adds its rows.
void EagleDrafter::add_product(Worker& w, int worker, const Int8Matrix& codes) {
  const int64_t first = share_begin(hidden_, worker, workers());
  const int64_t count = share_begin(hidden_, worker + 1, workers()) - first;
  float* gain = w.product->as<float>();
  multiply(w, worker, codes, gain, count);
  for (int64_t t = 0; t < rows(); ++t) {
    float* x = x_->as<float>() + t * hidden_ + first;
    kernels_.add(x, gain + t * count, count, x);
  }
  steps_.meet(worker);  // the stream is there
}

}  // namespace monolane
