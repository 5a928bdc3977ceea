// Matrix product of BF16 weights, or of FP8 weights and rows of x in FP8, and more rows than
// linear_skinny.cuh is for, on sm_90a: weights and x come by bulk copies, and both matrices of a
// warpgroup's instruction are in shared memory.
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
// Limits of the kernel, per multiprocessor and stage of 128 bytes of a row (64 columns of BF16, 128
// of FP8, whose instructions take half as long a column), with 208 rows of x:
//   tensor cores   1664 clocks, 0.98 us at 1.7 GHz (2048 FMA a clock)
//   weights        32 KiB, 1.0 us of 4.3 TB/s / 132
//   from the L2    32 + 26 KiB, 1.1 us at 7 TB/s / 132
//   shared memory  58 KiB in, 8 of A and 26 of B out four times: 1540 clocks of 128 bytes
// With 64 rows of x memory alone decides. In flight: 96 to 160 KiB of weights, where latency asks
// for 23. Registers: 208 sums at 208 rows, of 240 of each consumer's threads.
//
// FP8: one scale for a row of either side is applied to the finished sum. Where scales are of 128
// rows and columns (kF8Block), sums of a stage, which is as many columns, are multiplied by both
// scales and added up in F32: 96 rows of x at most have registers for both. One warpgroup scales
// while the other one multiplies: 250 clocks of 768.
// Sources: CUTLASS's warp-specialised kernels for the division of work; DeepSeek-AI 2024 for sums
// continued in F32; PTX ISA, "wgmma" and "cp.async.bulk.tensor".
#pragma once

#include "kernels/cuda/linear/linear_sums.cuh"

namespace heddle::kernels::cuda {

struct BulkParams {
  LinearParams linear;
  TensorMap weights;   // boxes of kUnit rows
  TensorMap x;         // boxes of kXRows rows
  int32_t parts = 1;   // parts of the columns, one block each
  int32_t stages = 0;  // per part
  // kF8Block: those of x, as in CodeRows.
  const float* x_scales = nullptr;
  int64_t x_scales_stride = 0;
};

namespace bulk {

using sums::BlockPlace;
using sums::BlockRows;
using sums::kConsumerThreads;
using sums::kConsumerWarps;
using sums::kTiles;

constexpr int kThreads = kConsumerThreads + kGroupThreads;
constexpr int kLineBytes = 2 * kLineElements;

// The type of both matrices.
template <WeightLayout kLayout>
struct ElementOf {
  using Type = Float8;
};
template <>
struct ElementOf<WeightLayout::kBF16> {
  using Type = BFloat16;
};

// kOfExperts: for linear_bulk_experts.cuh.
template <int kXRowsOf, WeightLayout kLayout, bool kOfExpertsOf = false>
struct Shape {
  static constexpr bool kOfExperts = kOfExpertsOf;
  using Element = typename ElementOf<kLayout>::Type;
  static constexpr bool kScalesX = kLayout == WeightLayout::kF8Row;
  static constexpr bool kIsTiled = kLayout == WeightLayout::kF8Block;
  static constexpr int kXRows = kXRowsOf;  // per block
  static constexpr int kUnit = 64;         // rows of a tile, of a box
  static constexpr int kRows = sums::kRows;
  static constexpr int kLine = kLineBytes / static_cast<int>(sizeof(Element));  // elements
  static constexpr int kCols = kLine;  // columns per stage: weights, then x, line by line
  static constexpr int kStage = (kRows + kXRows) * kLine;  // elements
  static constexpr int kStageBytes = kLineBytes * (kRows + kXRows);
  static_assert(!kIsTiled || kCols == kScaleTile);
  static constexpr int kMaxStages = 5, kMaxBytes = (kOfExperts ? 187 : 220) << 10;
  static constexpr int kStages =
      kMaxStages * kStageBytes <= kMaxBytes ? kMaxStages : kMaxBytes / kStageBytes;
};

template <typename S>
struct Memory {
  Shared<typename S::Element> stages;  // [kStages, kStage]; also for sums on their way out
  BlockBarriers barriers;
  Shared<int32_t> arrived;  // see sums::Store
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : stages(arena.Take<typename S::Element>(S::kStages * S::kStage)),
        barriers(arena.Take<uint64_t>(2 * S::kStages)),
        arrived(arena.Take<int32_t>(sums::Slices<S>())) {}
  static constexpr int kSharedBytes = SharedBytesFor<typename S::Element>(S::kStages * S::kStage) +
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

// The first weight row of unit `unit` of the block's, in its matrix; kGated: gate and up rows take
// turns.
template <typename S>
HEDDLE_DEVICE int FirstRowOfUnit(const LinearParams& p, int weights, int unit) {
  if (p.epilogue != Epilogue::kGated) return weights * S::kRows + unit * S::kUnit;
  return weights * (S::kRows / 2) + unit / 2 * S::kUnit + unit % 2 * static_cast<int>(p.half);
}

// The copies that one thread starts. `first_stage`: that of turn 0 among those of the columns;
// `matrix`: the first weight row of the matrix.
template <typename S>
class Producer {
 public:
  HEDDLE_DEVICE Producer(const BulkParams& params, int weights, int first_stage, int first_x_row,
                         const Memory<S>& memory, int matrix = 0)
      : params_(params),
        memory_(memory),
        first_stage_(first_stage),
        first_x_row_(first_x_row),
        weights_(weights),
        matrix_(matrix) {}

