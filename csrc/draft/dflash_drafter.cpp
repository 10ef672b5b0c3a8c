#include "draft/dflash_drafter.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/elementwise.h"
#include "memory/token_ring.h"

namespace monolane {
namespace {

// Returns a block's rows where all of it is one step.
int64_t checked_block(const DflashWeights& weights, int64_t vocab) {
  const int64_t block = weights.block;
  if (block < 2 || block > DraftLayers::kStepRows || weights.mask < 0 || weights.mask >= vocab) {
    throw std::invalid_argument("heads: expected blocks of 2 to " +
                                std::to_string(DraftLayers::kStepRows) +
                                " tokens, with one of the model's as the mask, got " +
                                std::to_string(block) + " and " + std::to_string(weights.mask));
  }
  return block;
}

}  // namespace

DflashDrafter::DflashDrafter(const Kernels& kernels, const Matrix& embedding, float embedding_scale,
                             Head head, const DflashWeights& weights, int workers, int slots,
                             int64_t context)
    : kernels_(kernels),
      embedding_(embedding),
      embedding_scale_(embedding_scale),
      head_(std::move(head)),
      hidden_(weights.shape.hidden),
      streams_(weights.streams),
      block_(checked_block(weights, embedding.rows)),
      drafted_(weights.markov.rank > 0 ? block_ : block_ - 1),
      mask_(weights.mask),
      causal_(weights.causal),
      norm_eps_(weights.shape.norm_eps),
      choice_(all_tokens(embedding.rows), embedding.rows),
      context_norm_(weights.context_norm, weights.context_norm + hidden_),
      final_norm_(weights.final_norm, weights.final_norm + hidden_),
      fc_(weights.fc.values, weights.fc.format, hidden_, streams_ * hidden_),
      reads_(slots, streams_ * hidden_, context),
      steps_(workers, slots),
      layers_(kernels, weights.shape, weights.layers, workers, slots, DraftLayers::kStepRows,
              context + block_, steps_) {
  for (const float* norm : weights.input_norms) input_norms_.emplace_back(norm, norm + hidden_);
  if (weights.markov.rank > 0) {
    markov_ = std::make_unique<MarkovHead>(kernels, weights.markov, embedding.rows, hidden_);
  }
  given_ = room_of(DraftLayers::kStepRows * streams_ * hidden_);
  logits_ = room_of(DraftLayers::kStepRows * embedding.rows);
}

// ---- By the leader ----

// Lays out the next step: tokens that were not read, or else as many blocks as it holds.
void DflashDrafter::lay_out() {
  layers_.clear();
  tokens_.clear();
  wanted_.clear();
  drawn_.clear();
  std::vector<float> streams;
  reads_.read(DraftLayers::kStepRows, streams, [&](size_t, int slot, int64_t place, int32_t, bool) {
    layers_.add({slot, place, 0});
  });
  reading_ = layers_.rows() > 0;
  std::copy(streams.begin(), streams.end(), given_->as<float>());
  if (reading_) return;
  for (; next_ < asked_.size() && layers_.rows() + block_ <= DraftLayers::kStepRows; ++next_) {
    add_block(*asked_[next_]);
  }
}

void DflashDrafter::add_block(const DraftAsk& ask) {
  const int slot = ask.advance->slot;
  const int64_t begin = reads_.held(slot), end = begin + block_;
  const int64_t first = layers_.rows();
  for (int64_t place = begin; place < end; ++place) {
    layers_.add({slot, place, causal_ ? place + 1 : end});
    tokens_.push_back(place == begin ? ask.tokens->back() : mask_);
  }
  const int64_t most = std::min(static_cast<int64_t>(ask.most), drafted_);
  for (int64_t i = 0; i < most; ++i) wanted_.push_back(first + block_ - drafted_ + i);
  drawn_.push_back(&ask);
}

void DflashDrafter::go_on_from_step() {
  const bool stopped = steps_.stopped();
  draw_tokens();
  if (stopped && reads_.left()) {  // what is left is read in another pass
    layers_.clear();
    return;
  }
  lay_out();
}

void DflashDrafter::draw_tokens() {
  const float *logits = logits_->as<float>(), *read = layers_.input(0);
  const int64_t vocab = embedding_.rows;
  for (const DraftAsk* ask : drawn_) {
    const int64_t most = std::min(static_cast<int64_t>(ask->most), drafted_);
    uint32_t drafted = 0;
    int32_t before = ask->tokens->back();
    bool more = true;
    for (int64_t i = 0; i < most; ++i, logits += vocab, read += hidden_) {
      if (!more) continue;
      const uint32_t position = static_cast<uint32_t>(ask->tokens->size()) + drafted;
      const MarkovHead::Drawn drawn = draw(logits, read, before, ask->advance->draw, position);
      more = steps_.go_on(*ask, drawn.token, drawn.stated, drafted);
      before = drawn.token;
    }
  }
}

MarkovHead::Drawn DflashDrafter::draw(const float* logits, const float* read, int32_t before,
                                      const Draw& draw, uint32_t position) {
  if (markov_ != nullptr) return markov_->draw(logits, read, before, draw, position, choice_);
  const int32_t token = choice_.draw(logits, draw, position);
  return {token, chance_of(logits, static_cast<int32_t>(embedding_.rows), token)};
}

void DflashDrafter::draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                          const std::function<void()>& lend, const std::atomic<bool>& stop) {
  asked_.clear();
  next_ = 0;
  reads_.begin();
  for (const DraftAsk& ask : asks) {
    if (reads_.take(ask)) asked_.push_back(&ask);
  }
  if (asked_.empty()) return;
  steps_.begin(go_on, stop);
  lay_out();
  const int64_t begun = now_ns();
  lend();
  const int64_t took = now_ns() - begun;
  if (reads_.end(asks, took)) steps_.end(static_cast<int>(asked_.size()), took);
}

