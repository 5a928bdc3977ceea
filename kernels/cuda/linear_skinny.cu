// Matrix product for few rows (decoding): every weight is read once, at the speed of memory.
//
// The weights are the left matrix of the instruction (16 rows), the activations the right one (8
// rows of x), so that a batch of 1 wastes no memory traffic, only arithmetic that is free here. A
// block owns 2 tiles of 16 weight rows; its 8 warps deal the groups of columns among themselves and
// add up at the end, in a fixed order: the same numbers whatever else is in the batch. For kGated
// the second tile is the up rows of the first tile's gate rows.
// Bytes in flight per warp: kDepth x 2 tiles x 2 x 512 = 4 KiB; two resident blocks make 64 KiB per
// multiprocessor, where 4.3 TB/s / 132 x 700 ns of latency asks for 23 KiB. More depth spills.
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTiles = 2;
constexpr int kTileRows = 16;
constexpr int kDepth = 2;  // groups that a warp has in flight

struct Piece {  // one lane's share of a group, both tiles, rows g and g + 8
  Vec16 raw[kTiles][2];
};

// Weight row that stands at row i of tile `tile` of this block. Past the end: the last, unused.
HEDDLE_DEVICE int64_t WeightRow(const LinearParams& p, int tile, int i) {
  int64_t r, end;
  if (p.epilogue == Epilogue::kGated) {
    r = static_cast<int64_t>(BlockX()) * kTileRows + i;
    end = p.half;
    return (r < end ? r : end - 1) + tile * p.half;
  }
  r = (static_cast<int64_t>(BlockX()) * kTiles + tile) * kTileRows + i;
  end = p.weight.rows;
  return r < end ? r : end - 1;
}

template <DType kFormat>
struct Rows {  // of this lane
  const uint8_t* data[kTiles][2];
  const uint16_t* scales[kTiles][2];

  HEDDLE_DEVICE explicit Rows(const LinearParams& p) {
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        int64_t r = WeightRow(p, tile, Lane() / 4 + 8 * h);
        data[tile][h] = p.weight.data + r * p.weight.row_bytes + 16 * (Lane() % 4);
        scales[tile][h] = p.weight.scales + r * p.weight.scales_stride;
      }
    }
  }

  HEDDLE_DEVICE void Load(int group, Piece& piece) const {
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        piece.raw[tile][h] = LoadStreaming16(data[tile][h] + static_cast<int64_t>(group) * 64);
      }
    }
  }
};

// The lane's 8 activations of each tile of 8 rows of x, columns k .. k + 7; zeros outside.
template <int kXTiles>
HEDDLE_DEVICE void LoadX(const LinearParams& p, int64_t k, Vec16 (&x)[kXTiles]) {
  HEDDLE_UNROLL
  for (int n = 0; n < kXTiles; ++n) {
    int64_t t = 8 * n + Lane() / 4;
    bool inside = t < p.x.rows && k < p.x.cols;
    x[n] = inside ? *reinterpret_cast<const Vec16*>(p.x.row<BFloat16>(t) + k) : Vec16{};
  }
}

// Adds one block of 32 columns to the sums.
template <DType kFormat, int kXTiles>
HEDDLE_DEVICE void AddBlock(const Piece& piece, int block, int scale_index,
                            const Rows<kFormat>& rows, const Vec16 (&x)[kXTiles],
                            float (&sums)[kTiles][kXTiles][4]) {
  HEDDLE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    Pairs low = Fragments<kFormat>::Block(piece.raw[tile][0], block);
    Pairs high = Fragments<kFormat>::Block(piece.raw[tile][1], block);
    float d_low = 1, d_high = 1;
    if constexpr (Fragments<kFormat>::kScaled) {
      d_low = ToFloat(Half{rows.scales[tile][0][scale_index]});
      d_high = ToFloat(Half{rows.scales[tile][1][scale_index]});
    }
    HEDDLE_UNROLL
    for (int n = 0; n < kXTiles; ++n) {
      float part[4] = {0, 0, 0, 0};
      float(&to)[4] = Fragments<kFormat>::kScaled ? part : sums[tile][n];
      HEDDLE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const uint32_t a[4] = {low.pair[2 * j], high.pair[2 * j], low.pair[2 * j + 1],
                               high.pair[2 * j + 1]};
        const uint32_t b[2] = {x[n].word[2 * j], x[n].word[2 * j + 1]};
        Mma16816(to, a, b, BFloat16());
      }
      if constexpr (Fragments<kFormat>::kScaled) {
        sums[tile][n][0] += d_low * part[0];
        sums[tile][n][1] += d_low * part[1];
        sums[tile][n][2] += d_high * part[2];
        sums[tile][n][3] += d_high * part[3];
      }
    }
  }
}

