#include "draft/assistant_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "draft/int8_matrix.h"
#include "kernels/elementwise.h"
#include "memory/token_ring.h"
#include "sample/token_order.h"

namespace monolane {
namespace {

void expect_size(const char* what, int64_t expected, int64_t got) {
  if (expected == got) return;
  throw std::invalid_argument("assistant: " + std::string(what) + ": expected " +
                              std::to_string(expected) + ", got " + std::to_string(got));
}

void expect_shape(const char* what, const Matrix& matrix, int64_t rows, int64_t columns) {
  expect_size(what, rows, matrix.rows);
  expect_size(what, columns, matrix.cols);
}

}  // namespace

AssistantDrafter::AssistantDrafter(const Kernels& kernels, Activation activation,
                                   const Matrix& embedding, float embedding_scale,
                                   const Sequences& sequences, AssistantWeights weights,
                                   int workers)
    : kernels_(kernels),
      embedding_(embedding),
      embedding_scale_(embedding_scale),
      sequences_(sequences),
      weights_(std::move(weights)),
      activation_(activation_for(weights_.head.format, activation)),
      hidden_(weights_.before.rows),
      backbone_(weights_.after.rows),
      vocab_(weights_.head.rows),
      candidates_(orders() ? vocab_ / weights_.centroids.rows * weights_.chosen : vocab_),
      choice_(orders() ? std::vector<int32_t>() : all_tokens(vocab_), vocab_),
      named_(orders() ? static_cast<size_t>(candidates_) : 0),
      workers_(workers),
      steps_(workers, sequences.slots()) {
  check();
  const int64_t most = std::min(sequences.slots(), kMaxWidth);
  int64_t inner = 0, wide = 0, parts = 0, group_sums = 0, head_dim = 0;
  for (const AssistantLayer& layer : weights_.layers) {
    const int64_t group = layer.heads / layer.kv_heads;
    const int64_t units = std::max<int64_t>(workers, most * layer.kv_heads);
    inner = std::max(inner, layer.gate.rows);
    wide = std::max(wide, layer.heads * layer.head_dim);
    parts = std::max(parts, units * group * (layer.head_dim + 2));
    group_sums = std::max(group_sums, group * (layer.head_dim + 2));
    head_dim = std::max(head_dim, layer.head_dim);
  }
  state_ = room_of(most * backbone_);
  next_ = room_of(most * backbone_);
  gain_ = room_of(most * hidden_);
  query_ = room_of(most * wide);
  parts_ = room_of(parts);
  product_ = room_of(most * inner);
  logits_ = room_of(most * candidates_);
  ranks_ = room_of(most * weights_.centroids.rows);
  const int64_t widest = std::max({2 * backbone_, wide, inner, hidden_});
  for (Worker& w : workers_) {
    w.x = room_of(most * hidden_);
    w.normed = room_of(most * hidden_);
    w.input = room_of(most * std::max(2 * backbone_, wide));
    w.packed = std::make_unique<Arena>(
        static_cast<size_t>(most * kernels_.packed_bytes(activation_, widest)));
    w.gate = room_of(most * inner);
    w.up = room_of(most * inner);
    w.query = room_of(group_sums);
    w.sums = room_of(group_sums);
    w.scores = room_of(kAttendQueries * scores_of(kChunk));
    w.cosine.resize(static_cast<size_t>(head_dim / 2));
    w.sine.resize(static_cast<size_t>(head_dim / 2));
    w.ranked.resize(static_cast<size_t>(weights_.centroids.rows));
    w.candidates.resize(static_cast<size_t>(orders() ? most * candidates_ : 0));
  }
}

void AssistantDrafter::check() const {
  const AssistantWeights& a = weights_;
  const auto length = [](const std::vector<float>& x) { return static_cast<int64_t>(x.size()); };
  expect_size("vocabulary", embedding_.rows, vocab_);
  expect_size("backbone's width", embedding_.cols, backbone_);
  expect_shape("before", a.before, hidden_, 2 * backbone_);
  expect_shape("after", a.after, backbone_, hidden_);
  expect_shape("head", a.head, vocab_, hidden_);
  expect_size("final norm", hidden_, length(a.final_norm));
  if (orders()) {
    const int64_t centroids = a.centroids.rows;
    expect_shape("centroids", a.centroids, centroids, hidden_);
    expect_size("tokens beyond whole centroids", 0, vocab_ % centroids);
    expect_size("ordering", vocab_, static_cast<int64_t>(a.ordering.size()));
    if (a.chosen < 1 || a.chosen > centroids) {
      throw std::invalid_argument("assistant: expected 1 to " + std::to_string(centroids) +
                                  " chosen centroids, got " + std::to_string(a.chosen));
    }
    for (const int32_t token : a.ordering) {
      if (token < 0 || token >= vocab_) expect_size("a token's id", vocab_ - 1, token);
    }
  }
  for (const AssistantLayer& x : a.layers) {
    const int64_t wide = x.heads * x.head_dim, inner = x.gate.rows;
    expect_size("query heads beyond whole groups", 0, x.heads % x.kv_heads);
    expect_shape("q", x.q, wide, hidden_);
    expect_shape("o", x.o, hidden_, wide);
    expect_shape("gate", x.gate, inner, hidden_);
    expect_shape("up", x.up, inner, hidden_);
    expect_shape("down", x.down, hidden_, inner);
    expect_size("norms of attention", 2 * hidden_, length(x.attention_norms));
    expect_size("norms of the MLP", 2 * hidden_, length(x.mlp_norms));
    expect_size("norm of queries", x.head_dim, length(x.query_norm));
    expect_size("frequencies", x.head_dim / 2, length(x.frequencies));
  }
}

void AssistantDrafter::draft(std::vector<DraftAsk>& asks, const GoOn& go_on,
                             const std::function<void()>& lend, const std::atomic<bool>& stop) {
  for (const DraftAsk& ask : asks) {
    std::memcpy(state_->as<float>() + rows() * backbone_, ask.hidden,
                static_cast<size_t>(backbone_) * sizeof(float));
    running_.push_back({.ask = &ask,
                        .length = static_cast<int64_t>(ask.tokens->size()) - 1,
                        .resumable = sequences_.first_resumable(ask.advance->slot),
                        .last = ask.tokens->back()});
  }
  if (running_.empty()) return;
  const int sequences = static_cast<int>(running_.size());
  steps_.begin(go_on, stop);
  const int64_t begun = now_ns();
  lend();
  steps_.end(sequences, now_ns() - begun);
}

// ---- By every worker ----

void AssistantDrafter::take_part(int worker) {
  while (!running_.empty()) {
    run_input(worker);
    for (const AssistantLayer& layer : weights_.layers) {
      run_attention(worker, layer);
      run_mlp(worker, layer);
    }
    run_head(worker);
    if (worker == 0) draw_tokens();
    steps_.meet(worker);  // the tokens are drawn, for the next step
  }
  steps_.meet(worker);  // nobody looks at running_ any more, so the leader may fill it again
}

void AssistantDrafter::run_input(int worker) {
  Worker& w = workers_[worker];
  for (int64_t t = 0; t < rows(); ++t) {  // every worker itself, like all that is no product
    float* input = w.input->as<float>() + t * 2 * backbone_;
    kernels_.widen(embedding_, running_[t].last, input);
    scale_by(input, embedding_scale_, backbone_);
    std::memcpy(input + backbone_, state_->as<float>() + t * backbone_,
                static_cast<size_t>(backbone_) * sizeof(float));
  }
  pack(w, w.input->as<float>(), 2 * backbone_);
  multiply_whole(w, worker, weights_.before, *gain_);
  steps_.meet(worker);  // the stream is there
  std::memcpy(w.x->as<float>(), gain_->as<float>(),
              static_cast<size_t>(rows() * hidden_) * sizeof(float));
}

void AssistantDrafter::run_attention(int worker, const AssistantLayer& layer) {
  Worker& w = workers_[worker];
  norm(w, layer.attention_norms.data());
  pack(w, w.normed->as<float>(), hidden_);
  multiply_whole(w, worker, layer.q, *query_);
  steps_.meet(worker);  // the queries are there, and nobody reads what the stream gained last
  attend(worker, layer);
  steps_.meet(worker);  // what heads give is there
  merge_splits(w, layer);
  pack(w, w.input->as<float>(), layer.heads * layer.head_dim);
  multiply_whole(w, worker, layer.o, *gain_);
  steps_.meet(worker);  // what the stream gains is there
  gain(w, layer.attention_norms.data() + hidden_);
}

void AssistantDrafter::run_mlp(int worker, const AssistantLayer& layer) {
  Worker& w = workers_[worker];
  norm(w, layer.mlp_norms.data());
  pack(w, w.normed->as<float>(), hidden_);
  const int64_t inner = layer.gate.rows;
  const int64_t first = share_begin(inner, worker, workers());
  const int64_t inners = share_begin(inner, worker + 1, workers()) - first;
  float *gate = w.gate->as<float>(), *up = w.up->as<float>();
  multiply(w, worker, layer.gate, gate, inners);
  multiply(w, worker, layer.up, up, inners);
  for (int64_t t = 0; t < rows(); ++t) {
    kernels_.gelu_tanh_times(gate + t * inners, up + t * inners, inners,
                             product_->as<float>() + t * inner + first);
  }
  steps_.meet(worker);  // the product is there, and nobody reads what the stream gained last
  pack(w, product_->as<float>(), inner);
  multiply_whole(w, worker, layer.down, *gain_);
  steps_.meet(worker);  // what the stream gains is there
  gain(w, layer.mlp_norms.data() + hidden_);
  if (layer.scale != 1.0f) scale_by(w.x->as<float>(), layer.scale, rows() * hidden_);
}

void AssistantDrafter::run_head(int worker) {
  Worker& w = workers_[worker];
  norm(w, weights_.final_norm.data());
  pack(w, w.normed->as<float>(), hidden_);
  multiply_whole(w, worker, weights_.after, *next_);
  if (orders()) {
    run_candidates(worker);
  } else {
    multiply_whole(w, worker, weights_.head, *logits_);
  }
  steps_.meet(worker);  // the logits are there, and the next state
}

// The logits of the tokens of those centroids that come out highest.
void AssistantDrafter::run_candidates(int worker) {
  Worker& w = workers_[worker];
  multiply_whole(w, worker, weights_.centroids, *ranks_);
  steps_.meet(worker);  // it is known which
  choose_candidates(w);
  const int64_t begin = candidates_ * worker / workers();
  const int64_t end = candidates_ * (worker + 1) / workers();
  const int64_t bytes = kernels_.packed_bytes(activation_, hidden_);
  for (int64_t t = 0; t < rows(); ++t) {
    const char* packed = w.packed->as<char>() + t * bytes;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = w.candidates[static_cast<size_t>(t * candidates_ + i)];
      kernels_.multiply(weights_.head, token, token + 1, activation_, packed, 1,
                        logits_->as<float>() + t * candidates_ + i, 1);
    }
  }
}

