#include "draft/eagle_drafter.h"

#include <algorithm>

#include "memory/token_ring.h"

namespace monolane {

EagleDrafter::EagleDrafter(const Kernels& kernels, const Matrix& embedding,
                           const EagleWeights& weights, int workers, int slots, int64_t context)
    : kernels_(kernels),
      embedding_(embedding),
      hidden_(weights.shape.hidden),
      context_(context),
      norm_eps_(weights.shape.norm_eps),
      norm_joins_(weights.norm_joins),
      choice_({weights.tokens, weights.tokens + weights.drafted}, embedding.rows),
      token_norm_(weights.token_norm, weights.token_norm + hidden_),
      state_norm_(weights.state_norm, weights.state_norm + hidden_),
      final_norm_(weights.final_norm, weights.final_norm + hidden_),
      fc_(weights.fc.values, weights.fc.format, hidden_, kEagleStreams * hidden_),
      head_(weights.head.values, weights.head.format, weights.drafted, hidden_),
      reads_(slots, kEagleStreams * hidden_, context),
      steps_(workers, slots),
      layers_(kernels, weights.shape, {weights.layer}, workers, slots,
              std::max<int64_t>(DraftLayers::kStepRows, slots), context, steps_) {
  given_ = room_of(DraftLayers::kStepRows * kEagleStreams * hidden_);
  logits_ = room_of(slots * weights.drafted);
  own_ = room_of(slots * hidden_);
}

// ---- By the leader ----

void EagleDrafter::add(int slot, int64_t place, int32_t token) {
  layers_.add({slot, place, place + 1});
  tokens_.push_back(token);
}

void EagleDrafter::want(size_t running) { wanted_.push_back({layers_.rows() - 1, running}); }

// Lays out the next step: tokens that were not read, or else one that was drafted of each sequence.
void EagleDrafter::lay_out() {
  layers_.clear();
  tokens_.clear();
  wanted_.clear();
  std::vector<float> streams;
  reads_.read(DraftLayers::kStepRows, streams,
              [&](size_t i, int slot, int64_t place, int32_t token, bool last) {
                add(slot, place, token);
                if (last) want(i);
              });
  streams_given_ = layers_.rows() > 0;
  if (streams_given_) {
    std::copy(streams.begin(), streams.end(), given_->as<float>());
    return;
  }
  steps_.count();
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i].ask == nullptr) continue;
    std::copy_n(own_->as<float>() + running_[i].state * hidden_, hidden_,
                layers_.x() + layers_.rows() * hidden_);
    const int slot = running_[i].ask->advance->slot;
    add(slot, reads_.add(slot, running_[i].last), running_[i].last);
    want(i);
  }
}

// Draws the tokens of a step, and lays out the next one.
void EagleDrafter::go_on_from_step() {
  const int64_t drafted = head_.matrix.rows;
  const bool stopped = steps_.stopped();
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const auto& [row, running] = wanted_[i];
    Running& mine = running_[running];
    const DraftAsk& ask = *mine.ask;
    const float* logits = logits_->as<float>() + static_cast<int64_t>(i) * drafted;
    const uint32_t position = static_cast<uint32_t>(ask.tokens->size()) + mine.drafted;
    const int32_t best = choice_.draw(logits, ask.advance->draw, position);
    const float stated = chance_of(logits, static_cast<int32_t>(drafted), best);
    mine.last = choice_.token(best);
    std::copy_n(layers_.x() + row * hidden_, hidden_, own_->as<float>() + mine.state * hidden_);
    const bool more = steps_.go_on(ask, mine.last, stated, mine.drafted);
    if (!more || layers_.each()[row].place + 1 >= context_) mine.ask = nullptr;
  }
  if (stopped && reads_.left()) {  // what is left is read in another pass
    layers_.clear();
    wanted_.clear();
    return;
  }
  lay_out();
}

void EagleDrafter::draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                         const std::function<void()>& lend, const std::atomic<bool>& stop) {
  running_.clear();
  reads_.begin();
  for (const DraftAsk& ask : asks) {
    if (!reads_.take(ask)) continue;
    running_.push_back({.ask = &ask, .state = static_cast<int64_t>(running_.size())});
  }
  if (running_.empty()) return;
  const int sequences = static_cast<int>(running_.size());
  steps_.begin(go_on, stop);
  lay_out();
  const int64_t begun = now_ns();
  lend();
  const int64_t took = now_ns() - begun;
  if (reads_.end(asks, took)) steps_.end(sequences, took);
}

// ---- By every worker ----

void EagleDrafter::take_part(int worker) {
  while (layers_.rows() > 0) {
    layers_.set_angles(worker);
    run_input(worker);
    layers_.attend(worker, 0);
    layers_.run_mlp(worker, 0);
    run_head(worker);
    if (worker == 0) go_on_from_step();
    steps_.meet(worker);  // the next step's rows are there
  }
  steps_.meet(worker);  // nobody looks at the rows any more, so the leader may lay out others
}

// What attention reads: [norm(embedding of the token) | norm(x)].
void EagleDrafter::run_input(int worker) {
  float* x = layers_.x();
  const int64_t rows = layers_.rows();
  if (streams_given_) {
    layers_.pack(worker, given_->as<float>(), kEagleStreams * hidden_, rows);
    layers_.multiply_whole(worker, fc_, rows, x);
    steps_.meet(worker);  // the rows are there
  }
  for (int64_t t = 0; t < rows; ++t) {  // every worker itself, like all that is no product
    float* input = layers_.input(worker) + t * 2 * hidden_;
    kernels_.widen(embedding_, tokens_[t], input);
    kernels_.rms_norm(input, hidden_, token_norm_.data(), norm_eps_, hidden_, 1, input, hidden_);
    kernels_.rms_norm(x + t * hidden_, hidden_, state_norm_.data(), norm_eps_, hidden_, 1,
                      input + hidden_, hidden_);
  }
  if (!norm_joins_) return;
  steps_.meet(worker);  // all have read the stream
  for (int64_t t = worker; t < rows; t += layers_.workers()) {
    const float* normed = layers_.input(worker) + t * 2 * hidden_ + hidden_;
    std::copy_n(normed, hidden_, x + t * hidden_);
  }
}

void EagleDrafter::run_head(int worker) {
  if (wanted_.empty()) return steps_.meet(worker);  // nobody looks at this step any more
  float* normed = layers_.input(worker);
  const int64_t count = static_cast<int64_t>(wanted_.size());
  for (int64_t i = 0; i < count; ++i) {
    kernels_.rms_norm(layers_.x() + wanted_[i].first * hidden_, hidden_, final_norm_.data(),
                      norm_eps_, hidden_, 1, normed + i * hidden_, hidden_);
  }
  layers_.pack(worker, normed, hidden_, count);
  layers_.multiply_whole(worker, head_, count, logits_->as<float>());
  steps_.meet(worker);  // the logits are there
}

}  // namespace monolane
