#include "tests/gpu/mix_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/wkv.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/timed.h"
#include "tests/kernels/recurrence_case.h"

namespace heddle::gpu {
namespace {

using kernels::Buffer;
using kernels::CreateReferenceDevice;
using kernels::Device;
using kernels::DType;
using kernels::KvCacheView;
using kernels::Ops;
using kernels::Tensor;
using kernels::WkvState;
using kernels::test::BatchSpec;
using kernels::test::Matrix;
using kernels::test::Piece;
using kernels::test::StepBatch;
using kernels::test::TestBatch;

constexpr int32_t kMixes = 6;  // of a shift before a time mix
constexpr int32_t kParts = 8;  // r, k, v, w, a, m, gate and the first layer's values

// A cache of 32 bits without values of its own.
KvCacheView CacheOf(int32_t num_pages, int32_t page_tokens, int32_t dim, Buffer& memory) {
  return {.keys = memory.data(),
          .values = memory.data(),
          .dtype = DType::kF32,
          .num_pages = num_pages,
          .page_tokens = page_tokens,
          .n_kv_heads = 1,
          .head_dim = dim,
          .page_stride = int64_t{page_tokens} * dim * static_cast<int64_t>(sizeof(float))};
}

std::unique_ptr<Buffer> PagesFor(Device& device, int32_t num_pages, int64_t floats) {
  return Must(device.Allocate(num_pages * floats * static_cast<int64_t>(sizeof(float))));
}

// RWKV-7's layer on a device: the vectors, the pages, and the two ops one after the other.
class TimeMixLayer {
 public:
  TimeMixLayer(Device& device, int32_t n_heads, int32_t head_dim, int32_t num_pages,
               int32_t page_tokens)
      : n_heads_(n_heads),
        head_dim_(head_dim),
        page_tokens_(page_tokens),
        layout_(n_heads, head_dim, width()),
        element_bytes_(kernels::Info(device.activation_dtype()).block_bytes) {
    kernels::test::Random random(3);
    mix_ = Copy(device, random.Normals(kMixes * width()));
    for (auto& vector : vectors_) vector = Copy(device, random.Normals(width()));
    pages_ = PagesFor(device, num_pages, layout_.floats);
    cache_ = CacheOf(num_pages, 1, static_cast<int32_t>(layout_.floats), *pages_);
  }
  int64_t width() const { return int64_t{n_heads_} * head_dim_; }

  // `parts`: [rows, kParts * width]; `shifted`: [rows, kMixes * width].
  void Run(Ops& ops, Tensor x, Tensor parts, Tensor shifted, Tensor out) const {
    const auto floats = [](const std::unique_ptr<Buffer>& buffer) {
      return static_cast<const float*>(buffer->data());
    };
    const auto part = [&](int64_t i) {
      return Tensor{static_cast<uint8_t*>(parts.data) + i * width() * element_bytes_, parts.rows,
                    width(), parts.stride};
    };
    ops.TokenShift({.x = x,
                    .mix = floats(mix_),
                    .n_mixes = kMixes,
                    .cache = cache_,
                    .page_tokens = page_tokens_,
                    .place = layout_.shifts,
                    .out = shifted});
    ops.TimeMix({.n_heads = n_heads_,
                 .head_dim = head_dim_,
                 .r = part(0),
                 .k = part(1),
                 .v = part(2),
                 .w = part(3),
                 .a = part(4),
                 .m = part(5),
                 .first_value = part(7),
                 .gate = part(6),
                 .key_scale = floats(vectors_[0]),
                 .key_mix = floats(vectors_[1]),
                 .bonus = floats(vectors_[2]),
                 .norm = floats(vectors_[3]),
                 .norm_bias = floats(vectors_[4]),
                 .cache = cache_,
                 .page_tokens = page_tokens_,
                 .out = out});
  }