  HEDDLE_DEVICE void CopyWeights(const Turn<S>& turn) const {
    BarrierArriveExpecting(memory_.barriers, turn.full(), S::kStageBytes);
    HEDDLE_UNROLL
    for (int i = 0; i < S::kRows / S::kUnit; ++i) {
      Copy(turn, i * S::kUnit, params_.weights,
           matrix_ + FirstRowOfUnit<S>(params_.linear, weights_, i));
    }
  }
  HEDDLE_DEVICE void CopyX(const Turn<S>& turn) const {
    Copy(turn, S::kRows, params_.x, first_x_row_);
  }

 private:
  // Copies to line `line` of the stage. Rows outside of the matrix become zeros.
  HEDDLE_DEVICE void Copy(const Turn<S>& turn, int line, const TensorMap& map, int row) const {
    CopyTile(memory_.stages, turn.place() * S::kStage + line * S::kLine, map,
             (first_stage_ + turn.count) * S::kCols, row, memory_.barriers, turn.full());
  }

  const BulkParams& params_;
  const Memory<S>& memory_;
  int first_stage_, first_x_row_, weights_, matrix_;
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

// Reports that this warp no longer reads the stage.
template <typename S>
HEDDLE_DEVICE void LeaveStage(const Memory<S>& memory, const Turn<S>& turn) {
  SyncWarp();
  if (Lane() == 0) BarrierArrive(memory.barriers, turn.empty());
}

// Starts sums = weights x^T, or with `adds` sums += it, of tile `tile` of this warpgroup, over the
// stage.
template <typename S>
HEDDLE_DEVICE void MultiplyTile(const Memory<S>& memory, const Turn<S>& turn, int tile, bool adds,
                                float (&sums)[S::kXRows / 8][4]) {
  const int stage = turn.place() * S::kStage;
  const int row = (WarpIndex() / 4 * kTiles + tile) * S::kUnit;
  const uint32_t w = AddressOf(memory.stages, stage + row * S::kLine);
  const uint32_t x = AddressOf(memory.stages, stage + S::kRows * S::kLine);
  HEDDLE_UNROLL
  for (int k = 0; k < kLineBytes / 32; ++k) {
    WarpgroupMma(sums, MatrixDescriptor(w + 32 * k, 0, kPatternBytes),
                 MatrixDescriptor(x + 32 * k, 0, kPatternBytes), adds || k > 0,
                 typename S::Element());
  }
}

// Adds weights x^T of this warpgroup's tiles to the sums, for turns from `first` on. A stage is
// released when the products of the next one have been started.
template <typename S>
HEDDLE_DEVICE void Consume(int first, int stages, const Memory<S>& memory, sums::Sums<S>& sums) {
  HoldSums(sums[0]);
  HoldSums(sums[1]);
  for (Turn<S> turn = {first}; turn.count < first + stages; ++turn.count) {
    BarrierWait(memory.barriers, turn.full(), turn.parity());
    WarpgroupFence();
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) MultiplyTile<S>(memory, turn, tile, true, sums[tile]);
    WarpgroupCommit();
    WarpgroupWait<1>();
    if (turn.count > first) LeaveStage<S>(memory, {turn.count - 1});
  }
  WarpgroupWait<0>();
  if constexpr (S::kOfExperts) LeaveStage<S>(memory, {first + stages - 1});
  HoldSums(sums[0]);
  HoldSums(sums[1]);
}

// The scales of kF8Block that a thread needs for a stage: those of its weight rows g and g + 8 in
// each tile, and of its rows of x, 8n + 2t and the next.
template <typename S>
class ScalesOfStage {
 public:
  // `linear`: that of the block's matrix.
  HEDDLE_DEVICE ScalesOfStage(const BulkParams& params, const LinearParams& linear,
                              const BlockPlace& place, int first_x_row)
      : params_(params),
        tile_scales_(linear.weight.tile_scales),
        first_tile_(place.part * params.stages),
        x_row_(first_x_row + 2 * (Lane() % 4)) {
    const DeviceWeight& weight = linear.weight;
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int unit = FirstRowOfUnit<S>(linear, place.weights, WarpIndex() / 4 * kTiles + tile);
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = unit + WarpIndex() % 4 * 16 + Lane() / 4 + 8 * h;
        const int last = static_cast<int>(weight.rows) - 1;
        tiles_[tile][h] = (row < last ? row : last) / static_cast<int>(kScaleTile) *
                          static_cast<int>(weight.tiles_stride);
      }
    }
  }
  HEDDLE_DEVICE void Load(int stage) {
    const float* weights = tile_scales_ + first_tile_ + stage;
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) of_row[tile][h] = weights[tiles_[tile][h]];
    }
    const float* x = params_.x_scales + (first_tile_ + stage) * params_.x_scales_stride;
    HEDDLE_UNROLL
    for (int n = 0; n < S::kXRows / 8; ++n) {
      const int row = x_row_ + 8 * n;
      of_x[n] = {};
      if (row >= params_.linear.x.rows) continue;
      if constexpr (S::kOfExperts) {
        // Chunks begin anywhere, and the last row's scale is the last of its tile.
        of_x[n] = {{x[row], row + 1 < params_.linear.x.rows ? x[row + 1] : 0.0f}};
      } else {
        of_x[n] = LoadGroup<2>(x + row);
      }
    }
  }

  float of_row[kTiles][2];
  Group<float, 2> of_x[S::kXRows / 8];

 private:
  const BulkParams& params_;
  const float* tile_scales_;
  int tiles_[kTiles][2];  // indices of the first tile of the rows' scales
  int first_tile_, x_row_;
};

