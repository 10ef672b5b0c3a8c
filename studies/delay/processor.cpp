// Attention of narrow heads, and cross entropy, on one core: what the size for processors spends
// most of its time in where torch computes them. float32, whole rows, causal.
//
// A head here has 4 to 16 values, fewer than a vector register holds on some machines: so vectors
// lie along the keys, and K and V are turned ([E, T]) once for a head.
//
// B rows, H heads, T tokens of a row, E values of a head, N targets, V words.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kQueries = 4;                // taken together, so that K and V are read once for them
constexpr int kMostTokens = 1024;          // of a row: buffers lie on the stack
constexpr int kStride = kMostTokens + 16;  // a power of two would put all rows into one cache set

constexpr int kWhole = 16;        // keys are taken by as many: what is left of a vector is slow
constexpr float kNever = -1e30f;  // the score of a key that a query does not see

// So many keys as hold these, and are whole vectors.
inline int whole(int keys) { return (keys + kWhole - 1) / kWhole * kWhole; }

// e^x for x <= 0, within 2 units in the last place; 0 below -87. A loop of it becomes vectors.
inline float exp_of(float x) {
  x = std::max(x, -87.0f);
  const float whole = std::floor(x * 1.44269504f + 0.5f);
  const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * rest + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * rest * rest + rest + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &y, sizeof bits);
  bits += static_cast<int32_t>(whole) << 23;
  std::memcpy(&y, &bits, sizeof bits);
  return y;
}

// The largest of some values. GCC makes no vectors of a maximum, as a value may be no number.
inline float most_of(const float* x, int64_t count) {
  constexpr int kLanes = 16;
  typedef float Lanes __attribute__((vector_size(4 * kLanes)));
  Lanes most = x[0] - Lanes{};
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) {
    Lanes next;
    std::memcpy(&next, x + at, sizeof next);
    most = next > most ? next : most;
  }
  float found = x[0];
  for (int i = 0; i < kLanes; ++i) found = std::max(found, most[i]);
  for (; at < count; ++at) found = std::max(found, x[at]);
  return found;
}

template <int E>
void turn(const float* x_TE, int tokens, float* x_ET) {
  for (int t = 0; t < tokens; ++t) {
    for (int e = 0; e < E; ++e) x_ET[e * kStride + t] = x_TE[t * E + e];
  }
  for (int e = 0; e < E; ++e) {  // nothing that is no number may stand behind the row
    std::fill(x_ET + e * kStride + tokens, x_ET + e * kStride + whole(tokens), 0.0f);
  }
}

// scores[q][s] = sum over e of a[q][e] * b[e][s], for s below `count`.
template <int E>
void products(const float (*a_QE)[E], const float* b_ET, int count, float (*out_QT)[kStride]) {
  for (int s = 0; s < count; ++s) {
    float sums[kQueries] = {};
    for (int e = 0; e < E; ++e) {
      const float b = b_ET[e * kStride + s];
      for (int q = 0; q < kQueries; ++q) sums[q] += a_QE[q][e] * b;
    }
    for (int q = 0; q < kQueries; ++q) out_QT[q][s] = sums[q];
  }
}

// out[q][e] = sum over s of weights[q][s] * b[e][s].
template <int E>
void sums_over_keys(const float (*weights_QT)[kStride], const float* b_ET, int count,
                    float (*out_QE)[E]) {
  for (int e = 0; e < E; ++e) {
    float sums[kQueries] = {};
    const float* b = b_ET + e * kStride;
    for (int s = 0; s < count; ++s) {
      for (int q = 0; q < kQueries; ++q) sums[q] += weights_QT[q][s] * b[s];
    }
    for (int q = 0; q < kQueries; ++q) out_QE[q][e] = sums[q];
  }
}

// The queries from `first` on, those behind the row's end as zeros.
template <int E>
void take(const float* x_TE, int first, int tokens, float scale, float (*out_QE)[E]) {
  for (int q = 0; q < kQueries; ++q) {
    for (int e = 0; e < E; ++e) {
      out_QE[q][e] = first + q < tokens ? x_TE[(first + q) * E + e] * scale : 0.0f;
    }
  }
}

