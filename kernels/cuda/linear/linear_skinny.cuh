// Matrix product for few rows (decoding): every weight is read once, at the speed of memory.
//
// The weights are the left matrix of the instruction (16 rows), the activations the right one (8
// rows of x), so that a batch of 1 wastes no memory traffic, only arithmetic that is free here. A
// warp owns 2 tiles of 16 weight rows and every kColLanes-th group of columns; the warps that share
// rows add up at the end, in a fixed order: the result does not depend on the rest of the batch.
// For kGated a warp's second tile is the up rows of its gate rows.
// From 5 rows of x on, four warps work side by side on the same columns: a block then has 128
// weight rows, and x travels from the L2 once for them (at 16 rows 0.45 of the bytes of 4-bit
// weights, 0.9 at 32; with 32 weight rows per block it would be 1.8 and 3.6). So that there still
// are blocks for all multiprocessors, columns are divided among kSplits blocks, which add up
// through memory: the last one to arrive does it (MARLIN's global reduction). Weights with too many
// rows for the memory set apart for that use narrow blocks; the numbers are the same.
// Bytes in flight per warp: kDepth x 2 tiles x 2 x 512 = 4 KiB; 16 warps make 64 KiB per
// multiprocessor, where 4.3 TB/s / 132 x 700 ns of latency requires 23 KiB. More depth spills.
// All of that is requested before the kernel waits for earlier launches (primitives.cuh), 4 to 8 MB
// on the device, and 16 MiB more are prefetched to the L2, a third of it, so that memory keeps
// working while a chain of small kernels ends: 5 us at 4.3 TB/s, of the 6 that rope, attention and
// its merge take at one stream. The same blocks read these bytes next, so that nothing is read
// twice. Therefore no launch may write the weights. A mixture of experts is the same with chunks of
// the rows that chose an expert (experts.cu). Scales travel with their codes, so that no group
// waits for memory twice.
#pragma once

#include "kernels/cuda/linear/expert_matrix.cuh"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/linear_skinny_sums.cuh"
#include "kernels/cuda/linear/linear_skinny_x.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace skinny {

constexpr int kDepth = 2;  // groups that a warp has in flight
// In registers: the groups in flight and the one being computed. They rotate, because copies cost
// instructions.
constexpr int kPieces = kDepth + 1;
// Bytes prefetched to the L2 are those of each row behind the first groups of all warps: the same
// number for all rows, and at least as many per row as the registers hold.
constexpr int kFirstBytes = 64 * kColLanes * kDepth;
constexpr int kAheadBytes = 16 << 20;

// One lane's share of a group, both tiles, rows g and g + 8. The four lanes of a row share the
// scales: each holds those of one block, and gives them to the others when that block is computed,
// because registers limit the depth. Each lane has its own F32 scale of a tile.
template <WeightLayout kLayout>
struct Piece {
  static constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  static constexpr int kWords = kTraits.entries() > 2 ? 2 : 1;

  Vec16 raw[kTiles][2];
  uint32_t scales[kTiles][2][kWords];

  // Called by all lanes: F16 number `i` of the block's scales.
  HEDDLE_DEVICE float Scale(int tile, int h, int block, int i) const {
    if constexpr (kTraits.is_tiled) return BitsToFloat(scales[tile][h][0]);
    const uint32_t pair = Shuffle(scales[tile][h][i / 2], (Lane() & ~3) | block);
    return i % 2 == 0 ? LowFloat(pair, Half()) : HighFloat(pair, Half());
  }
};

template <WeightLayout kLayout, int kRowWarps>
struct Rows {  // of this lane
  using P = Piece<kLayout>;
  const uint8_t* data[kTiles][2];
  const uint16_t* scales[kTiles][2];