void AssistantDrafter::choose_candidates(Worker& w) const {
  const int64_t centroids = weights_.centroids.rows, each = vocab_ / centroids;
  auto next = w.candidates.begin();
  for (int64_t t = 0; t < rows(); ++t) {
    std::iota(w.ranked.begin(), w.ranked.end(), 0);
    const auto last = w.ranked.begin() + weights_.chosen - 1;
    std::nth_element(w.ranked.begin(), last, w.ranked.end(),
                     Before{ranks_->as<float>() + t * centroids});
    for (auto chosen = w.ranked.begin(); chosen <= last; ++chosen) {
      next = std::copy_n(weights_.ordering.begin() + *chosen * each, each, next);
    }
  }
}

// ---- Attention, by every worker ----

// The first key that a layer sees. One with a window sees, as Transformers has it, so many keys
// before the newest one; behind a kept prefix it lacks the first of these for a while.
int64_t AssistantDrafter::first_key(const AssistantLayer& layer, const Running& running) const {
  if (layer.window == 0) return 0;
  return std::max<int64_t>({0, running.length - 1 - layer.window,
                            std::min(running.resumable, running.length) - layer.window + 1});
}

// Into how many parts the keys of a KV head are cut, so that all workers have some.
int64_t AssistantDrafter::splits(const AssistantLayer& layer) const {
  return std::max<int64_t>(1, workers() / (rows() * layer.kv_heads));
}

