// The kernels of 64-bit Arm, without Python, which no Arm machine runs here: tests/cpu/test_arm.py
// compiles this on another processor and runs it emulated.
//
//   kernels_test CASES     runs everything; exit code 0 if all holds
//
// CASES has what the portable set of that other processor made of each input
// (tests/cpu/arm_cases.py). Of each case:
//   - the portable set has the same bits here: so have repacking and quantisation, which it shares;
//   - each set of Arm has the bits of the portable one with fused multiply-adds (`fused`, a set of
//     this test alone): its vectors have as many elements, and all it does is exact but for what
//     both do in one order;
//   - rows and tokens of products have the same bits whatever else is in the call.
#include "kernels/kernels.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "blobs.h"

namespace monolane {
namespace fused {
extern const Kernels kKernels;
}

namespace {

using Bytes = std::vector<uint8_t>;

struct Case {
  std::string operation;
  std::vector<int64_t> sizes;
  std::vector<Bytes> inputs;
  Bytes expected;

  explicit Case(Blobs& blobs) {
    const std::vector<char> name = blobs.next<char>();
    operation.assign(name.begin(), name.end());
    sizes = blobs.next<int64_t>();
    inputs.resize(static_cast<size_t>(blobs.number()));
    for (Bytes& input : inputs) input = blobs.next<uint8_t>();
    expected = blobs.next<uint8_t>();
  }
  const float* floats(size_t input) const {
    return reinterpret_cast<const float*>(inputs.at(input).data());
  }
  std::string name() const {
    std::string text = operation;
    for (const int64_t size : sizes) text += " " + std::to_string(size);
    return text;
  }
};

// Memory at a whole cache line, as packed tokens and panels have it.
class Lines {
 public:
  explicit Lines(int64_t bytes) : lines_(static_cast<size_t>(bytes + 63) / 64) {}
  void* data() { return lines_.data(); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> lines_;
};

Bytes bytes_of(const std::vector<float>& x) {
  Bytes bytes(x.size() * sizeof(float));
  std::memcpy(bytes.data(), x.data(), bytes.size());
  return bytes;
}

Matrix matrix_of(const Case& c, Format format, int64_t rows, int64_t cols) {
  const auto* scales = reinterpret_cast<const uint16_t*>(c.inputs.at(1).data());
  return {c.inputs.at(0).data(), scales_apart(format) ? scales : nullptr, rows, cols, format};
}

// multiply FORMAT ACTIVATION ROWS COLUMNS TOKENS: values, scales, x.
class Product {
 public:
  const int64_t rows, tokens;

  explicit Product(const Case& c)
      : rows(c.sizes[2]),
        tokens(c.sizes[4]),
        kind_(static_cast<Activation>(c.sizes[1])),
        x_(c.floats(2)),
        matrix_(matrix_of(c, static_cast<Format>(c.sizes[0]), rows, c.sizes[3])),
        panels_(is_repacked(matrix_.format)
                    ? panels_bytes(repacked_of(matrix_.format), rows, matrix_.cols)
                    : 0) {
    if (!is_repacked(matrix_.format)) return;
    repack_rows(matrix_, panels_.data());
    matrix_ = {panels_.data(), nullptr, rows, matrix_.cols, repacked_of(matrix_.format)};
  }

  // Of tokens first .. last - 1 with rows begin .. end - 1: [tokens, rows].
  std::vector<float> run(const Kernels& k, int64_t first, int64_t last, int64_t begin,
                         int64_t end) const {
    Lines packed(k.packed_bytes(kind_, matrix_.cols) * (last - first));
    k.pack(kind_, x_ + first * matrix_.cols, matrix_.cols, last - first, packed.data());
    std::vector<float> y(static_cast<size_t>((last - first) * (end - begin)));
    k.multiply(matrix_, begin, end, kind_, packed.data(), last - first, y.data(), end - begin);
    return y;
  }
  std::vector<float> run(const Kernels& k) const { return run(k, 0, tokens, 0, rows); }

