// Matrix product of quantised weights and more rows than linear_skinny.cuh is for, on sm_90a:
// weights go from memory to the registers of the threads that need them, become BF16 there with
// scales applied, and are the left matrix of a warpgroup's instruction; x is the right one, in
// shared memory. Nothing intermediate is stored. Sources: Frantar et al., "MARLIN", 2024; the idea
// of a left matrix in registers for wgmma: Neural Magic's Machete, NVIDIA's mixed-input CUTLASS.
//
// A block makes kRows = 256 weight rows times 64 or 128 rows of x. Two warpgroups consume, 2 tiles
// of 64 weight rows each (kGated: gate and up rows of the same outputs); four warps produce x
// (linear_mixed_stages.cuh). A consumer converts 32 columns of a tile to BF16 while its previous
// product and the other consumer's are running. Blocks that share weight rows but not columns add
// up through memory, in a fixed order; the last one to arrive does it.
//
// Its limits, in clocks of a multiprocessor at 1.7 GHz, for 256 weight rows x 128 columns and
// 64 | 128 rows of x:
//   tensor cores      1024 | 2048 (2048 FMA a clock)
//   slots             1400, as counted in the compiled loop: 11 for a pair of codes with all that
//                     is around it, 64 pairs a thread, two consumers' warps on each scheduler
//   weights           4-bit 18 KiB, 960 of 4.3 TB/s / 132; 8-bit 34 KiB, 1810
//   from the L2       18 + 16 | 32 KiB, 1420 | 2090 of 5.5 TB/s / 132; half as many weight rows to
//                     a block would make it 2090 | 3400
//   shared memory     x in, once, and out to the tensor cores, four times: 640 | 1280 of 128 bytes
// So at 64 rows slots and the L2 decide, and tensor cores and memory are not far behind; at 128
// tensor cores and L2 set the pace, and a quarter of the slots are free. Larger products are
// several blocks of 128 rows. The first weights, and 64 KiB more on their way to the L2, are asked
// for before the kernel waits for the launches before it. In flight: 2 (1 for 128 rows) stages of
// weights of 16 KiB, where latency asks for 23; at 128 rows a stage is computed on for 1.2 us,
// longer than latency. Registers: 128 sums at 128 rows, 16 codes and 4 to 8 scales a stage, 16 of
// left matrices; 232 of each consumer's threads. The values are those of a matrix dequantised to
// BF16 (linear_plain.cu).
#pragma once

#include "kernels/cuda/linear/expert_matrix.cuh"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear/linear_mixed_stages.cuh"

namespace heddle::kernels::cuda {
namespace mixed {

// A lane's share of a stage of weights.
template <typename S>
struct StageOfWeights {
  skinny::Piece<S::kLayout> group[S::kGroups];
};

// The addresses of this lane's share: rows g and g + 8 of both tiles, place t of each group.
template <typename S>
class Weights {
 public:
  static constexpr int kEntries = S::kTraits.entries();

  HEDDLE_DEVICE explicit Weights(const LinearParams& p)
      : data_(p.weight.data + 16 * (Lane() % 4)),
        scales_(p.weight.scales + Lane() % 4 % S::kTraits.blocks() * kEntries),
        tile_scales_(p.weight.tile_scales),
        row_bytes_(static_cast<int32_t>(p.weight.row_bytes)),
        scales_stride_(static_cast<int32_t>(S::kTraits.is_tiled ? p.weight.tiles_stride
                                                                : p.weight.scales_stride)),
        groups_(static_cast<int32_t>(p.weight.row_bytes / 64)) {
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        rows_[tile][h] = static_cast<int32_t>(
            skinny::WeightRow<kConsumerWarps>(p, BlockY(), WarpIndex(), tile, Lane() / 4 + 8 * h));
      }
    }
  }