template <int E>
void forward_head(const float* q_TE, const float* k_TE, const float* v_TE, float scale, int tokens,
                  float* y_TE, float* logsum_T) {
  alignas(64) float k_ET[E * kStride], v_ET[E * kStride];
  alignas(64) float scores_QT[kQueries][kStride];
  alignas(64) float q_QE[kQueries][E], y_QE[kQueries][E];
  turn<E>(k_TE, tokens, k_ET);
  turn<E>(v_TE, tokens, v_ET);
  for (int first = 0; first < tokens; first += kQueries) {
    const int count = whole(std::min(first + kQueries, tokens));
    take<E>(q_TE, first, tokens, scale, q_QE);
    products<E>(q_QE, k_ET, count, scores_QT);
    float total_Q[kQueries];
    for (int q = 0; q < kQueries; ++q) {
      float* row = scores_QT[q];
      const int seen = std::min(first + q + 1, tokens);
      std::fill(row + seen, row + count, kNever);
      const float most = most_of(row, count);
      float total = 0.0f;
      for (int s = 0; s < count; ++s) {
        row[s] = exp_of(row[s] - most);
        total += row[s];  // of what is not seen 1e-38, which changes nothing
      }
      std::fill(row + seen, row + count, 0.0f);
      total_Q[q] = total;
      if (first + q < tokens) logsum_T[first + q] = most + std::log(total);
    }
    sums_over_keys<E>(scores_QT, v_ET, count, y_QE);
    for (int q = 0; q < kQueries && first + q < tokens; ++q) {
      for (int e = 0; e < E; ++e) y_TE[(first + q) * E + e] = y_QE[q][e] / total_Q[q];
    }
  }
}

template <int E>
void backward_head(const float* q_TE, const float* k_TE, const float* v_TE, const float* y_TE,
                   const float* logsum_T, const float* dy_TE, float scale, int tokens, float* dq_TE,
                   float* dk_TE, float* dv_TE) {
  alignas(64) float k_ET[E * kStride], v_ET[E * kStride];
  alignas(64) float dk_ET[E * kStride], dv_ET[E * kStride];
  alignas(64) float p_QT[kQueries][kStride], ds_QT[kQueries][kStride];
  alignas(64) float q_QE[kQueries][E], dy_QE[kQueries][E], dq_QE[kQueries][E];
  turn<E>(k_TE, tokens, k_ET);
  turn<E>(v_TE, tokens, v_ET);
  std::fill(dk_ET, dk_ET + E * kStride, 0.0f);
  std::fill(dv_ET, dv_ET + E * kStride, 0.0f);
  for (int first = 0; first < tokens; first += kQueries) {
    const int count = whole(std::min(first + kQueries, tokens));
    take<E>(q_TE, first, tokens, scale, q_QE);
    take<E>(dy_TE, first, tokens, 1.0f, dy_QE);
    products<E>(q_QE, k_ET, count, p_QT);
    products<E>(dy_QE, v_ET, count, ds_QT);
    for (int q = 0; q < kQueries; ++q) {
      const bool there = first + q < tokens;
      const int seen = there ? first + q + 1 : 0;
      const float logsum = there ? logsum_T[first + q] : 0.0f;
      float dot = 0.0f;
      for (int e = 0; e < E && there; ++e) dot += dy_QE[q][e] * y_TE[(first + q) * E + e];
      for (int s = 0; s < count; ++s) {
        p_QT[q][s] = exp_of(std::min(p_QT[q][s] - logsum, 0.0f));
        ds_QT[q][s] = p_QT[q][s] * (ds_QT[q][s] - dot);
      }
      std::fill(p_QT[q] + seen, p_QT[q] + count, 0.0f);
      std::fill(ds_QT[q] + seen, ds_QT[q] + count, 0.0f);
    }
    sums_over_keys<E>(ds_QT, k_ET, count, dq_QE);
    for (int q = 0; q < kQueries && first + q < tokens; ++q) {
      for (int e = 0; e < E; ++e) dq_TE[(first + q) * E + e] = dq_QE[q][e] * scale;
    }
    for (int e = 0; e < E; ++e) {
      float* dk = dk_ET + e * kStride;
      float* dv = dv_ET + e * kStride;
      for (int s = 0; s < count; ++s) {
        float k = dk[s], v = dv[s];
        for (int q = 0; q < kQueries; ++q) {
          k += ds_QT[q][s] * q_QE[q][e];  // q has the scale already
          v += p_QT[q][s] * dy_QE[q][e];
        }
        dk[s] = k;
        dv[s] = v;
      }
    }
  }
  for (int t = 0; t < tokens; ++t) {
    for (int e = 0; e < E; ++e) {
      dk_TE[t * E + e] = dk_ET[e * kStride + t];
      dv_TE[t * E + e] = dv_ET[e * kStride + t];
    }
  }
}