// ---- By every worker ----

void DflashDrafter::take_part(int worker) {
  while (layers_.rows() > 0) {
    layers_.set_angles(worker);
    reading_ ? run_context(worker) : run_block(worker);
    if (worker == 0) go_on_from_step();
    steps_.meet(worker);  // the next step's rows are there
  }
  steps_.meet(worker);  // nobody looks at the rows any more, so the leader may lay out others
}

void DflashDrafter::run_context(int worker) {
  const int64_t rows = layers_.rows();
  layers_.pack(worker, given_->as<float>(), streams_ * hidden_, rows);
  layers_.multiply_whole(worker, fc_, rows, layers_.x());
  steps_.meet(worker);  // the rows are there
  layers_.norm(worker, context_norm_.data());
  for (size_t i = 0; i < layers_.count(); ++i) layers_.keep_keys(worker, i);
}

void DflashDrafter::run_block(int worker) {
  for (int64_t t = worker; t < layers_.rows(); t += layers_.workers()) {
    float* x = layers_.x() + t * hidden_;
    kernels_.widen(embedding_, tokens_[t], x);
    if (embedding_scale_ != 1.0f) scale_by(x, embedding_scale_, hidden_);
  }
  steps_.meet(worker);  // the rows are there
  for (size_t i = 0; i < layers_.count(); ++i) {
    layers_.norm(worker, input_norms_[i].data());
    layers_.attend(worker, i);
    layers_.run_mlp(worker, i);
  }
  run_head(worker);
}

void DflashDrafter::run_head(int worker) {
  float* normed = layers_.input(worker);
  const int64_t count = static_cast<int64_t>(wanted_.size());
  for (int64_t i = 0; i < count; ++i) {
    kernels_.rms_norm(layers_.x() + wanted_[i] * hidden_, hidden_, final_norm_.data(), norm_eps_,
                      hidden_, 1, normed + i * hidden_, hidden_);
  }
  head_(worker, normed, count, logits_->as<float>());
  steps_.meet(worker);  // the logits are there
}

}  // namespace monolane