  // Loads zeros beyond the end of a row.
  HEDDLE_DEVICE void Load(int stage, StageOfWeights<S>& to) const {
    HEDDLE_UNROLL
    for (int i = 0; i < S::kGroups; ++i) {
      const int group = stage * S::kGroups + i;
      if (S::kGroups > 1 && group >= groups_) {
        to.group[i] = {};
        continue;
      }
      HEDDLE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        HEDDLE_UNROLL
        for (int h = 0; h < 2; ++h) LoadRow(group, tile, h, to.group[i]);
      }
    }
  }

 private:
  HEDDLE_DEVICE void LoadRow(int group, int tile, int h, skinny::Piece<S::kLayout>& to) const {
    const int64_t row = rows_[tile][h];
    to.raw[tile][h] =
        LoadStreamingAhead16(data_ + row * row_bytes_ + static_cast<int64_t>(group) * 64);
    if constexpr (S::kTraits.is_tiled) {
      constexpr int kGroupsOfTile = kScaleTile / (32 * S::kTraits.blocks());
      to.scales[tile][h][0] =
          FloatToBits(tile_scales_[row / kScaleTile * scales_stride_ + group / kGroupsOfTile]);
    } else if constexpr (kEntries > 0) {
      const uint16_t* from = scales_ + row * scales_stride_ +
                             static_cast<int64_t>(group) * (S::kTraits.blocks() * kEntries);
      if constexpr (kEntries == 1) {
        to.scales[tile][h][0] = *from;
      } else {
        const auto words = *reinterpret_cast<const Words<kEntries / 2>*>(from);
        HEDDLE_UNROLL
        for (int i = 0; i < kEntries / 2; ++i) to.scales[tile][h][i] = words.word[i];
      }
    }
  }

  const uint8_t* data_;
  const uint16_t* scales_;
  const float* tile_scales_;
  int32_t row_bytes_, scales_stride_, groups_;
  int32_t rows_[kTiles][2];
};

// Converts the codes of sub-block `s` of row h in a block, as pairs, to values: scales are applied
// in F32 and rounded once.
template <WeightLayout kLayout>
HEDDLE_DEVICE void ApplyScale(const skinny::Piece<kLayout>& piece, int tile, int h, int block,
                              int s, Pairs& pairs) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  constexpr int kCount = 4 / kTraits.subs();
  const int entry = s * (kTraits.has_offset ? 2 : 1);
  const float scale = piece.Scale(tile, h, block, entry);
  [[maybe_unused]] float offset = 0;
  if constexpr (kTraits.has_offset) offset = piece.Scale(tile, h, block, entry + 1);
  HEDDLE_UNROLL
  for (int i = s * kCount; i < (s + 1) * kCount; ++i) {
    float low = LowFloat(pairs.pair[i], BFloat16()) * scale;
    float high = HighFloat(pairs.pair[i], BFloat16()) * scale;
    if constexpr (kTraits.has_offset) {
      low += offset;
      high += offset;
    }
    pairs.pair[i] = Pack2(low, high, BFloat16());
  }
}

// Block `block` of a group, one tile, as the left matrices of two instructions.
template <WeightLayout kLayout>
HEDDLE_DEVICE void Dequantise(const DeviceWeight& weight, const skinny::Piece<kLayout>& piece,
                              int tile, int block, uint32_t (&a)[2][4]) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    Pairs pairs = Fragment<kLayout>(weight, piece.raw[tile][h], block);
    if constexpr (kTraits.is_scaled()) {
      HEDDLE_UNROLL
      for (int s = 0; s < kTraits.subs(); ++s) ApplyScale(piece, tile, h, block, s, pairs);
    }
    HEDDLE_UNROLL
    for (int j = 0; j < 2; ++j) {
      a[j][h] = pairs.pair[2 * j];
      a[j][2 + h] = pairs.pair[2 * j + 1];
    }
  }
}

// Reports that this warp no longer reads the stage.
HEDDLE_DEVICE void LeaveStage(BlockBarriers barriers, const Turn& turn) {
  SyncWarp();
  if (Lane() == 0) BarrierArrive(barriers, kEmpty + turn.place());
}

