// The contribution of low-rank adapters to a product: gathered products of each row with its own
// adapter's factors, in F32. There are two kernels: shrink, with a warp per rank row, and expand,
// with a thread per few columns (and for embeddings, a gather in place of the first, and an
// addition where no product has an epilogue to do it in). Both read an adapter's factors once for
// each segment of rows; the order of a row's sums does not depend on the rest of the batch.
// Decoding is bound by the factors' bytes: at rank 16 on 4096 x 4096, 256 KiB per adapter, beside
// 32 MiB of weights.
#include "kernels/cuda/linear/adapter_params.h"
#include "kernels/cuda/linear/weight_element.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kShrinkWidth = 8;  // columns that a lane takes at a time: 16 bytes of 16-bit factors
constexpr int kExpandWidth = 4;

// Ranks whose shrunk values a block holds at once.
constexpr int kRankChunk = 512;

// The outputs that a block computes, which share their factors; -1 for none.
struct Outputs {
  int64_t index[kAdapterRows];
  bool any = false;
  const AdapterFactors* factors = nullptr;  // [n_parts]

  HEDDLE_DEVICE Outputs(const AdapterParams& p, int64_t block) {
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) index[i] = -1;
    if (p.kind == AdapterOutputs::kRows) {
      TakeSegment(p, p.batch.segments[block]);
      return;
    }
    const int64_t row = block / p.outputs_per_row;
    const int32_t slot = p.batch.slots[p.first_row + row];
    if (slot < 0) return;
    const bool is_choice = p.kind == AdapterOutputs::kChoices;
    const int64_t member =
        is_choice ? p.members[block] - p.first_member : block - row * p.outputs_per_row;
    if (is_choice && (member < 0 || member >= p.n_members)) return;  // an expert elsewhere
    index[0] = block;
    any = true;
    factors = p.factors + int64_t{slot} * p.slot_stride + member * p.n_parts;
  }

  HEDDLE_DEVICE void TakeSegment(const AdapterParams& p, const AdapterSegment& segment) {
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (i >= segment.count) continue;
      const int64_t t = p.batch.rows[segment.begin + i] - p.first_row;
      if (t < 0 || t >= p.n_outputs) continue;
      index[i] = t;
      any = true;
    }
    factors = p.factors + int64_t{segment.slot} * p.slot_stride;
  }
};

HEDDLE_DEVICE float* ShrunkRow(const AdapterParams& p, int64_t output, int part) {
  return p.shrunk + (output * p.n_parts + part) * p.max_rank;
}

template <typename T>
HEDDLE_DEVICE const T* InputOf(const AdapterParams& p, int64_t output) {
  const int64_t row = output / p.outputs_per_x;
  return p.x.row<T>(row) + (output - row * p.outputs_per_x) * p.x_step;
}

// BlockX: the segment or output; BlockY: four rank rows; BlockZ: the part. A step may have more
// outputs than a grid has blocks along y.
template <typename T, typename F, int kWidth>
HEDDLE_KERNEL ShrinkKernel(HEDDLE_PARAMS(AdapterParams, p)) {
  StartInTurn();
  const Outputs outputs(p, BlockX());
  if (!outputs.any) return;
  const AdapterFactors factors = outputs.factors[BlockZ()];
  const int j = BlockY() * kWarps + WarpIndex();
  if (j >= factors.rank) return;
  if (factors.a == nullptr) {
    if (Lane() >= kAdapterRows) return;
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (i != Lane() || outputs.index[i] < 0) continue;
      ShrunkRow(p, outputs.index[i], BlockZ())[j] =
          factors.scale * ToFloat(InputOf<T>(p, outputs.index[i])[j]);
    }
    return;
  }
  const F* a =
      static_cast<const F*>(factors.a[j / factors.block_rows]) + j % factors.block_rows * p.cols;
  float sums[kAdapterRows] = {};
  for (int64_t c = int64_t{kWidth} * Lane(); c < p.cols; c += 32 * kWidth) {
    const Group<F, kWidth> factor = LoadGroup<kWidth>(a + c);
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (outputs.index[i] < 0) continue;
      const Group<T, kWidth> x = LoadGroup<kWidth>(InputOf<T>(p, outputs.index[i]) + c);
      HEDDLE_UNROLL
      for (int e = 0; e < kWidth; ++e) sums[i] += ToFloat(factor.item[e]) * ToFloat(x.item[e]);
    }
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kAdapterRows; ++i) {
    const float sum = WarpSum(sums[i]);
    if (Lane() == 0 && outputs.index[i] >= 0) {
      ShrunkRow(p, outputs.index[i], BlockZ())[j] = factors.scale * sum;
    }
  }
}

struct AdapterGatherParams {
  AdapterParams adapters;
  DeviceBatch tokens;
  int64_t first_token;
};

