// Products of a mixture's experts, many rows for each, in FP8 on sm_90a: linear_bulk.cuh's stages
// and instructions for the pairs that chose an expert, whose rows of x have become codes in the
// order of the experts (rows/quantize.cu), so that a chunk's rows are one box of a bulk copy.
//
// Tiles are short: 16 stages of 128 columns for 2,048 of them, 6 for 768, each some 0.5 us, where
// starting a block takes 2 us and storing its outputs 1.5. So there are as many blocks as
// multiprocessors, each takes every GridX()-th tile, and the producer copies the next tile's first
// stages while the consumers store the last one's outputs, which therefore pass through memory of
// their own (33 KiB; 4 stages of up to 96 rows are left, 3 of 128). Tiles that share rows of x
// follow each other, then those that share an expert's weights: 132 of them at once are some 7
// experts of 1,536 rows, so that what is read twice is in the L2.
//
// Rows of a chunk's box beyond its pairs are those of the next expert: multiplied and not stored.
// Source: persistent tile loops of warp-specialised kernels: CUTLASS; grouped FP8 products:
// DeepGEMM.
#pragma once

#include "kernels/cuda/linear/expert_matrix.cuh"
#include "kernels/cuda/linear/linear_bulk.cuh"

namespace heddle::kernels::cuda {

struct ExpertBulkParams {
  BulkParams bulk;  // linear: all matrices, x.rows the pairs; weights, x and stages
  ExpertGroups groups;
  int64_t matrix_rows = 0;
  int32_t weight_tiles = 0;  // of one matrix
};

namespace bulk {

// Sums pass through the first part, where sums::StoreSlice expects memory; patterns of stages begin
// at multiples of 1024 bytes.
constexpr int kSliceRoom = 33 << 10;
static_assert(sums::kSliceFloats * 4 <= kSliceRoom);

template <typename S>
struct ExpertMemory {
  Shared<float> slice;
  Memory<S> stages;
  HEDDLE_DEVICE explicit ExpertMemory(SharedArena arena)
      : slice(arena.Take<float>(kSliceRoom / 4)), stages(arena) {}
  static constexpr int kSharedBytes = kSliceRoom + Memory<S>::kSharedBytes;
};

// One tile of a block's: a chunk, and its weight rows in steps of kRows.
struct ExpertTile {
  ExpertChunk chunk;
  int weights;
  HEDDLE_DEVICE ExpertTile(const ExpertBulkParams& params, int tile)
      : chunk(params.groups.chunks[tile / params.weight_tiles]),
        weights(tile % params.weight_tiles) {}
};

HEDDLE_DEVICE int TilesOf(const ExpertBulkParams& params) {
  return *params.groups.n_chunks * params.weight_tiles;
}

// Run by one thread.
template <typename S>
HEDDLE_DEVICE void ProduceTiles(const ExpertBulkParams& params, const Memory<S>& memory) {
  const int stages = params.bulk.stages, tiles = TilesOf(params);
  int done = 0;
  for (int i = BlockX(); i < tiles; i += GridX(), done += stages) {
    const ExpertTile tile(params, i);
    const Producer<S> producer(params.bulk, tile.weights, -done, tile.chunk.begin, memory,
                               tile.chunk.expert * static_cast<int>(params.matrix_rows));
    for (Turn<S> turn = {done}; turn.count < done + stages; ++turn.count) {
      BarrierWait(memory.barriers, turn.empty(), turn.parity() ^ 1);
      producer.CopyWeights(turn);
      producer.CopyX(turn);
    }
  }
}

template <typename S>
HEDDLE_DEVICE void ConsumeTiles(const ExpertBulkParams& params, const Memory<S>& memory) {
  const ExpertLinearParams stack = {.linear = params.bulk.linear,
                                    .matrix_rows = params.matrix_rows};
  const int stages = params.bulk.stages, tiles = TilesOf(params);
  int done = 0;
  HEDDLE_UNROLL_BY(1)
  for (int i = BlockX(); i < tiles; i += GridX(), done += stages) {
    const ExpertTile tile(params, i);
    const LinearParams p = ParamsOfExpert(stack, tile.chunk.expert);
    const BlockRows rows = {.pairs = params.groups.pairs + tile.chunk.begin,
                            .first = tile.chunk.begin,
                            .count = tile.chunk.count};
    const BlockPlace place = {.weights = tile.weights, .tile = i};
    float sums[kTiles][S::kXRows / 8][4] = {};
    if constexpr (S::kIsTiled) {
      ConsumeScaled<S>(done, stages, memory, {params.bulk, p, place, rows.first}, sums);
    } else {
      Consume<S>(done, stages, memory, sums);
    }
    sums::Store<S>(p, place, rows, sums, memory.arrived);
  }
}

template <typename S>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) ExpertBulkKernel(HEDDLE_PARAMS(ExpertBulkParams, params)) {
#if HEDDLE_HAS_SM90A
  AllowNext();
  const ExpertMemory<S> memory{SharedArena()};
  InitBarriers(params.bulk, memory.stages);
  if (WarpIndex() >= kConsumerWarps) {
    RegistersDown<40>();
    WaitForPrevious();  // earlier launches determine which weights a block needs
    if (WarpIndex() == kConsumerWarps && Lane() == 0) ProduceTiles<S>(params, memory.stages);
  } else {
    RegistersUp<232>();
    WaitForPrevious();
    ConsumeTiles<S>(params, memory.stages);
  }
#endif
}

}  // namespace bulk
}  // namespace heddle::kernels::cuda