  HEDDLE_DEVICE explicit Rows(const LinearParams& p) {
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int64_t r =
            WeightRow<kRowWarps>(p, BlockX(), WarpIndex() % kRowWarps, tile, Lane() / 4 + 8 * h);
        data[tile][h] = p.weight.data + r * p.weight.row_bytes + 16 * (Lane() % 4);
        if constexpr (P::kTraits.is_tiled) {
          scales[tile][h] = reinterpret_cast<const uint16_t*>(p.weight.tiles_of(r));
        } else {
          scales[tile][h] = p.weight.scales + r * p.weight.scales_stride +
                            Lane() % 4 % P::kTraits.blocks() * P::kTraits.entries();
        }
      }
    }
  }

  HEDDLE_DEVICE void Load(int group, P& piece) const {
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        piece.raw[tile][h] = LoadStreaming16(data[tile][h] + static_cast<int64_t>(group) * 64);
        if constexpr (P::kTraits.is_scaled()) LoadScales(group, tile, h, piece);
      }
    }
  }

  HEDDLE_DEVICE void LoadScales(int group, int tile, int h, P& piece) const {
    constexpr int kEntries = P::kTraits.entries();
    const uint16_t* from =
        scales[tile][h] + static_cast<int64_t>(group) * (P::kTraits.blocks() * kEntries);
    if constexpr (P::kTraits.is_tiled) {
      constexpr int kGroups = kScaleTile / (32 * P::kTraits.blocks());
      piece.scales[tile][h][0] =
          reinterpret_cast<const uint32_t*>(scales[tile][h])[group / kGroups];
    } else if constexpr (kEntries == 1) {
      piece.scales[tile][h][0] = *from;
    } else {
      const auto words = *reinterpret_cast<const Words<kEntries / 2>*>(from);
      HEDDLE_UNROLL
      for (int i = 0; i < kEntries / 2; ++i) piece.scales[tile][h][i] = words.word[i];
    }
  }
};

// Sums of x over the columns of each scale, for the layouts with offsets: ones as the left matrix.
template <int kSubs, int kXTiles>
HEDDLE_DEVICE void SumX(const Vec16 (&x)[kXTiles], float (&sums)[kXTiles][kSubs][2]) {
  const uint32_t ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
  HEDDLE_UNROLL
  for (int n = 0; n < kXTiles; ++n) {
    HEDDLE_UNROLL
    for (int s = 0; s < kSubs; ++s) {
      float part[4] = {0, 0, 0, 0};
      HEDDLE_UNROLL
      for (int j = 2 * s / kSubs; j < 2 * (s + 1) / kSubs; ++j) {
        Mma16816(part, ones, {x[n].word[2 * j], x[n].word[2 * j + 1]}, BFloat16());
      }
      sums[n][s][0] = part[0];
      sums[n][s][1] = part[1];
    }
  }
}

// Adds one block of 32 columns to the sums. `block` counts within the piece's group.
template <WeightLayout kLayout, int kXTiles>
HEDDLE_DEVICE void AddBlock(const LinearParams& p, const Piece<kLayout>& piece, int block,
                            const Vec16 (&x)[kXTiles], float (&sums)[kTiles][kXTiles][4]) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  constexpr int kSubs = kTraits.subs();
  [[maybe_unused]] float x_sums[kXTiles][kSubs][2];
  if constexpr (kTraits.has_offset) SumX<kSubs>(x, x_sums);
  HEDDLE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const Pairs low = Fragment<kLayout>(p.weight, piece.raw[tile][0], block);
    const Pairs high = Fragment<kLayout>(p.weight, piece.raw[tile][1], block);
    HEDDLE_UNROLL
    for (int s = 0; s < kSubs; ++s) {
      [[maybe_unused]] float scale[2], offset[2];
      if constexpr (kTraits.is_scaled()) {
        const int entry = s * (kTraits.has_offset ? 2 : 1);
        HEDDLE_UNROLL
        for (int h = 0; h < 2; ++h) {
          scale[h] = piece.Scale(tile, h, block, entry);
          if constexpr (kTraits.has_offset) offset[h] = piece.Scale(tile, h, block, entry + 1);
        }
      }
      HEDDLE_UNROLL
      for (int n = 0; n < kXTiles; ++n) {
        float part[4] = {0, 0, 0, 0};
        float(&to)[4] = kTraits.is_scaled() ? part : sums[tile][n];
        HEDDLE_UNROLL
        for (int j = 2 * s / kSubs; j < 2 * (s + 1) / kSubs; ++j) {
          const uint32_t a[4] = {low.pair[2 * j], high.pair[2 * j], low.pair[2 * j + 1],
                                 high.pair[2 * j + 1]};
          Mma16816(to, a, {x[n].word[2 * j], x[n].word[2 * j + 1]}, BFloat16());
        }
        if constexpr (kTraits.is_scaled()) {
          HEDDLE_UNROLL
          for (int e = 0; e < 4; ++e) {
            sums[tile][n][e] += scale[e / 2] * part[e];
            if constexpr (kTraits.has_offset) {
              sums[tile][n][e] += offset[e / 2] * x_sums[n][s][e % 2];
            }
          }
        }
      }
    }
  }
}

// This warp's groups in part `split` of the columns: every kColLanes-th. The first kDepth are in
// flight from the start.
template <WeightLayout kLayout, int kXTiles, bool kWide>
struct Groups {
  using S = Shape<kLayout, kXTiles, kWide>;
  static constexpr int kBlocks = TraitsOf(kLayout).blocks();

  Rows<kLayout, S::kRowWarps> rows;
  int begin;
  int end;
  Piece<kLayout> pieces[kPieces];