 private:
  const int32_t n_heads_, head_dim_, page_tokens_;
  const WkvState layout_;
  const int64_t element_bytes_;
  std::unique_ptr<Buffer> mix_, vectors_[5], pages_;
  KvCacheView cache_;
};

// Rows of activations [rows, cols], the same on each device and rounded as BF16 is.
Matrix RowsOf(uint32_t seed, int64_t rows, int64_t cols) {
  kernels::test::Random random(seed);
  Matrix matrix = Matrix::RandomOf(random, rows, cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      float& value = *matrix.at(r, c);
      value = kernels::BF16ToF32(kernels::F32ToBF16(value));
    }
  }
  return matrix;
}

Matrix Part(Matrix& of, int64_t begin, int64_t rows) {
  Matrix part(rows, of.num_cols());
  for (int64_t r = 0; r < rows; ++r) std::copy_n(of.at(begin + r, 0), of.num_cols(), part.at(r, 0));
  return part;
}

void Append(const OnDevice& rows, std::vector<float>* all) {
  const std::vector<float> part = rows.Read();
  all->insert(all->end(), part.begin(), part.end());
}

struct MixedText {
  std::vector<float> out, shifted;
};

// A text in chunks: what the time mix gives, and the shifted rows.
MixedText MixText(Device& device, int32_t n_heads, int32_t head_dim, int32_t tokens,
                  int32_t chunk) {
  constexpr int32_t kPage = 32;
  TimeMixLayer layer(device, n_heads, head_dim, /*num_pages=*/4, kPage);
  const DType act = device.activation_dtype();
  Matrix x = RowsOf(1, tokens, layer.width()), parts = RowsOf(2, tokens, kParts * layer.width());
  MixedText all;
  for (int32_t begin = 0; begin < tokens; begin += chunk) {
    const int32_t n = std::min(chunk, tokens - begin);
    const StepBatch batch({{nullptr, {3, 1, 2, 0}, begin, n}}, kPage);
    Matrix own_x = Part(x, begin, n), own_parts = Part(parts, begin, n);
    Matrix wide(n, kMixes * layer.width()), zeros(n, layer.width());
    const OnDevice rows(device, act, own_x), made(device, act, own_parts);
    const OnDevice shifted(device, act, wide), out(device, act, zeros);
    Must(device.Plan(batch.view()));
    Must(device.Run([&](Ops& ops) {
      layer.Run(ops, rows.tensor(), made.tensor(), shifted.tensor(), out.tensor());
    }));
    Append(out, &all.out);
    Append(shifted, &all.shifted);
  }
  return all;
}

// The largest error as a share of `allowed` and two roundings of the value.
double WorstShare(Device& device, const std::vector<float>& found, const std::vector<float>& wanted,
                  double allowed) {
  const bool rounds = device.activation_dtype() == DType::kBF16;
  double worst = found.size() == wanted.size() ? 0 : INFINITY;
  for (size_t i = 0; i < found.size() && std::isfinite(worst); ++i) {
    const double error = std::fabs(double{found[i]} - wanted[i]);
    const double most = allowed + (rounds ? 0x1p-7 * std::fabs(double{wanted[i]}) : 0.0);
    worst = std::isfinite(error) ? std::max(worst, error / most) : INFINITY;
  }
  return worst;
}

// As in tests/kernels/cuda/time_mix_test.cc.
double CheckMix(Device& device, int32_t n_heads, int32_t head_dim, int32_t chunk) {
  constexpr int32_t kTokens = 70;
  const MixedText found = MixText(device, n_heads, head_dim, kTokens, chunk);
  const MixedText wanted = MixText(*CreateReferenceDevice(), n_heads, head_dim, kTokens, kTokens);
  return std::max(WorstShare(device, found.out, wanted.out, 2e-3),
                  WorstShare(device, found.shifted, wanted.shifted, 1e-5));
}

struct Convolution {
  int32_t channels, taps;
};

std::vector<float> Convolve(Device& device, const Convolution& c, const BatchSpec& spec) {
  const TestBatch batch(spec);
  const auto n = static_cast<int64_t>(batch.token_ids.size());
  kernels::test::Random random(4);
  const auto weight = Copy(device, random.Normals(int64_t{c.taps} * c.channels));
  const auto bias = Copy(device, random.Normals(c.channels));
  const int64_t floats = int64_t{spec.page_tokens} * c.channels;
  const auto pages = PagesFor(device, batch.num_pages, floats);
  const std::vector<float> earlier = random.Normals(batch.num_pages * floats);
  Must(device.Upload(pages->data(), earlier.data(),
                     static_cast<int64_t>(earlier.size() * sizeof(float))));
  Matrix bcx = RowsOf(5, n, int64_t{3} * c.channels), zeros(n, c.channels);
  const DType act = device.activation_dtype();
  const OnDevice in(device, act, bcx), out(device, act, zeros);
  Must(device.Plan(batch.view()));
  Must(device.Run([&](Ops& ops) {
    ops.ShortConv({.bcx = in.tensor(),
                   .weight = static_cast<const float*>(weight->data()),
                   .bias = static_cast<const float*>(bias->data()),
                   .taps = c.taps,
                   .cache = CacheOf(batch.num_pages, spec.page_tokens, c.channels, *pages),
                   .out = out.tensor()});
  }));
  return out.Read();
}

double CheckConvolution(Device& device, const Convolution& c) {
  const BatchSpec spec = {{{1, 1}, {3, 3}, {1, 40}, {17, 30}, {2, 2}, {4, 50, 13}}, 16};
  const auto reference = CreateReferenceDevice();
  // As in tests/kernels/short_conv_test.cc.
  return WorstShare(device, Convolve(device, c, spec), Convolve(*reference, c, spec),
                    1.2e-7 * 64 * (1 + c.taps));
}

constexpr int32_t kServedPage = 512;  // positions, as serving has them

// Sequences of `rows` rows each; decodes are in the middle of a part.
std::vector<Piece> Texts(int32_t n_seqs, int32_t rows, int32_t* num_pages) {
  const int32_t begin = rows == 1 ? 7 : 0;
  const int32_t pages = (begin + rows + kServedPage - 1) / kServedPage;
  std::vector<Piece> pieces;
  pieces.reserve(static_cast<size_t>(n_seqs));
  for (int32_t s = 0; s < n_seqs; ++s) {
    Piece piece{nullptr, {}, begin, rows};
    piece.pages.reserve(static_cast<size_t>(pages));
    for (int32_t i = 0; i < pages; ++i) piece.pages.push_back(s * pages + i);
    pieces.push_back(std::move(piece));
  }
  *num_pages = n_seqs * pages;
  return pieces;
}

// Bytes of S and of what is taken in again, as a decode reads them; or operations of a prompt.
Timing TimeMix(Device& device, const std::string& name, int32_t n_seqs, int32_t rows,
               int32_t repeats) {
  constexpr int32_t kHeads = 40, kDim = 64;
  const int32_t heads = Sized(kHeads, 2);
  int32_t num_pages = 0;
  const std::vector<Piece> pieces = Texts(Sized(n_seqs, 3), Sized(rows, 20), &num_pages);
  TimeMixLayer layer(device, heads, kDim, num_pages, kServedPage);
  const StepBatch batch(pieces, kServedPage);
  const DType act = device.activation_dtype();
  Matrix x = RepeatedRows(batch.rows(), layer.width());
  Matrix parts = RepeatedRows(batch.rows(), kParts * layer.width());
  Matrix wide(batch.rows(), kMixes * layer.width()), zeros(batch.rows(), layer.width());
  const OnDevice rows_in(device, act, x), made(device, act, parts);
  const OnDevice shifted(device, act, wide), out(device, act, zeros);
  Must(device.Plan(batch.view()));
  const double us = Time(device, repeats, [&](Ops& ops, int32_t) {
    layer.Run(ops, rows_in.tensor(), made.tensor(), shifted.tensor(), out.tensor());
  });
  constexpr double kState = double{kHeads} * kDim * kDim;
  const double elements = n_seqs * kState;
  const bool is_decode = rows == 1;
  return {name, us, is_decode ? elements * sizeof(float) : 2.0 * 5 * rows * elements, is_decode};
}

Timing TimeConvolution(Device& device, const std::string& name, int32_t n_seqs, int32_t rows,
                       int32_t repeats) {
  constexpr int32_t kChannels = 2048, kTaps = 3;
  int32_t num_pages = 0;
  const std::vector<Piece> pieces = Texts(Sized(n_seqs, 3), Sized(rows, 20), &num_pages);
  const StepBatch batch(pieces, kServedPage);
  const auto pages = PagesFor(device, num_pages, int64_t{kServedPage} * kChannels);
  kernels::test::Random random(4);
  const auto weight = Copy(device, random.Normals(int64_t{kTaps} * kChannels));
  Matrix bcx = RepeatedRows(batch.rows(), int64_t{3} * kChannels), zeros(batch.rows(), kChannels);
  const DType act = device.activation_dtype();
  const OnDevice in(device, act, bcx), out(device, act, zeros);
  const KvCacheView cache = CacheOf(num_pages, kServedPage, kChannels, *pages);
  Must(device.Plan(batch.view()));
  const double us = Time(device, repeats, [&](Ops& ops, int32_t) {
    ops.ShortConv({.bcx = in.tensor(),
                   .weight = static_cast<const float*>(weight->data()),
                   .taps = kTaps,
                   .cache = cache,
                   .out = out.tensor()});
  });
  // In, out, the row's own place in the cache, and for a decode those before it.
  const double per_channel = 2.0 * (3 + 1) + sizeof(float) * (rows == 1 ? kTaps : 1);
  return {name, us, static_cast<double>(int64_t{n_seqs} * rows * kChannels) * per_channel, true};
}

}  // namespace