void AssistantDrafter::attend(int worker, const AssistantLayer& layer) {
  const int64_t units = rows() * layer.kv_heads * splits(layer);
  for (int64_t unit = worker; unit < units; unit += workers()) {
    attend_split(workers_[worker], layer, unit);
  }
}

// The heads of one KV head over the chunks of one split, merged in their order.
void AssistantDrafter::attend_split(Worker& w, const AssistantLayer& layer, int64_t unit) {
  const int64_t count = splits(layer), split = unit % count;
  const int64_t kv_head = unit / count % layer.kv_heads, t = unit / count / layer.kv_heads;
  const int64_t group = layer.heads / layer.kv_heads, dim = layer.head_dim, stride = dim + 2;
  const Running& running = running_[t];
  const int64_t slot = running.ask->advance->slot, first = first_key(layer, running);
  float* part = parts_->as<float>() + unit * group * stride;
  for (int64_t head = 0; head < group; ++head) {
    std::fill_n(part + head * stride, dim, 0.0f);
    part[head * stride + dim] = -std::numeric_limits<float>::infinity();
    part[head * stride + dim + 1] = 0;
  }
  set_query(w, layer, t, kv_head);
  for (int64_t chunk = first / kChunk + split; chunk * kChunk < running.length; chunk += count) {
    const int64_t from = std::max(first, chunk * kChunk);
    const int64_t keys = std::min(running.length, (chunk + 1) * kChunk) - from;
    const KvCache& cache = sequences_.cache;
    kernels_.attend({w.query->as<float>(), 1, group, group * dim, &keys},
                    cache.key(slot, layer.keys_of, kv_head, from),
                    cache.value(slot, layer.keys_of, kv_head, from), cache.format(), dim, dim, 1.0f,
                    nullptr, w.scores->as<float>(), w.sums->as<float>());
    for (int64_t head = 0; head < group; ++head) {
      float* sum = part + head * stride;
      const float* added = w.sums->as<float>() + head * stride;
      const float top = std::max(sum[dim], added[dim]);
      const float keep = std::exp(sum[dim] - top), more = std::exp(added[dim] - top);
      scale_by(sum, keep, dim);
      add_scaled_to(sum, added, more, dim);
      sum[dim + 1] = sum[dim + 1] * keep + added[dim + 1] * more;
      sum[dim] = top;
    }
  }
}

