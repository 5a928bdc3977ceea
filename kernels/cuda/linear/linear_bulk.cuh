// Matrix product of BF16 weights and more rows than linear_skinny.cuh is for, on sm_90a: weights
// and x come by bulk copies, and both matrices of a warpgroup's instruction are in shared memory.
//
// It is for a prompt of some hundred tokens and for decoding as many sequences, where a library's
// tiles of 128 x 256 leave most multiprocessors without work (Llama 3.1 8B: 48 tiles of q, k and v,
// 32 of the output) or compute on rows that do not exist. A block makes kRows = 256 weight rows
// times all rows of x up to 208, so that weights are read once and x passes through the L2 once for
// every 256 of them; columns are divided among as many blocks as multiprocessors have room for,
// which add up through memory (linear_sums.cuh). Two warpgroups consume, 2 tiles of 64 weight rows
// each; one thread of a third one starts the copies, the first weights before earlier launches have
// ended.
//
// What limits it, per multiprocessor and stage of 64 columns, with 208 rows of x:
//   tensor cores   1664 clocks, 0.98 us at 1.7 GHz (2048 FMA a clock)
//   weights        32 KiB, 1.0 us of 4.3 TB/s / 132
//   from the L2    32 + 26 KiB, 1.1 us at 7 TB/s / 132
//   shared memory  58 KiB in, 8 of A and 26 of B out four times: 1540 clocks of 128 bytes
// With 64 rows of x memory alone decides. In flight: 96 to 160 KiB of weights, where latency asks
// for 23. Registers: 208 sums at 208 rows, of 240 of each consumer's threads. Sources: CUTLASS's
// warp-specialised kernels for the division of work; PTX ISA, "wgmma" and "cp.async.bulk.tensor".
#pragma once

#include "kernels/cuda/linear/linear_sums.cuh"

namespace heddle::kernels::cuda {

struct BulkParams {
  LinearParams linear;
  TensorMap weights;   // boxes of kUnit rows
  TensorMap x;         // boxes of kXRows rows
  int32_t parts = 1;   // parts of the columns, one block each
  int32_t stages = 0;  // per part
};

namespace bulk {

using sums::BlockPlace;
using sums::BlockRows;
using sums::kConsumerThreads;
using sums::kConsumerWarps;
using sums::kTiles;

constexpr int kThreads = kConsumerThreads + kGroupThreads;

template <int kXRowsOf>
struct Shape {
  static constexpr int kXRows = kXRowsOf;  // per block
  static constexpr int kUnit = 64;         // rows of a tile, of a box
  static constexpr int kRows = sums::kRows;
  static constexpr int kCols = kLineElements;  // columns per stage: weights, then x, line by line
  static constexpr int kStage = (kRows + kXRows) * kLineElements;  // elements
  static constexpr int kStageBytes = 2 * kStage;
  static constexpr int kMaxStages = 5, kMaxBytes = 220 << 10;
  static constexpr int kStages =
      kMaxStages * kStageBytes <= kMaxBytes ? kMaxStages : kMaxBytes / kStageBytes;
};

template <typename S>
struct Memory {
  Shared<BFloat16> stages;  // [kStages, kStage]; also used for sums on their way out
  BlockBarriers barriers;
  Shared<int32_t> arrived;  // see sums::Store
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : stages(arena.Take<BFloat16>(S::kStages * S::kStage)),
        barriers(arena.Take<uint64_t>(2 * S::kStages)),
        arrived(arena.Take<int32_t>(sums::Slices<S>())) {}
  static constexpr int kSharedBytes = SharedBytesFor<BFloat16>(S::kStages * S::kStage) +
                                      SharedBytesFor<uint64_t>(2 * S::kStages) +
                                      SharedBytesFor<int32_t>(sums::Slices<S>());
  static_assert(sums::kSliceFloats * 4 <= S::kStages * S::kStageBytes);
};

// Stage `count` of a block: its place, and the parity of its use. Barriers: kFull of all stages,
// then kEmpty.
template <typename S>
struct Turn {
  int count;
  HEDDLE_DEVICE int place() const { return count % S::kStages; }
  HEDDLE_DEVICE uint32_t parity() const { return count / S::kStages & 1; }
  HEDDLE_DEVICE int full() const { return place(); }
  HEDDLE_DEVICE int empty() const { return S::kStages + place(); }
};

// The copies that one thread starts.
template <typename S>
class Producer {
 public:
  HEDDLE_DEVICE Producer(const BulkParams& params, const BlockPlace& place, int first_x_row,
                         const Memory<S>& memory)
      : params_(params),
        memory_(memory),
        first_stage_(place.part * params.stages),
        first_x_row_(first_x_row),
        weights_(place.weights) {}

  HEDDLE_DEVICE void CopyWeights(const Turn<S>& turn) const {
    const LinearParams& p = params_.linear;
    const bool gated = p.epilogue == Epilogue::kGated;
    BarrierArriveExpecting(memory_.barriers, turn.full(), S::kStageBytes);
    HEDDLE_UNROLL
    for (int i = 0; i < S::kRows / S::kUnit; ++i) {
      const int row =
          gated ? (weights_ * S::kRows / 2) + i / 2 * S::kUnit + i % 2 * static_cast<int>(p.half)
                : weights_ * S::kRows + i * S::kUnit;
      Copy(turn, i * S::kUnit, params_.weights, row);
    }
  }
  HEDDLE_DEVICE void CopyX(const Turn<S>& turn) const {
    Copy(turn, S::kRows, params_.x, first_x_row_);
  }