// Starts sums += weights x^T over a stage; when it returns, the last product of it is running, and
// all of the previous stage are complete. Products of the two tiles alternate, so that the left
// matrix of one tile can be made while the other one's is read.
template <typename S>
HEDDLE_DEVICE void MultiplyStage(const DeviceWeight& weight, const StageOfWeights<S>& weights,
                                 const Turn& turn, const Memory<S>& memory,
                                 uint32_t (&a)[kTiles][2][4], sums::Sums<S>& sums) {
  const uint32_t x = AddressOf(memory.x, turn.place() * S::kStage);
  HEDDLE_UNROLL
  for (int block = 0; block < S::kBlocks; ++block) {
    const uint32_t line = x + block / 2 * (S::kXRows * 128) + block % 2 * 64;
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      Dequantise<S::kLayout>(weight, weights.group[block / S::kTraits.blocks()], tile,
                             block % S::kTraits.blocks(), a[tile]);
      if (block == 0 && tile == 0)
        BarrierWait(memory.barriers, kFull + turn.place(), turn.parity());
      WarpgroupFence();
      HEDDLE_UNROLL
      for (int j = 0; j < 2; ++j) {
        WarpgroupMma(sums[tile], a[tile][j], MatrixDescriptor(line + 32 * j, 0, kPatternBytes),
                     true, BFloat16());
      }
      WarpgroupCommit();
      WarpgroupWait<1>();
      if (block == 0 && tile == 0 && turn.count > 0) {
        LeaveStage(memory.barriers, {turn.count - 1});
      }
    }
  }
  // The left matrices are the words as they were loaded, and the compiler would reuse the registers
  // of the last product, which is still running.
  if constexpr (S::kLayout == WeightLayout::kBF16) WarpgroupWait<0>();
}

template <typename S>
HEDDLE_DEVICE void Consume(const LinearParams& p, const BlockStages& stages,
                           const Memory<S>& memory, sums::Sums<S>& sums) {
  const Weights<S> weights(p);
  StageOfWeights<S> coming[S::kDepth];
  HEDDLE_UNROLL
  for (int d = 0; d < S::kDepth; ++d) {
    if (d < stages.count) weights.Load(stages.first + d, coming[d]);
  }
  WaitForPrevious();
  uint32_t a[kTiles][2][4];
  HoldSums(sums[0]);
  HoldSums(sums[1]);
  // Two stages per round: with one, ptxas finds that left matrices of a running product are
  // overwritten at the start of the loop, and makes products wait for each other (C7513).
  for (int first = 0; first < stages.count; first += 2) {
    HEDDLE_UNROLL
    for (int d = 0; d < 2; ++d) {
      const int count = first + d;
      if (count >= stages.count) break;
      const StageOfWeights<S> now = coming[d % S::kDepth];
      const int next = count + S::kDepth;
      if (next < stages.count) weights.Load(stages.first + next, coming[d % S::kDepth]);
      MultiplyStage<S>(p.weight, now, {count}, memory, a, sums);
    }
  }
  WarpgroupWait<0>();
  HoldSums(sums[0]);
  HoldSums(sums[1]);
}

// The rows that a block works on: some of x, or those of a chunk.
template <typename S>
HEDDLE_DEVICE BlockRows RowsOfBlock(const ExpertLinearParams& p) {
  if (p.groups.chunks != nullptr) {
    const ExpertChunk& chunk = p.groups.chunks[BlockX()];
    return {.pairs = p.groups.pairs + chunk.begin,
            .count = chunk.count,
            .pairs_per_row = p.pairs_per_row};
  }
  const int first = BlockX() * S::kXRows;
  const int left = static_cast<int>(p.linear.x.rows) - first;
  return {.first = first, .count = left < S::kXRows ? left : S::kXRows};
}

template <typename S>
HEDDLE_DEVICE void InitBarriers(const Memory<S>& memory) {
  if (ThreadX() == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(memory.barriers, kFull + s, kProducerWarps);
      BarrierInit(memory.barriers, kEmpty + s, kConsumerWarps);
    }
    BarriersInitialised();
  }
  SyncThreads();
}

// BlockX: the rows of x, or the chunk of pairs; blocks beyond the last chunk have no work. BlockY:
// the weight rows, so that blocks that share them are neighbours. BlockZ: the columns.
template <typename S>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) LinearMixedKernel(HEDDLE_PARAMS(MixedParams, params)) {
#if HEDDLE_HAS_SM90A
  const ExpertGroups& groups = params.experts.groups;
  AllowNext();
  if (groups.chunks != nullptr) {
    WaitForPrevious();  // earlier launches determine which weights a block needs
    if (BlockX() >= *groups.n_chunks) return;
  }
  const LinearParams p = groups.chunks == nullptr
                             ? params.experts.linear
                             : ParamsOfExpert(params.experts, groups.chunks[BlockX()].expert);
  const BlockRows rows = RowsOfBlock<S>(params.experts);
  const int all_stages = static_cast<int>((p.weight.cols + S::kCols - 1) / S::kCols);
  const int first_stage = BlockZ() * params.stages;
  const int left = all_stages - first_stage;
  const BlockStages stages = {first_stage, left < params.stages ? left : params.stages};
  const Memory<S> memory{SharedArena()};
  InitBarriers(memory);
  if (ThreadX() >= kConsumerThreads) {
    RegistersDown<40>();
    WaitForPrevious();
    Produce<S>(p, rows, stages, memory);
  } else {
    RegistersUp<232>();
    float sums[kTiles][S::kXRows / 8][4] = {};
    Consume<S>(p, stages, memory, sums);
    const BlockPlace place = {.weights = BlockY(),
                              .tile = BlockY() * GridX() + BlockX(),
                              .part = BlockZ(),
                              .parts = params.splits};
    sums::Store<S>(p, place, rows, sums, memory.arrived);
  }
#endif
}