// Norms and turns the queries of a KV head, at the place of the newest token.
void AssistantDrafter::set_query(Worker& w, const AssistantLayer& layer, int64_t t,
                                 int64_t kv_head) const {
  const int64_t group = layer.heads / layer.kv_heads, dim = layer.head_dim, pairs = dim / 2;
  float* query = w.query->as<float>();
  kernels_.rms_norm(query_->as<float>() + (t * layer.heads + kv_head * group) * dim, dim,
                    layer.query_norm.data(), weights_.norm_eps, dim, group, query, dim);
  const float place = static_cast<float>(running_[t].length);
  for (int64_t i = 0; i < pairs; ++i) {
    const float angle = place * layer.frequencies[i];
    w.cosine[i] = std::cos(angle) * layer.amplitude;
    w.sine[i] = std::sin(angle) * layer.amplitude;
  }
  for (float* head = query; head < query + group * dim; head += dim) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = head[i], b = head[pairs + i];
      head[i] = a * w.cosine[i] - b * w.sine[i];
      head[pairs + i] = b * w.cosine[i] + a * w.sine[i];
    }
  }
}

// What all heads give, [T, Hh], in `input`.
void AssistantDrafter::merge_splits(Worker& w, const AssistantLayer& layer) const {
  const int64_t group = layer.heads / layer.kv_heads, dim = layer.head_dim, stride = dim + 2;
  const int64_t count = splits(layer);
  float* out = w.input->as<float>();
  for (int64_t head = 0; head < rows() * layer.heads; ++head, out += dim) {
    const float* parts =
        parts_->as<float>() + (head / group * count * group + head % group) * stride;
    const auto part = [&](int64_t split) { return parts + split * group * stride; };
    float peak = part(0)[dim], total = 0;
    for (int64_t split = 1; split < count; ++split) peak = std::max(peak, part(split)[dim]);
    std::fill_n(out, dim, 0.0f);
    for (int64_t split = 0; split < count; ++split) {
      if (part(split)[dim + 1] == 0) continue;  // no keys
      const float weight = std::exp(part(split)[dim] - peak);
      add_scaled_to(out, part(split), weight, dim);
      total += part(split)[dim + 1] * weight;
    }
    scale_by(out, 1.0f / total, dim);
  }
}

