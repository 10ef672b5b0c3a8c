#include "draft/draft_layers.h"

#include <algorithm>
#include <cmath>

namespace monolane {
namespace {

std::vector<float> copy_of(const float* x, int64_t count) {
  return x == nullptr ? std::vector<float>() : std::vector<float>(x, x + count);
}

}  // namespace

DraftLayers::Layer::Layer(const DraftLayerWeights& w, const DraftShape& s, int slots)
    : q(w.q.values, w.q.format, s.heads * s.head_dim, s.input),
      k(w.k.values, w.k.format, s.kv_heads * s.head_dim, s.input),
      v(w.v.values, w.v.format, s.kv_heads * s.head_dim, s.input),
      o(w.o.values, w.o.format, s.hidden, s.heads * s.head_dim),
      gate(w.gate.values, w.gate.format, s.inner, s.hidden),
      up(w.up.values, w.up.format, s.inner, s.hidden),
      down(w.down.values, w.down.format, s.hidden, s.inner),
      mlp_norm(copy_of(w.mlp_norm, s.hidden)),
      query_norm(copy_of(w.query_norm, s.head_dim)),
      key_norm(copy_of(w.key_norm, s.head_dim)),
      window(w.window),
      keys(slots),
      values(slots) {}

DraftLayers::DraftLayers(const Kernels& kernels, const DraftShape& shape,
                         const std::vector<DraftLayerWeights>& layers, int workers, int slots,
                         int64_t rows, int64_t keys, DraftSteps& steps)
    : kernels_(kernels),
      hidden_(shape.hidden),
      input_(shape.input),
      inner_(shape.inner),
      heads_(shape.heads),
      kv_heads_(shape.kv_heads),
      head_dim_(shape.head_dim),
      norm_eps_(shape.norm_eps),
      amplitude_(shape.amplitude),
      frequencies_(shape.frequencies, shape.frequencies + shape.head_dim / 2),
      steps_(steps),
      workers_(workers) {
  for (const DraftLayerWeights& layer : layers) layers_.emplace_back(layer, shape, slots);
  x_ = room_of(rows * hidden_);
  angles_ = room_of(rows * head_dim_);
  query_ = room_of(rows * heads_ * head_dim_);
  key_ = room_of(rows * kv_heads_ * head_dim_);
  value_ = room_of(rows * kv_heads_ * head_dim_);
  attended_ = room_of(rows * heads_ * head_dim_);
  product_ = room_of(rows * inner_);
  const int64_t widest = std::max({shape.widest, input_, inner_, heads_ * head_dim_});
  const int64_t group = heads_ / kv_heads_;
  for (Worker& w : workers_) {
    w.input = room_of(rows * std::max(input_, hidden_));
    w.packed = std::make_unique<Arena>(
        static_cast<size_t>(rows * kernels_.packed_bytes(Activation::kI8, widest)));
    w.product = room_of(rows * std::max(inner_, hidden_));
    w.second = room_of(rows * inner_);
    w.query = room_of(group * head_dim_);
    w.partial = room_of(group * (head_dim_ + 2));
    w.scores = room_of(kAttendQueries * scores_of(keys));
  }
}

void DraftLayers::add(const Row& row) {
  const size_t floats = static_cast<size_t>((row.place + 1) * kv_heads_ * head_dim_);
  for (Layer& layer : layers_) {
    layer.keys[row.slot].resize(floats);
    layer.values[row.slot].resize(floats);
  }
  rows_.push_back(row);
}

// ---- By every worker ----

void DraftLayers::set_angles(int worker) {
  const int64_t pairs = head_dim_ / 2;
  for (int64_t t = worker; t < rows(); t += workers()) {
    float* cosine = angles_->as<float>() + t * head_dim_;
    for (int64_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(rows_[t].place) * frequencies_[i];
      cosine[i] = std::cos(angle) * amplitude_;
      cosine[pairs + i] = std::sin(angle) * amplitude_;
    }
  }
}

void DraftLayers::attend(int worker, size_t number) {
  Layer& layer = layers_[number];
  pack(worker, input(worker), input_, rows());
  multiply_whole(worker, layer.q, rows(), query_->as<float>());
  multiply_whole(worker, layer.k, rows(), key_->as<float>());
  multiply_whole(worker, layer.v, rows(), value_->as<float>());
  steps_.meet(worker);  // queries, keys and values are there
  store_keys(worker, layer);
  steps_.meet(worker);  // and where attention reads them
  attend_keys(worker, layer);
  steps_.meet(worker);  // what heads give is there
  pack(worker, attended_->as<float>(), heads_ * head_dim_, rows());
  add_product(worker, layer.o);
}

void DraftLayers::keep_keys(int worker, size_t number) {
  Layer& layer = layers_[number];
  pack(worker, input(worker), input_, rows());
  multiply_whole(worker, layer.k, rows(), key_->as<float>());
  multiply_whole(worker, layer.v, rows(), value_->as<float>());
  steps_.meet(worker);  // keys and values are there
  store_keys(worker, layer);
  steps_.meet(worker);  // nobody reads them there any more
}

void DraftLayers::run_mlp(int worker, size_t number) {
  Worker& w = workers_[worker];
  const Layer& layer = layers_[number];
  norm(worker, layer.mlp_norm.data());
  pack(worker, input(worker), hidden_, rows());
  const int64_t first = share_begin(inner_, worker, workers());
  const int64_t inners = share_begin(inner_, worker + 1, workers()) - first;
  float *gate = w.product->as<float>(), *up = w.second->as<float>();
  multiply(worker, layer.gate, rows(), gate, inners);
  multiply(worker, layer.up, rows(), up, inners);
  for (int64_t t = 0; t < rows(); ++t) {
    kernels_.silu_times(gate + t * inners, up + t * inners, inners,
                        product_->as<float>() + t * inner_ + first);
  }
  steps_.meet(worker);  // the product is there, and nobody reads the stream
  pack(worker, product_->as<float>(), inner_, rows());
  add_product(worker, layer.down);
}

void DraftLayers::norm(int worker, const float* scale) const {
  kernels_.rms_norm(x(), hidden_, scale, norm_eps_, hidden_, rows(), input(worker), hidden_);
}

void DraftLayers::pack(int worker, const float* x, int64_t columns, int64_t rows) const {
  kernels_.pack(Activation::kI8, x, columns, rows, workers_[worker].packed->as<char>());
}

void DraftLayers::multiply(int worker, const Int8Matrix& codes, int64_t rows, float* y,
                           int64_t stride) const {
  const int64_t begin = share_begin(codes.matrix.rows, worker, workers());
  const int64_t end = share_begin(codes.matrix.rows, worker + 1, workers());
  if (begin == end) return;
  kernels_.multiply(codes.matrix, begin, end, Activation::kI8, workers_[worker].packed->as<char>(),
                    rows, y, stride);
}

// ---- Parts of these ----

// Turns the keys of this worker's rows, and puts them and the values where attention reads them.
void DraftLayers::store_keys(int worker, Layer& layer) {
  const int64_t kept = kv_heads_ * head_dim_;
  for (int64_t t = worker; t < rows(); t += workers()) {
    const Row& row = rows_[t];
    float* key = key_->as<float>() + t * kept;
    prepare_heads(t, layer.key_norm, kv_heads_, key);
    std::copy_n(key, kept, layer.keys[row.slot].data() + row.place * kept);
    std::copy_n(value_->as<float>() + t * kept, kept,
                layer.values[row.slot].data() + row.place * kept);
  }
}

// The heads of one KV head of a row after another, each by one worker.
void DraftLayers::attend_keys(int worker, const Layer& layer) {
  Worker& w = workers_[worker];
  const int64_t group = heads_ / kv_heads_, kept = kv_heads_ * head_dim_;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
  for (int64_t unit = worker; unit < rows() * kv_heads_; unit += workers()) {
    const int64_t t = unit / kv_heads_, head = unit % kv_heads_;
    const Row& row = rows_[t];
    const int64_t first = (t * heads_ + head * group) * head_dim_;
    const int64_t key = layer.window == 0 ? 0 : std::max<int64_t>(0, row.place + 1 - layer.window);
    const int64_t count = row.seen - key, at = key * kept + head * head_dim_;
    float* query = w.query->as<float>();
    std::copy_n(query_->as<float>() + first, group * head_dim_, query);
    prepare_heads(t, layer.query_norm, group, query);
    const Queries queries{query, 1, group, group * head_dim_, &count};
    const float* partial = w.partial->as<float>();
    kernels_.attend(queries, layer.keys[row.slot].data() + at, layer.values[row.slot].data() + at,
                    Format::kF32, kept, head_dim_, scale, nullptr, w.scores->as<float>(),
                    w.partial->as<float>());
    float* out = attended_->as<float>() + first;
    for (int64_t i = 0; i < group; ++i, partial += head_dim_ + 2, out += head_dim_) {
      for (int64_t j = 0; j < head_dim_; ++j) out[j] = partial[j] / partial[head_dim_ + 1];
    }
  }
}

// Norms heads of a row, where the layer does, and turns them.
void DraftLayers::prepare_heads(int64_t row, const std::vector<float>& norm, int64_t count,
                                float* heads) const {
  if (!norm.empty()) {
    kernels_.rms_norm(heads, head_dim_, norm.data(), norm_eps_, head_dim_, count, heads, head_dim_);
  }
  const int64_t pairs = head_dim_ / 2;
  const float *cosine = angles_->as<float>() + row * head_dim_, *sine = cosine + pairs;
  for (float* head = heads; head < heads + count * head_dim_; head += head_dim_) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float a = head[i], b = head[pairs + i];
      head[i] = a * cosine[i] - b * sine[i];
      head[pairs + i] = b * cosine[i] + a * sine[i];
    }
  }
}

// The stream gains a product, of which this worker adds its rows.
void DraftLayers::add_product(int worker, const Int8Matrix& codes) {
  const int64_t first = share_begin(hidden_, worker, workers());
  const int64_t count = share_begin(hidden_, worker + 1, workers()) - first;
  float* gain = workers_[worker].product->as<float>();
  multiply(worker, codes, rows(), gain, count);
  for (int64_t t = 0; t < rows(); ++t) {
    float* to = x() + t * hidden_ + first;
    kernels_.add(to, gain + t * count, count, to);
  }
  steps_.meet(worker);  // the stream is there
}

}  // namespace monolane