  HEDDLE_DEVICE Groups(const LinearParams& p, int split)
      : rows(p),
        begin(split * S::kColWarps + WarpIndex() / S::kRowWarps),
        end(static_cast<int>((p.weight.cols + 32 * kBlocks - 1) / (32 * kBlocks))) {
    HEDDLE_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      const int group = begin + d * kColLanes;
      if (group < end) rows.Load(group, pieces[d]);
    }
  }
};

// Prefetches what comes after the first groups to the L2; each of the blocks that share rows takes
// some rows. A warp issues such prefetches one after the other, so each warp takes a few.
template <typename S>
HEDDLE_DEVICE void PrefetchRows(const LinearParams& p, int split) {
  constexpr int kRowsOfWarp = S::kRows / S::kSplits / (S::kThreads / 32);
  const int row = (WarpIndex() * kRowsOfWarp + Lane()) * S::kSplits + split;
  const int64_t left = p.weight.row_bytes - kFirstBytes;
  if (Lane() >= kRowsOfWarp || left <= 0) return;
  const int share = kAheadBytes / (GridX() * S::kRows) / 16 * 16;
  const int ahead = share > kFirstBytes ? share : kFirstBytes;
  const int warp = row / (kTiles * kTileRows);
  const int64_t r =
      WeightRow<S::kRowWarps>(p, BlockX(), warp, row / kTileRows % kTiles, row % kTileRows);
  PrefetchToL2(p.weight.data + r * p.weight.row_bytes + kFirstBytes,
               static_cast<int>(left < ahead ? left : ahead));
}

template <WeightLayout kLayout, int kXTiles, bool kWide, typename RowsOfX>
HEDDLE_DEVICE void AddGroups(const LinearParams& p, Groups<kLayout, kXTiles, kWide>& groups,
                             const RowsOfX& x_rows, float (&sums)[kTiles][kXTiles][4]) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  constexpr int kBlocks = kTraits.blocks();
  for (int first = groups.begin; first < groups.end; first += kPieces * kColLanes) {
    HEDDLE_UNROLL
    for (int d = 0; d < kPieces; ++d) {
      const int group = first + d * kColLanes;
      if (group >= groups.end) break;
      const int next = group + kDepth * kColLanes;
      if (next < groups.end) groups.rows.Load(next, groups.pieces[(d + kDepth) % kPieces]);
      HEDDLE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        Vec16 x[kXTiles];
        LoadX<kTraits.is_fine>(x_rows, p.x.cols,
                               (static_cast<int64_t>(group) * kBlocks + block) * 32, x);
        AddBlock<kLayout>(p, groups.pieces[d], block, x, sums);
      }
    }
  }
}

// BlockY: the part of the columns.
template <WeightLayout kLayout, int kXTiles, bool kWide, bool kNormed>
HEDDLE_KERNEL HEDDLE_BOUNDS((Shape<kLayout, kXTiles, kWide>::kThreads),
                            (Shape<kLayout, kXTiles, kWide>::kBlocks))
    LinearSkinnyKernel(HEDDLE_PARAMS(LinearParams, p)) {
  AllowNext();
  Groups<kLayout, kXTiles, kWide> groups(p, BlockY());
  PrefetchRows<Shape<kLayout, kXTiles, kWide>>(p, BlockY());
  if (kNormed && BlockX() == 0 && ThreadX() == 0) {
    PrefetchToL2(p.norm.weight, static_cast<int>(p.x.cols) * 4);
  }
  WaitForPrevious();
  const AllRows rows = {static_cast<int>(p.x.rows)};
  float sums[kTiles][kXTiles][4] = {};
  SharedArena arena;
  if constexpr (kNormed) {
    AddGroups(p, groups, NormRows(p, arena), sums);
  } else {
    AddGroups(p, groups, FindX<kXTiles>(p, rows), sums);
  }
  Reduce<kLayout, kXTiles, kWide>(p, BlockY(), rows, sums, arena);
}

// BlockY: a chunk of the pairs of one expert; blocks beyond the last chunk have no work.
template <WeightLayout kLayout, int kXTiles>
HEDDLE_KERNEL HEDDLE_BOUNDS((Shape<kLayout, kXTiles, false>::kThreads),
                            (Shape<kLayout, kXTiles, false>::kBlocks))
    ExpertSkinnyKernel(HEDDLE_PARAMS(ExpertLinearParams, p)) {
  StartInTurn();  // earlier launches determine which weights a block needs
  if (BlockY() >= *p.groups.n_chunks) return;
  const ExpertChunk chunk = p.groups.chunks[BlockY()];
  LinearParams own = ParamsOfExpert(p, chunk.expert);
  own.heads = {};  // as it is; known here, it costs no registers
  const PairRows rows = {p.groups.pairs + chunk.begin, chunk.count, p.pairs_per_row};
  float sums[kTiles][kXTiles][4] = {};
  Groups<kLayout, kXTiles, false> groups(own, 0);
  AddGroups(own, groups, FindX<kXTiles>(own, rows), sums);
  Reduce<kLayout, kXTiles, false>(own, 0, rows, sums, SharedArena());
}