// This warp's groups: every kWarps-th.
template <DType kFormat, int kXTiles>
HEDDLE_DEVICE void AddGroups(const LinearParams& p, float (&sums)[kTiles][kXTiles][4]) {
  constexpr int kBlocks = Fragments<kFormat>::kBlocks;
  const Rows<kFormat> rows(p);
  const int groups = static_cast<int>((p.weight.cols + 32 * kBlocks - 1) / (32 * kBlocks));
  Piece pieces[kDepth];
  HEDDLE_UNROLL
  for (int d = 0; d < kDepth; ++d) {
    int group = WarpIndex() + d * kWarps;
    if (group < groups) rows.Load(group, pieces[d]);
  }
  for (int first = WarpIndex(); first < groups; first += kDepth * kWarps) {
    HEDDLE_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      const int group = first + d * kWarps;
      if (group >= groups) break;
      const Piece piece = pieces[d];
      if (group + kDepth * kWarps < groups) rows.Load(group + kDepth * kWarps, pieces[d]);
      HEDDLE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        Vec16 x[kXTiles];
        LoadX(p, (static_cast<int64_t>(group) * kBlocks + block) * 32 + 8 * (Lane() % 4), x);
        AddBlock<kFormat>(piece, block, group * kBlocks + block, rows, x, sums);
      }
    }
  }
}

// Adds the warps' sums and stores. `part` is [kWarps, kTiles, kTileRows, 8 * kXTiles].
template <int kXTiles>
HEDDLE_DEVICE void Reduce(const LinearParams& p, const float (&sums)[kTiles][kXTiles][4],
                          Shared<float> part) {
  constexpr int kCols = 8 * kXTiles;
  constexpr int kPart = kTiles * kTileRows * kCols;
  HEDDLE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    HEDDLE_UNROLL
    for (int n = 0; n < kXTiles; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        int row = Lane() / 4 + 8 * (e / 2);
        int col = 8 * n + 2 * (Lane() % 4) + e % 2;
        part.Set(WarpIndex() * kPart + (tile * kTileRows + row) * kCols + col, sums[tile][n][e]);
      }
    }
  }
  SyncThreads();
  auto total = [&](int row, int64_t t) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += part.Get(w * kPart + row * kCols + static_cast<int>(t));
    return sum;
  };
  const bool gated = p.epilogue == Epilogue::kGated;
  const int rows = gated ? kTileRows : kTiles * kTileRows;
  for (int i = ThreadX(); i < rows * static_cast<int>(p.x.rows); i += ThreadCount()) {
    const int64_t t = i / rows;
    const int row = i % rows;
    const int64_t r = static_cast<int64_t>(BlockX()) * rows + row;
    if (r >= OutputCols(p)) continue;
    StoreOutput<BFloat16>(p, t, r, total(row, t), gated ? total(row + kTileRows, t) : 0.0f);
  }
}

template <DType kFormat, int kXTiles>
HEDDLE_KERNEL HEDDLE_BOUNDS(32 * kWarps, kXTiles > 2 ? 1 : 2)
    LinearSkinnyKernel(HEDDLE_PARAMS(LinearParams, p)) {
  SharedArena arena;
  Shared<float> part = arena.Take<float>(kWarps * kTiles * kTileRows * 8 * kXTiles);
  float sums[kTiles][kXTiles][4] = {};
  AddGroups<kFormat>(p, sums);
  Reduce(p, sums, part);
}

template <DType kFormat>
Error LaunchFormat(const LinearParams& params, Stream stream) {
  const bool gated = params.epilogue == Epilogue::kGated;
  auto launch = [&]<int kXTiles>() {
    const LaunchShape shape = {
        .grid_x = CeilDiv(OutputCols(params), gated ? kTileRows : kTiles * kTileRows),
        .threads = 32 * kWarps,
        .shared_bytes = SharedBytesFor<float>(kWarps * kTiles * kTileRows * 8 * kXTiles)};
    return Launch(LinearSkinnyKernel<kFormat, kXTiles>, shape, stream, params);
  };
  if (params.x.rows <= 8) return launch.template operator()<1>();
  if (params.x.rows <= 16) return launch.template operator()<2>();
  return launch.template operator()<4>();
}

}  // namespace

Error LaunchLinearSkinny(const LinearParams& params, Stream stream) {
  switch (params.weight.format) {
    case DType::kF16:
      return LaunchFormat<DType::kF16>(params, stream);
    case DType::kQ8_0:
      return LaunchFormat<DType::kQ8_0>(params, stream);
    case DType::kQ4_0:
      return LaunchFormat<DType::kQ4_0>(params, stream);
    default:
      return LaunchFormat<DType::kBF16>(params, stream);
  }
}

}  // namespace heddle::kernels::cuda
