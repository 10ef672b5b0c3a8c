#include "draft/heads_drafter.h"

#include <cstring>

#include "memory/token_ring.h"

namespace monolane {
namespace {

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

}  // namespace

HeadsDrafter::HeadsDrafter(const Kernels& kernels, const Matrix& embedding,
                           const HeadsWeights& weights, int workers, int slots)
    : kernels_(kernels),
      embedding_(embedding),
      hidden_(weights.hidden),
      inner_(weights.inner),
      drafted_(weights.drafted),
      norm_eps_(weights.norm_eps),
      choice_({weights.tokens, weights.tokens + weights.drafted}, weights.vocab),
      ones_(weights.hidden, 1.0f),
      gate_(weights.gate, Format::kF32, weights.inner, 2 * weights.hidden),
      up_(weights.up, Format::kF32, weights.inner, 2 * weights.hidden),
      down_(weights.down, Format::kF32, weights.hidden, weights.inner),
      head_(weights.head, Format::kF32, weights.drafted, weights.hidden),
      workers_(workers),
      steps_(workers, slots) {
  const int64_t rows = slots;
  state_ = std::make_unique<Arena>(floats(rows * hidden_));
  product_ = std::make_unique<Arena>(floats(rows * inner_));
  logits_ = std::make_unique<Arena>(floats(rows * drafted_));
  const int64_t widest = std::max(2 * hidden_, inner_);
  for (Worker& w : workers_) {
    w.input = std::make_unique<Arena>(floats(rows * 2 * hidden_));
    w.packed = std::make_unique<Arena>(
        static_cast<size_t>(rows * kernels_.packed_bytes(Activation::kI8, widest)));
    w.product = std::make_unique<Arena>(floats(rows * std::max(inner_, hidden_)));
    w.second = std::make_unique<Arena>(floats(rows * inner_));
  }
}

void HeadsDrafter::draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                         const std::function<void()>& lend, const std::atomic<bool>& stop) {
  for (const DraftAsk& ask : asks) {
    float* state = state_->as<float>() + static_cast<int64_t>(running_.size()) * hidden_;
    kernels_.rms_norm(ask.hidden, hidden_, ones_.data(), norm_eps_, hidden_, 1, state, hidden_);
    running_.push_back({.ask = &ask, .last = ask.tokens->back()});
  }
  if (running_.empty()) return;
  const int sequences = static_cast<int>(running_.size());
  steps_.begin(go_on, stop);
  const int64_t begun = now_ns();
  lend();
  steps_.end(sequences, now_ns() - begun);
}

// ---- By every worker ----

void HeadsDrafter::take_part(int worker) {
  while (!running_.empty()) {
    run_block(worker);
    run_head(worker);
    if (worker == 0) draw_tokens();
    steps_.meet(worker);  // the tokens are drawn, for the next step
  }
  steps_.meet(worker);  // nobody looks at running_ any more, so the leader may fill it again
}

void HeadsDrafter::run_block(int worker) {
  Worker& w = workers_[worker];
  const int64_t count = static_cast<int64_t>(running_.size());
  for (int64_t t = 0; t < count; ++t) {  // every worker itself, like all that is no product
    float* input = w.input->as<float>() + t * 2 * hidden_;
    std::memcpy(input, state_->as<float>() + t * hidden_, floats(hidden_));
    kernels_.widen(embedding_, running_[t].last, input + hidden_);
    kernels_.rms_norm(input + hidden_, hidden_, ones_.data(), norm_eps_, hidden_, 1,
                      input + hidden_, hidden_);
  }
  pack(w, w.input->as<float>(), 2 * hidden_);
  const int workers = static_cast<int>(workers_.size());
  const int64_t inner = share_begin(inner_, worker, workers);
  const int64_t inners = share_begin(inner_, worker + 1, workers) - inner;
  float *gate = w.product->as<float>(), *up = w.second->as<float>();
  multiply(w, worker, gate_, gate);
  multiply(w, worker, up_, up);
  for (int64_t t = 0; t < count; ++t) {
    kernels_.silu_times(gate + t * inners, up + t * inners, inners,
                        product_->as<float>() + t * inner_ + inner);
  }
  steps_.meet(worker);  // all have read the state, and the product is there
  pack(w, product_->as<float>(), inner_);
  const int64_t row = share_begin(hidden_, worker, workers);
  const int64_t rows = share_begin(hidden_, worker + 1, workers) - row;
  float* gain = w.product->as<float>();
  multiply(w, worker, down_, gain);
  for (int64_t t = 0; t < count; ++t) {
    float* state = state_->as<float>() + t * hidden_ + row;
    kernels_.add(state, gain + t * rows, rows, state);
  }
  steps_.meet(worker);  // the state is there
}

void HeadsDrafter::run_head(int worker) {
  Worker& w = workers_[worker];
  const int64_t count = static_cast<int64_t>(running_.size());
  kernels_.rms_norm(state_->as<float>(), hidden_, ones_.data(), norm_eps_, hidden_, count,
                    w.input->as<float>(), hidden_);
  pack(w, w.input->as<float>(), hidden_);
  const int workers = static_cast<int>(workers_.size());
  const int64_t begin = share_begin(drafted_, worker, workers);
  const int64_t end = share_begin(drafted_, worker + 1, workers);
  if (begin < end) {
    kernels_.multiply(head_.matrix, begin, end, Activation::kI8, w.packed->as<char>(), count,
                      logits_->as<float>() + begin, drafted_);
  }
  steps_.meet(worker);  // the logits are there
}

void HeadsDrafter::pack(Worker& w, const float* x, int64_t columns) const {
  kernels_.pack(Activation::kI8, x, columns, static_cast<int64_t>(running_.size()),
                w.packed->as<char>());
}

// A worker's rows of a product, [T, its rows].
void HeadsDrafter::multiply(Worker& w, int worker, const Int8Matrix& codes, float* y) const {
  const int workers = static_cast<int>(workers_.size());
  const int64_t begin = share_begin(codes.matrix.rows, worker, workers);
  const int64_t end = share_begin(codes.matrix.rows, worker + 1, workers);
  if (begin == end) return;
  kernels_.multiply(codes.matrix, begin, end, Activation::kI8, w.packed->as<char>(),
                    static_cast<int64_t>(running_.size()), y, end - begin);
}

// ---- By the leader ----

void HeadsDrafter::draw_tokens() {
  steps_.count();
  size_t kept = 0;
  for (size_t t = 0; t < running_.size(); ++t) {
    Running running = running_[t];
    const DraftAsk& ask = *running.ask;
    const float* logits = logits_->as<float>() + static_cast<int64_t>(t) * drafted_;
    const uint32_t position = static_cast<uint32_t>(ask.tokens->size()) + running.drafted;
    const int32_t row = choice_.draw(logits, ask.advance->draw, position);
    const float stated = chance_of(logits, static_cast<int32_t>(drafted_), row);
    running.last = choice_.token(row);
    if (!steps_.go_on(ask, running.last, stated, running.drafted)) continue;
    if (kept < t) {
      std::memcpy(state_->as<float>() + static_cast<int64_t>(kept) * hidden_,
                  state_->as<float>() + static_cast<int64_t>(t) * hidden_, floats(hidden_));
    }
    running_[kept++] = running;
  }
  running_.resize(kept);
}

}  // namespace monolane