 private:
  // Copies to line `line` of the stage. Rows outside of the matrix become zeros.
  HEDDLE_DEVICE void Copy(const Turn<S>& turn, int line, const TensorMap& map, int row) const {
    CopyTile(memory_.stages, turn.place() * S::kStage + line * kLineElements, map,
             (first_stage_ + turn.count) * S::kCols, row, memory_.barriers, turn.full());
  }

  const BulkParams& params_;
  const Memory<S>& memory_;
  int first_stage_, first_x_row_, weights_;
};

// Run by one warp.
template <typename S>
HEDDLE_DEVICE void Produce(const Producer<S>& producer, int stages, bool reads_ahead,
                           const Memory<S>& memory) {
  const bool copies = Lane() == 0;
  if (!reads_ahead) WaitForPrevious();
  const int ahead = stages < S::kStages ? stages : S::kStages;
  for (Turn<S> turn = {0}; copies && turn.count < ahead; ++turn.count) producer.CopyWeights(turn);
  WaitForPrevious();
  if (!copies) return;
  for (Turn<S> turn = {0}; turn.count < ahead; ++turn.count) producer.CopyX(turn);
  for (Turn<S> turn = {ahead}; turn.count < stages; ++turn.count) {
    BarrierWait(memory.barriers, turn.empty(), turn.parity() ^ 1);
    producer.CopyWeights(turn);
    producer.CopyX(turn);
  }
}

// Adds weights x^T of this warpgroup's tiles to the sums. A stage is released when the products of
// the next one have been started.
template <typename S>
HEDDLE_DEVICE void Consume(int stages, const Memory<S>& memory, sums::Sums<S>& sums) {
  const int tiles = WarpIndex() / 4 * kTiles * S::kUnit * kLineElements;
  const auto leave = [&](const Turn<S>& turn) {
    SyncWarp();
    if (Lane() == 0) BarrierArrive(memory.barriers, turn.empty());
  };
  HoldSums(sums[0]);
  HoldSums(sums[1]);
  for (Turn<S> turn = {0}; turn.count < stages; ++turn.count) {
    BarrierWait(memory.barriers, turn.full(), turn.parity());
    const int stage = turn.place() * S::kStage;
    const uint32_t w = AddressOf(memory.stages, stage + tiles);
    const uint32_t x = AddressOf(memory.stages, stage + S::kRows * kLineElements);
    WarpgroupFence();
    HEDDLE_UNROLL
    for (int k = 0; k < S::kCols / 16; ++k) {
      HEDDLE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        WarpgroupMma(sums[tile],
                     MatrixDescriptor(w + tile * (S::kUnit * 128) + 32 * k, 0, kPatternBytes),
                     MatrixDescriptor(x + 32 * k, 0, kPatternBytes), true, BFloat16());
      }
    }
    WarpgroupCommit();
    WarpgroupWait<1>();
    if (turn.count > 0) leave({turn.count - 1});
  }
  WarpgroupWait<0>();
  HoldSums(sums[0]);
  HoldSums(sums[1]);
}

template <typename S>
HEDDLE_DEVICE void InitBarriers(const BulkParams& params, const Memory<S>& memory) {
  if (ThreadX() == 0) {
    PrefetchTensorMap(params.weights);
    PrefetchTensorMap(params.x);
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(memory.barriers, Turn<S>{s}.full(), 1);
      BarrierInit(memory.barriers, Turn<S>{s}.empty(), kConsumerWarps);
    }
    BarriersInitialised();
  }
  SyncThreads();
}

// BlockX: the rows of x, so that blocks that share weights are neighbours. BlockY: the weight rows.
// BlockZ: the columns.
template <typename S>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) LinearBulkKernel(HEDDLE_PARAMS(BulkParams, params)) {
#if HEDDLE_HAS_SM90A
  AllowNext();
  const LinearParams& p = params.linear;
  const int first = BlockX() * S::kXRows;
  const int left = static_cast<int>(p.x.rows) - first;
  const BlockRows rows = {.first = first, .count = left < S::kXRows ? left : S::kXRows};
  const BlockPlace place = {.weights = BlockY(),
                            .tile = BlockY() * GridX() + BlockX(),
                            .part = BlockZ(),
                            .parts = params.parts};
  const int all = static_cast<int>((p.weight.cols + S::kCols - 1) / S::kCols);
  const int rest = all - place.part * params.stages;
  const int stages = rest < params.stages ? rest : params.stages;
  const Memory<S> memory{SharedArena()};
  InitBarriers(params, memory);
  if (WarpIndex() >= kConsumerWarps) {
    RegistersDown<24>();
    if (WarpIndex() > kConsumerWarps) return WaitForPrevious();
    Produce<S>({params, place, first, memory}, stages, p.reads_ahead, memory);
  } else {
    RegistersUp<240>();
    WaitForPrevious();
    float sums[kTiles][S::kXRows / 8][4] = {};
    Consume<S>(stages, memory, sums);
    sums::Store<S>(p, place, rows, sums, memory.arrived);
  }
#endif
}

}  // namespace bulk
}  // namespace heddle::kernels::cuda