void CheckMixes(Device& device, const CheckReport& report) {
  struct Case {
    int32_t heads, dim, chunk;
  };
  // The last two: of RWKV-7 2.9B.
  for (const Case& c : {Case{2, 24, 1}, {2, 24, 13}, {40, 64, 35}, {40, 64, 70}}) {
    const std::string name =
        absl::StrCat("time mix ", c.heads, " x ", c.dim, ", chunks of ", c.chunk);
    if (report.begins(name)) report.ends(name, CheckMix(device, c.heads, c.dim, c.chunk));
  }
  for (const Convolution& c : {Convolution{131, 4}, {2048, 3}}) {
    const std::string name = absl::StrCat("short convolution, ", c.channels, " channels");
    if (report.begins(name)) report.ends(name, CheckConvolution(device, c));
  }
}

void TimeMixes(Device& device, int32_t repeats, const TimingReport& report) {
  const auto time_all = [&](const std::string& what, const auto& timing) {
    for (const auto& [n_seqs, rows] : {std::pair{64, 1}, {1, 1}, {1, 2048}}) {
      const std::string name =
          absl::StrCat(what, ", ", n_seqs, " x ", rows, rows == 1 ? " row" : " rows");
      if (!report.begins(name)) continue;
      const int32_t times = rows > 1 ? std::max(1, repeats / 10) : repeats;
      report.ends(timing(device, name, n_seqs, rows, times));
    }
  };
  time_all("time mix 40 x 64 (RWKV-7 2.9B)", TimeMix);
  time_all("short convolution of 2048 (LFM2 1.2B)", TimeConvolution);
}

}  // namespace heddle::gpu