// BlockX: the segment.
template <typename F>
HEDDLE_KERNEL AdapterGatherKernel(HEDDLE_PARAMS(AdapterGatherParams, all)) {
  StartInTurn();
  const AdapterParams& p = all.adapters;
  const Outputs outputs(p, BlockX());
  if (!outputs.any) return;
  const AdapterFactors factors = outputs.factors[0];
  if (factors.rank == 0) return;
  HEDDLE_UNROLL
  for (int i = 0; i < kAdapterRows; ++i) {
    if (outputs.index[i] < 0) continue;
    const int64_t t = outputs.index[i];
    const int32_t draw = all.tokens.draw_of_row == nullptr ? -1 : all.tokens.draw_of_row[t];
    const int64_t token = draw >= 0 ? all.tokens.drawn[draw] : all.tokens.token_ids[t];
    const int64_t id = token - all.first_token;
    const bool known = id >= 0 && id < p.cols;
    float* to = ShrunkRow(p, t, 0);
    for (int j = ThreadX(); j < factors.rank; j += kThreads) {
      if (!known) {
        to[j] = 0.0f;
        continue;
      }
      const F* a = static_cast<const F*>(factors.a[id / factors.token_rows]) +
                   id % factors.token_rows * factors.rank;
      to[j] = factors.scale * ToFloat(a[j]);
    }
  }
}

// Ranks [first, first + count) and their shrunk values [kAdapterRows, kRankChunk].
struct RankChunk {
  int first;
  int count;
  Shared<float> shrunk;
};

// Adds the products of a chunk of ranks to the sums of columns [c, c + kWidth) of `cols`.
template <typename F, int kWidth>
HEDDLE_DEVICE void AddRanks(const AdapterFactors& factors, const Outputs& outputs, int64_t cols,
                            int64_t c, const RankChunk& chunk,
                            float (&sums)[kAdapterRows][kWidth]) {
  for (int j = 0; j < chunk.count; ++j) {
    const int rank = chunk.first + j;
    const F* b = static_cast<const F*>(factors.b[rank / factors.block_rows]) +
                 rank % factors.block_rows * cols;
    const Group<F, kWidth> factor = LoadGroup<kWidth>(b + c);
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (outputs.index[i] < 0) continue;
      const float s = chunk.shrunk.Get(i * kRankChunk + j);
      HEDDLE_UNROLL
      for (int e = 0; e < kWidth; ++e) sums[i][e] += s * ToFloat(factor.item[e]);
    }
  }
}

// Writes what is added to columns [c, c + kWidth) of the part, and what they are multiplied by.
template <int kWidth>
HEDDLE_DEVICE void StoreAdded(const AdapterParams& p, const AdapterFactors& factors,
                              const Outputs& outputs, const AdapterPart& part, int64_t c,
                              const float (&sums)[kAdapterRows][kWidth]) {
  HEDDLE_UNROLL
  for (int i = 0; i < kAdapterRows; ++i) {
    if (outputs.index[i] < 0) continue;
    Group<float, kWidth> own, gain;
    HEDDLE_UNROLL
    for (int e = 0; e < kWidth; ++e) {
      const float bias = factors.bias != nullptr ? factors.bias[c + e] : 0.0f;
      const float added = factors.gain != nullptr ? factors.gain[c + e] : 0.0f;
      own.item[e] = sums[i][e] + factors.vector_scale * bias;
      gain.item[e] = 1.0f + factors.vector_scale * added;
    }
    const int64_t at = outputs.index[i] * p.delta_stride + part.first_row + c;
    StoreGroup(p.delta + at, own);
    if (p.gains != nullptr) StoreGroup(p.gains + at, gain);
  }
}

// BlockX: the segment or output; BlockY: columns of the part; BlockZ: the part.
template <typename F, int kWidth>
HEDDLE_KERNEL ExpandKernel(HEDDLE_PARAMS(AdapterParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> shrunk = arena.Take<float>(kAdapterRows * kRankChunk);
  const Outputs outputs(p, BlockX());
  if (!outputs.any) return;
  const AdapterFactors factors = outputs.factors[BlockZ()];
  const AdapterPart part = p.parts[BlockZ()];
  const int64_t c = (static_cast<int64_t>(BlockY()) * kThreads + ThreadX()) * kWidth;
  float sums[kAdapterRows][kWidth] = {};
  if (factors.b == nullptr && factors.rank > 0 && c < part.rows) {
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (outputs.index[i] < 0) continue;
      HEDDLE_UNROLL
      for (int e = 0; e < kWidth; ++e) {
        sums[i][e] = ShrunkRow(p, outputs.index[i], BlockZ())[c + e];
      }
    }
  }
  const int ranks = factors.b == nullptr ? 0 : factors.rank;
  for (int first = 0; first < ranks; first += kRankChunk) {
    const int count = ranks - first < kRankChunk ? ranks - first : kRankChunk;
    if (first > 0) SyncThreads();
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (outputs.index[i] < 0) continue;
      const float* from = ShrunkRow(p, outputs.index[i], BlockZ()) + first;
      for (int j = ThreadX(); j < count; j += kThreads) shrunk.Set(i * kRankChunk + j, from[j]);
    }
    SyncThreads();
    if (c < part.rows) {
      AddRanks<F, kWidth>(factors, outputs, part.rows, c, {first, count, shrunk}, sums);
    }
  }
  if (c < part.rows) StoreAdded<kWidth>(p, factors, outputs, part, c, sums);
}