// Adds a tile's products of a stage, multiplied by the scales.
template <typename S>
HEDDLE_DEVICE void AddScaled(const ScalesOfStage<S>& scales, const float (&of_row)[2],
                             float (&products)[S::kXRows / 8][4], float (&sums)[S::kXRows / 8][4]) {
  HoldSums(products);
  HEDDLE_UNROLL
  for (int n = 0; n < S::kXRows / 8; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      sums[n][e] += products[n][e] * (of_row[e / 2] * scales.of_x[n].item[e % 2]);
    }
  }
}

// Consume where each stage has scales of its own.
template <typename S>
HEDDLE_DEVICE void ConsumeScaled(int first, int stages, const Memory<S>& memory,
                                 ScalesOfStage<S> scales, sums::Sums<S>& sums) {
  float products[kTiles][S::kXRows / 8][4] = {};
  for (Turn<S> turn = {first}; turn.count < first + stages; ++turn.count) {
    scales.Load(turn.count - first);
    BarrierWait(memory.barriers, turn.full(), turn.parity());
    WarpgroupFence();
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      MultiplyTile<S>(memory, turn, tile, false, products[tile]);
      WarpgroupCommit();
    }
    WarpgroupWait<1>();
    AddScaled<S>(scales, scales.of_row[0], products[0], sums[0]);
    WarpgroupWait<0>();
    LeaveStage<S>(memory, turn);
    AddScaled<S>(scales, scales.of_row[1], products[1], sums[1]);
  }
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
    const Producer<S> producer(params, place.weights, place.part * params.stages, first, memory);
    Produce<S>(producer, stages, p.reads_ahead, memory);
  } else {
    RegistersUp<240>();
    WaitForPrevious();
    float sums[kTiles][S::kXRows / 8][4] = {};
    if constexpr (S::kIsTiled) {
      ConsumeScaled<S>(0, stages, memory, {params, p, place, first}, sums);
    } else {
      Consume<S>(0, stages, memory, sums);
    }
    sums::Store<S>(p, place, rows, sums, memory.arrived);
  }
#endif
}

}  // namespace bulk
}  // namespace heddle::kernels::cuda