template <int E>
void forward_all(const float* q, const float* k, const float* v, float scale, int64_t heads,
                 int tokens, float* y, float* logsum) {
  for (int64_t i = 0; i < heads; ++i) {
    const int64_t at = i * tokens * E;
    forward_head<E>(q + at, k + at, v + at, scale, tokens, y + at, logsum + i * tokens);
  }
}

template <int E>
void backward_all(const float* q, const float* k, const float* v, const float* y,
                  const float* logsum, const float* dy, float scale, int64_t heads, int tokens,
                  float* dq, float* dk, float* dv) {
  for (int64_t i = 0; i < heads; ++i) {
    const int64_t at = i * tokens * E;
    backward_head<E>(q + at, k + at, v + at, y + at, logsum + i * tokens, dy + at, scale, tokens,
                     dq + at, dk + at, dv + at);
  }
}

}  // namespace

extern "C" {

// Arrays [heads, T, E], where heads are those of all rows; logsum [heads, T]. Returns 0, or 1 for a
// head width or a row that is not computed here.
int attention_forward(const float* q, const float* k, const float* v, float scale, int64_t heads,
                      int tokens, int width, float* y, float* logsum) {
  if (tokens > kMostTokens) return 1;
  switch (width) {
    case 4:
      forward_all<4>(q, k, v, scale, heads, tokens, y, logsum);
      return 0;
    case 8:
      forward_all<8>(q, k, v, scale, heads, tokens, y, logsum);
      return 0;
    case 16:
      forward_all<16>(q, k, v, scale, heads, tokens, y, logsum);
      return 0;
    default:
      return 1;
  }
}

int attention_backward(const float* q, const float* k, const float* v, const float* y,
                       const float* logsum, const float* dy, float scale, int64_t heads, int tokens,
                       int width, float* dq, float* dk, float* dv) {
  if (tokens > kMostTokens) return 1;
  switch (width) {
    case 4:
      backward_all<4>(q, k, v, y, logsum, dy, scale, heads, tokens, dq, dk, dv);
      return 0;
    case 8:
      backward_all<8>(q, k, v, y, logsum, dy, scale, heads, tokens, dq, dk, dv);
      return 0;
    case 16:
      backward_all<16>(q, k, v, y, logsum, dy, scale, heads, tokens, dq, dk, dv);
      return 0;
    default:
      return 1;
  }
}

// Sum of the targets' nats; logsum [N] is kept for the gradient.
double cross_entropy_forward(const float* logits_NV, const int64_t* targets_N, int64_t count,
                             int64_t words, float* logsum_N) {
  double nats = 0.0;
  for (int64_t n = 0; n < count; ++n) {
    const float* row = logits_NV + n * words;
    const float most = most_of(row, words);
    float total = 0.0f;
    for (int64_t w = 0; w < words; ++w) total += exp_of(row[w] - most);
    logsum_N[n] = most + std::log(total);
    nats += static_cast<double>(logsum_N[n]) - row[targets_N[n]];
  }
  return nats;
}

void cross_entropy_backward(const float* logits_NV, const int64_t* targets_N, const float* logsum_N,
                            float gradient, int64_t count, int64_t words, float* out_NV) {
  for (int64_t n = 0; n < count; ++n) {
    const float* row = logits_NV + n * words;
    float* out = out_NV + n * words;
    const float logsum = logsum_N[n];
    for (int64_t w = 0; w < words; ++w) {
      out[w] = gradient * exp_of(std::min(row[w] - logsum, 0.0f));
    }
    out[targets_N[n]] -= gradient;
  }
}

}  // extern "C"