struct AdapterAddParams {
  AdapterParams adapters;
  AdapterTarget target;
  int64_t cols;
};

// BlockX: the output; BlockY: columns.
template <typename T>
HEDDLE_KERNEL AdapterAddKernel(HEDDLE_PARAMS(AdapterAddParams, all)) {
  StartInTurn();
  const AdapterParams& p = all.adapters;
  const int64_t output = BlockX();
  const int64_t row = output / p.outputs_per_row;
  const int64_t c = static_cast<int64_t>(BlockY()) * kThreads + ThreadX();
  if (c >= all.cols || p.batch.slots[p.first_row + row] < 0) return;
  T* out = all.target.out.row<T>(row) + all.target.first_col +
           (output - row * p.outputs_per_row) * all.target.step + c;
  const int64_t at = output * p.delta_stride + c;
  const float gain = p.gains != nullptr ? p.gains[at] : 1.0f;
  *out = RoundTo(ToFloat(*out) * gain + p.delta[at], T());
}

// Calls fn with a value of the factors' storage type.
template <typename Fn>
auto ForFactors(DType dtype, Fn fn) {
  if (dtype == DType::kF32) return fn(float());
  return dtype == DType::kF16 ? fn(Half()) : fn(BFloat16());
}

// Blocks in the direction of outputs.
int BlocksOf(const AdapterParams& params) {
  return params.kind == AdapterOutputs::kRows ? params.batch.n_segments
                                              : static_cast<int>(params.n_outputs);
}

int64_t WidestPart(const AdapterParams& params) {
  int64_t widest = 0;
  for (int32_t i = 0; i < params.n_parts; ++i) {
    if (params.parts[i].rows > widest) widest = params.parts[i].rows;
  }
  return widest;
}

}  // namespace

Error LaunchAdapterShrink(const AdapterParams& params, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = BlocksOf(params),
                             .grid_y = CeilDiv(params.max_rank, kWarps),
                             .grid_z = params.n_parts,
                             .threads = kThreads};
  const Tensor& x = params.x;
  const bool wide = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % kShrinkWidth == 0 &&
                    params.cols % kShrinkWidth == 0 && params.x_step % kShrinkWidth == 0;
  return ForActivation(act, [&]<typename T>(T) {
    return ForFactors(params.dtype, [&]<typename F>(F) {
      return wide ? Launch(ShrinkKernel<T, F, kShrinkWidth>, shape, stream, params)
                  : Launch(ShrinkKernel<T, F, 1>, shape, stream, params);
    });
  });
}

Error LaunchAdapterGather(const AdapterParams& params, const DeviceBatch& tokens,
                          int64_t first_token, Stream stream) {
  const LaunchShape shape = {.grid_x = BlocksOf(params), .threads = kThreads};
  return ForFactors(params.dtype, [&]<typename F>(F) {
    return Launch(AdapterGatherKernel<F>, shape, stream,
                  AdapterGatherParams{params, tokens, first_token});
  });
}

Error LaunchAdapterExpand(const AdapterParams& params, Stream stream) {
  bool wide = true;
  for (int32_t i = 0; i < params.n_parts; ++i) {
    const AdapterPart& part = params.parts[i];
    wide = wide && part.rows % kExpandWidth == 0 && part.first_row % kExpandWidth == 0;
  }
  const LaunchShape shape = {
      .grid_x = BlocksOf(params),
      .grid_y = CeilDiv(WidestPart(params), int64_t{kThreads} * (wide ? kExpandWidth : 1)),
      .grid_z = params.n_parts,
      .threads = kThreads,
      .shared_bytes = SharedBytesFor<float>(kAdapterRows * kRankChunk)};
  return ForFactors(params.dtype, [&]<typename F>(F) {
    return wide ? Launch(ExpandKernel<F, kExpandWidth>, shape, stream, params)
                : Launch(ExpandKernel<F, 1>, shape, stream, params);
  });
}

Error LaunchAdapterAdd(const AdapterParams& params, const AdapterTarget& target, DType act,
                       Stream stream) {
  const LaunchShape shape = {.grid_x = static_cast<int>(params.n_outputs),
                             .grid_y = CeilDiv(WidestPart(params), kThreads),
                             .threads = kThreads};
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(AdapterAddKernel<T>, shape, stream,
                  AdapterAddParams{params, target, WidestPart(params)});
  });
}

}  // namespace heddle::kernels::cuda