// Launchers.
template <typename S>
Error LaunchShaped(const MixedParams& params, int chunks, Stream stream) {
  const LinearParams& linear = params.experts.linear;
  const bool gated = linear.epilogue == Epilogue::kGated;
  const int64_t rows =
      params.experts.groups.chunks != nullptr ? params.experts.matrix_rows : linear.weight.rows;
  const LaunchShape shape = {.grid_x = chunks,
                             .grid_y = skinny::BlocksOf<S>(gated ? linear.half : rows, gated),
                             .grid_z = params.splits,
                             .threads = kThreads,
                             .shared_bytes = Memory<S>::kSharedBytes};
  return Launch(LinearMixedKernel<S>, shape, stream, params);
}

// In stages: starting takes some 3 (the first weights and x), adding up some 3.
constexpr sums::SplitCosts kSplitCosts = {.start = 3, .shared = 2, .each = 1};

template <typename S>
Error LaunchDense(const LinearParams& linear, int multiprocessors, Stream stream) {
  const bool gated = linear.epilogue == Epilogue::kGated;
  const int chunks = CeilDiv(linear.x.rows, S::kXRows);
  const int64_t tiles = int64_t{chunks} * skinny::BlocksOf<S>(OutputCols(linear), gated);
  const int stages = CeilDiv(linear.weight.cols, S::kCols);
  const int wanted = sums::PartsOf<S>(linear, tiles, stages, multiprocessors, kSplitCosts);
  MixedParams params;
  params.experts.linear = linear;
  params.stages = CeilDiv(stages, wanted);
  params.splits = CeilDiv(stages, params.stages);
  return LaunchShaped<S>(params, chunks, stream);
}

template <WeightLayout kLayout>
Error LaunchLayout(const LinearParams& linear, int multiprocessors, Stream stream) {
  return linear.x.rows <= 64 ? LaunchDense<Shape<kLayout, 64>>(linear, multiprocessors, stream)
                             : LaunchDense<Shape<kLayout, 128>>(linear, multiprocessors, stream);
}

template <WeightLayout kLayout>
Error LaunchExpertsLayout(const ExpertLinearParams& experts, Stream stream) {
  MixedParams params;
  params.experts = experts;
  const int chunks = experts.groups.max_chunks;
  if (experts.groups.chunk_rows <= 64) {
    params.stages = CeilDiv(experts.linear.weight.cols, Shape<kLayout, 64>::kCols);
    return LaunchShaped<Shape<kLayout, 64>>(params, chunks, stream);
  }
  params.stages = CeilDiv(experts.linear.weight.cols, Shape<kLayout, 128>::kCols);
  return LaunchShaped<Shape<kLayout, 128>>(params, chunks, stream);
}

}  // namespace mixed

// The kernels are in several sources, so that they compile in parallel, by weights: kF8..., kBF16
// (experts); kInt8...; kInt4..., kTable4.
Error LaunchLinearMixedFloat(const LinearParams& params, int multiprocessors, Stream stream);
Error LaunchLinearMixed8(const LinearParams& params, int multiprocessors, Stream stream);
Error LaunchLinearMixed4(const LinearParams& params, int multiprocessors, Stream stream);
Error LaunchExpertMixedFloat(const ExpertLinearParams& params, Stream stream);
Error LaunchExpertMixed8(const ExpertLinearParams& params, Stream stream);
Error LaunchExpertMixed4(const ExpertLinearParams& params, Stream stream);

}  // namespace heddle::kernels::cuda