template <typename S>
int BlocksOf(int64_t outputs, bool gated) {
  return CeilDiv(outputs, gated ? S::kRows / kTiles : S::kRows);
}

template <WeightLayout kLayout, int kXTiles, bool kWide, bool kNormed = false>
Error LaunchShaped(const LinearParams& params, Stream stream) {
  using S = Shape<kLayout, kXTiles, kWide>;
  const bool gated = params.epilogue == Epilogue::kGated;
  LaunchShape shape = {.grid_x = BlocksOf<S>(OutputCols(params), gated),
                       .grid_y = S::kSplits,
                       .threads = S::kThreads,
                       .shared_bytes = SharedBytesFor<float>(S::kSums) +
                                       (S::kSplits > 1 ? SharedBytesFor<int32_t>(1) : 0)};
  if constexpr (kNormed) {
    const int64_t x = params.x.rows * NormedStride(params.x.cols);
    shape.shared_bytes +=
        SharedBytesFor<BFloat16>(static_cast<int>(x)) + SharedBytesFor<float>(S::kThreads / 32);
  }
  return Launch(LinearSkinnyKernel<kLayout, kXTiles, kWide, kNormed>, shape, stream, params);
}

// Uses wide blocks if their sums fit into the memory for them.
template <WeightLayout kLayout, int kXTiles>
Error LaunchWide(const LinearParams& params, Stream stream) {
  using S = Shape<kLayout, kXTiles, true>;
  const int64_t blocks = BlocksOf<S>(OutputCols(params), params.epilogue == Epilogue::kGated);
  const bool fits = blocks <= params.n_counters &&
                    blocks * S::kSplits * S::kRows * S::kCols <= params.partial_floats;
  return fits ? LaunchShaped<kLayout, kXTiles, true>(params, stream)
              : LaunchShaped<kLayout, kXTiles, false>(params, stream);
}

template <WeightLayout kLayout>
Error LaunchLayout(const LinearParams& params, Stream stream) {
  if (params.norm.weight != nullptr) return LaunchShaped<kLayout, 1, false, true>(params, stream);
  if (params.x.rows <= 4) return LaunchShaped<kLayout, 1, false>(params, stream);
  if (params.x.rows <= 8) return LaunchWide<kLayout, 1>(params, stream);
  if (params.x.rows <= 16) return LaunchWide<kLayout, 2>(params, stream);
  return LaunchWide<kLayout, 4>(params, stream);
}

template <WeightLayout kLayout, int kXTiles>
Error LaunchExpertsShaped(const ExpertLinearParams& params, Stream stream) {
  using S = Shape<kLayout, kXTiles, false>;
  const bool gated = params.linear.epilogue == Epilogue::kGated;
  const int64_t outputs = gated ? params.linear.half : params.matrix_rows;
  const LaunchShape shape = {.grid_x = BlocksOf<S>(outputs, gated),
                             .grid_y = params.groups.max_chunks,
                             .threads = S::kThreads,
                             .shared_bytes = SharedBytesFor<float>(S::kSums)};
  return Launch(ExpertSkinnyKernel<kLayout, kXTiles>, shape, stream, params);
}

template <WeightLayout kLayout>
Error LaunchExpertsLayout(const ExpertLinearParams& params, Stream stream) {
  return params.groups.chunk_rows <= 8 ? LaunchExpertsShaped<kLayout, 1>(params, stream)
                                       : LaunchExpertsShaped<kLayout, 4>(params, stream);
}

}  // namespace skinny

// The kernels are in several sources, so that they compile in parallel.
Error LaunchLinearSkinnyFloat(const LinearParams& params, Stream stream);  // kBF16, kF8...
Error LaunchLinearSkinny8(const LinearParams& params, Stream stream);      // kInt8...
Error LaunchLinearSkinny4(const LinearParams& params, Stream stream);      // kInt4..., kTable4
Error LaunchExpertSkinnyFloat(const ExpertLinearParams& params, Stream stream);
Error LaunchExpertSkinny8(const ExpertLinearParams& params, Stream stream);
Error LaunchExpertSkinny4(const ExpertLinearParams& params, Stream stream);

}  // namespace heddle::kernels::cuda