 private:
  Activation kind_;
  const float* x_;
  Matrix matrix_;
  Lines panels_;
};

// attend FORMAT HEAD_DIM HEADS KEYS COUNT...: q, keys, values.
Bytes attend(const Kernels& k, const Case& c) {
  const int64_t head_dim = c.sizes[1], heads = c.sizes[2], keys = c.sizes[3];
  const std::vector<int64_t> counts(c.sizes.begin() + 4, c.sizes.end());
  const auto tokens = static_cast<int64_t>(counts.size());
  std::vector<float> scores(static_cast<size_t>(kAttendQueries * scores_of(keys)));
  std::vector<float> partial(static_cast<size_t>(tokens * heads * (head_dim + 2)));
  k.attend({c.floats(0), tokens, heads, heads * head_dim, counts.data()}, c.inputs.at(1).data(),
           c.inputs.at(2).data(), static_cast<Format>(c.sizes[0]), head_dim, head_dim, 0.125f,
           nullptr, scores.data(), partial.data());
  return bytes_of(partial);
}

// quantize TO FROM ROWS COLUMNS: x. Returns codes, then scales.
Bytes quantize(const Case& c) {
  const Format to = static_cast<Format>(c.sizes[0]);
  const int64_t rows = c.sizes[2], cols = c.sizes[3];
  Bytes values(static_cast<size_t>(rows * row_bytes(to, cols)));
  std::vector<uint16_t> scales(static_cast<size_t>(rows * cols / kGroup));
  quantize_rows(to, static_cast<Format>(c.sizes[1]), c.inputs.at(0).data(), rows, cols,
                values.data(), scales.data());
  const auto* bytes = reinterpret_cast<const uint8_t*>(scales.data());
  values.insert(values.end(), bytes, bytes + scales.size() * sizeof(uint16_t));
  return values;
}

// widen FORMAT ROWS COLUMNS: values, scales.
Bytes widen(const Kernels& k, const Case& c) {
  const Matrix w = matrix_of(c, static_cast<Format>(c.sizes[0]), c.sizes[1], c.sizes[2]);
  std::vector<float> out(static_cast<size_t>(w.rows * w.cols));
  for (int64_t row = 0; row < w.rows; ++row) k.widen(w, row, out.data() + row * w.cols);
  return bytes_of(out);
}

// The others: two arrays of as many floats, or one and a format.
Bytes pointwise(const Kernels& k, const Case& c) {
  const auto count = static_cast<int64_t>(c.inputs.at(0).size() / sizeof(float));
  if (c.operation == "store_kv") {
    const Format format = static_cast<Format>(c.sizes[0]);
    Bytes stored(static_cast<size_t>(row_bytes(format, count)));
    k.store_kv(c.floats(0), count, format, stored.data());
    return stored;
  }
  std::vector<float> out(static_cast<size_t>(count));
  const float *a = c.floats(0), *b = c.floats(1);
  if (c.operation == "rms_norm") {  // TOKENS: x, scale
    const int64_t cols = count / c.sizes[0];
    k.rms_norm(a, cols, b, 1e-5f, cols, c.sizes[0], out.data(), cols);
  } else if (c.operation == "silu_times") {
    k.silu_times(a, b, count, out.data());
  } else if (c.operation == "sigmoid_times") {
    k.sigmoid_times(a, b, count, out.data());
  } else if (c.operation == "gelu_tanh_times") {
    k.gelu_tanh_times(a, b, count, out.data());
  } else if (c.operation == "clamped_swiglu") {
    k.clamped_swiglu(a, b, count, out.data());
  } else {
    EXPECT(c.operation == "add");
    k.add(a, b, count, out.data());
  }
  return bytes_of(out);
}

Bytes run(const Kernels& k, const Case& c) {
  if (c.operation == "multiply") return bytes_of(Product(c).run(k));
  if (c.operation == "attend") return attend(k, c);
  if (c.operation == "quantize") return quantize(c);
  if (c.operation == "widen") return widen(k, c);
  return pointwise(k, c);
}

bool is_nan(const uint8_t* p) {
  float x;
  std::memcpy(&x, p, sizeof x);
  return x != x;
}

// Bit by bit, but for which NaN it is where results are floats: x86 and Arm make different ones.
void expect_same(const Case& c, const char* set, const Bytes& found, const Bytes& expected) {
  const bool floats = c.operation != "quantize" && c.operation != "store_kv";
  EXPECT(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); i += floats ? 4 : 1) {
    if (std::memcmp(&found[i], &expected[i], floats ? 4 : 1) == 0) continue;
    if (floats && is_nan(&found[i]) && is_nan(&expected[i])) continue;
    std::fprintf(stderr, "%s: %s differs from byte %zu on\n", c.name().c_str(), set, i);
    std::exit(1);
  }
}

// All widths on each side of a tile, and rows that begin and end amid a panel.
void expect_same_parts(const Case& c, const Kernels& k) {
  const Product product(c);
  const std::vector<float> whole = product.run(k);
  const auto expect_part = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    const std::vector<float> part = product.run(k, first, last, begin, end);
    std::vector<float> expected;
    for (int64_t t = first; t < last; ++t) {
      const auto row = whole.begin() + t * product.rows;
      expected.insert(expected.end(), row + begin, row + end);
    }
    expect_same(c, (std::string("a part by ") + k.name).c_str(), bytes_of(part),
                bytes_of(expected));
  };
  for (int64_t width = 1; width < product.tokens; ++width) {
    const int64_t first = width % 3, begin = width % product.rows;
    expect_part(0, width, 0, product.rows);
    if (first + width <= product.tokens) expect_part(first, first + width, begin, product.rows);
    expect_part(product.tokens - width, product.tokens, begin / 2, begin + 1);
  }
}

int run_all(const char* path) {
  std::vector<const Kernels*> sets;
  std::string names;
  for (const Isa isa : kNativeIsas) {
    if (!supported(isa)) continue;
    names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
    if (isa != Isa::kPortable) sets.push_back(&select_kernels(isa));
  }
  Blobs blobs(path);
  const int64_t cases = blobs.number();
  for (int64_t i = 0; i < cases; ++i) {
    const Case c(blobs);
    expect_same(c, "portable", run(select_kernels(Isa::kPortable), c), c.expected);
    const Bytes expected = run(fused::kKernels, c);
    for (const Kernels* set : sets) {
      expect_same(c, set->name, run(*set, c), expected);
      if (c.operation == "multiply") expect_same_parts(c, *set);
    }
  }
  std::printf("%lld cases hold on %s; best: %s\n", static_cast<long long>(cases), names.c_str(),
              isa_name(best_isa()));
  return 0;
}

}  // namespace
}  // namespace monolane

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "expected: kernels_test CASES\n");
    return 2;
  }
  return monolane::run_all(argv[1]);
}