// ---- Parts of these ----

// Leaves the norm of the stream in `normed`.
void AssistantDrafter::norm(const Worker& w, const float* scale) const {
  kernels_.rms_norm(w.x->as<float>(), hidden_, scale, weights_.norm_eps, hidden_, rows(),
                    w.normed->as<float>(), hidden_);
}

// The stream gains the norm of what is offered.
void AssistantDrafter::gain(const Worker& w, const float* scale) const {
  float *x = w.x->as<float>(), *normed = w.normed->as<float>();
  kernels_.rms_norm(gain_->as<float>(), hidden_, scale, weights_.norm_eps, hidden_, rows(), normed,
                    hidden_);
  kernels_.add(x, normed, rows() * hidden_, x);
}

void AssistantDrafter::pack(const Worker& w, const float* x, int64_t columns) const {
  kernels_.pack(activation_, x, columns, rows(), w.packed->as<char>());
}

// A worker's rows of a product, at y and `stride` floats further for each row of the step.
void AssistantDrafter::multiply(const Worker& w, int worker, const Matrix& matrix, float* y,
                                int64_t stride) const {
  const int64_t begin = share_begin(matrix.rows, worker, workers());
  const int64_t end = share_begin(matrix.rows, worker + 1, workers());
  if (begin == end) return;
  kernels_.multiply(matrix, begin, end, activation_, w.packed->as<char>(), rows(), y, stride);
}

// The same, where all workers see it: [T, R].
void AssistantDrafter::multiply_whole(const Worker& w, int worker, const Matrix& matrix,
                                      const Arena& out) const {
  const int64_t begin = share_begin(matrix.rows, worker, workers());
  multiply(w, worker, matrix, out.as<float>() + begin, matrix.rows);
}

// ---- By the leader ----

void AssistantDrafter::draw_tokens() {
  steps_.count();
  size_t kept = 0;
  for (size_t t = 0; t < running_.size(); ++t) {
    Running running = running_[t];
    const DraftAsk& ask = *running.ask;
    const int64_t at = static_cast<int64_t>(t);
    const float* logits = logits_->as<float>() + at * candidates_;
    const uint32_t position = static_cast<uint32_t>(ask.tokens->size()) + running.drafted;
    if (orders()) {
      std::copy_n(workers_[0].candidates.begin() + at * candidates_, candidates_, named_.begin());
    }
    const std::vector<int32_t>& tokens = orders() ? named_ : choice_.tokens();
    const int32_t row = choice_.draw(logits, tokens, ask.advance->draw, position);
    const float stated = chance_of(logits, static_cast<int32_t>(candidates_), row);
    running.last = tokens[row];
    if (!steps_.go_on(ask, running.last, stated, running.drafted)) continue;
    std::memcpy(state_->as<float>() + static_cast<int64_t>(kept) * backbone_,
                next_->as<float>() + at * backbone_,
                static_cast<size_t>(backbone_) * sizeof(float));
    running_[kept++] = running;
  }
  running_.resize(kept);
}

}  // namespace monolane
