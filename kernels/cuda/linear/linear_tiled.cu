// Matrix product for many rows: BF16 tiles through shared memory onto matrix instructions.
//
// A block makes 128 rows of x times 128 weight rows, 32 columns at a time, with two stages in
// flight behind the one being computed. Its 8 warps form a 2 x 4 grid, each 64 x 32 outputs: 64
// sums per lane. Tiles are padded to 40 columns (5 units of 16 bytes, an odd number), so that
// matrix loads have no bank conflicts. The finished tile goes through shared memory once more, so
// that the epilogue sees gate and up together and stores neighbouring columns from neighbouring
// lanes.
//
// The matrices of heads (HeadLinear) are the same with a matrix for each BlockZ. They are small,
// 128 columns or rows on one side and 512 on the other, so that rows in and out take longer than
// products: 16 heads of 512 outputs for 4096 rows are 25 MB in and 75 out, 23 us at 4.3 TB/s, and
// 17 GFLOP. So a thread stores 8 columns of a finished tile at once. Transposed, a stage has 32
// rows of the matrix and 128 of its columns, which matrix loads turn.
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kTile = 128;  // rows of x, and weight rows
constexpr int kDepth = 32;  // columns per stage
constexpr int kStride = kDepth + 8;
constexpr int kStages = 3;
constexpr int kStage = kTile * kStride;
constexpr int kTurnedStride = kTile + 8;  // 17 units of 16 bytes
static_assert(kDepth * kTurnedStride <= kStage);
constexpr int kThreads = 256;
constexpr int kOutStride = kTile + 8;  // floats: pairs of four rows meet in no bank twice
constexpr int kSharedBytes = SharedBytesFor<uint16_t>(kStages * kStage) * 2 >
                                     SharedBytesFor<float>(kTile* kOutStride)
                                 ? SharedBytesFor<uint16_t>(kStages* kStage) * 2
                                 : SharedBytesFor<float>(kTile* kOutStride);

struct Tiles {
  Shared<BFloat16> x;  // [kStages, kTile, kStride]
  Shared<BFloat16> w;
  HEDDLE_DEVICE explicit Tiles(SharedArena arena)
      : x(arena.Take<BFloat16>(kStages * kStage)), w(arena.Take<BFloat16>(kStages * kStage)) {}
};

HEDDLE_DEVICE int TileCols(const LinearParams& p) {  // output columns of a block
  return p.epilogue == Epilogue::kGated ? kTile / 2 : kTile;
}

// The weight row at place i of the block's tile, or -1. Gated tiles hold 64 gate rows, then their
// up rows.
HEDDLE_DEVICE int64_t WeightRow(const LinearParams& p, int i) {
  const int cols = TileCols(p);
  const int64_t r = static_cast<int64_t>(BlockX()) * cols + i % cols;
  return r < OutputCols(p) ? r + i / cols * p.half : -1;
}

// The part of a stage whose weights are transposed: rows `step` * kDepth on of the matrix.
HEDDLE_DEVICE void LoadTurned(const LinearParams& p, const Tiles& tiles, int stage, int step) {
  constexpr int kUnits = kTile / 8;
  const int c = ThreadX() % kUnits * 8;
  const int r = BlockX() * kTile + c;
  HEDDLE_UNROLL
  for (int row = ThreadX() / kUnits; row < kDepth; row += kThreads / kUnits) {
    const int k = step * kDepth + row;
    const bool there = k < static_cast<int>(p.weight.rows) && r < static_cast<int>(p.weight.cols);
    CopyAsync16(tiles.w, stage * kStage + row * kTurnedStride + c,
                p.weight.data + (there ? k * static_cast<int>(p.weight.row_bytes) + 2 * r : 0),
                there);
  }
}

template <bool kTransposed>
HEDDLE_DEVICE void LoadStage(const LinearParams& p, const Tiles& tiles, int stage, int step) {
  HEDDLE_UNROLL
  for (int i = ThreadX(); i < kTile * kDepth / 8; i += kThreads) {
    const int row = i / (kDepth / 8);
    const int c = i % (kDepth / 8) * 8;
    const int64_t k = static_cast<int64_t>(step) * kDepth + c;
    const int to = stage * kStage + row * kStride + c;
    const int64_t t = static_cast<int64_t>(BlockY()) * kTile + row;
    const bool x_there = t < p.x.rows && k < p.x.cols;
    CopyAsync16(tiles.x, to, x_there ? p.x.row<BFloat16>(t) + k : p.x.row<BFloat16>(0), x_there);
    if constexpr (!kTransposed) {
      const int64_t r = WeightRow(p, row);
      const uint8_t* w = p.weight.data + (r < 0 ? 0 : r * p.weight.row_bytes + 2 * k);
      CopyAsync16(tiles.w, to, w, r >= 0);
    }
  }
  if constexpr (kTransposed) LoadTurned(p, tiles, stage, step);
  CopyAsyncCommit();
}

// Multiplies one stage's part of this warp's 64 x 32 outputs.
template <bool kTransposed>
HEDDLE_DEVICE void Multiply(const Tiles& tiles, int stage, float (&sums)[4][4][4]) {
  const int lane = Lane();
  const int warp_t = WarpIndex() / 4 * 64;
  const int warp_r = WarpIndex() % 4 * 32;
  const int x_at = stage * kStage + (warp_t + lane % 16) * kStride + lane / 16 * 8;
  const int w_row = lane / 16 * 8, w_depth = lane / 8 % 2 * 8;
  const int w_at =
      stage * kStage + (kTransposed ? (w_depth + lane % 8) * kTurnedStride + warp_r + w_row
                                    : (warp_r + w_row + lane % 8) * kStride + w_depth);
  HEDDLE_UNROLL
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t a[4][4], b[2][4];
    HEDDLE_UNROLL
    for (int m = 0; m < 4; ++m) LoadMatrix4(a[m], tiles.x, x_at + m * 16 * kStride + k);
    HEDDLE_UNROLL
    for (int n = 0; n < 2; ++n) {
      if constexpr (kTransposed) {
        LoadMatrix4Transposed(b[n], tiles.w, w_at + k * kTurnedStride + n * 16);
      } else {
        LoadMatrix4(b[n], tiles.w, w_at + n * 16 * kStride + k);
      }
    }
    HEDDLE_UNROLL
    for (int m = 0; m < 4; ++m) {
      HEDDLE_UNROLL
      for (int n = 0; n < 4; ++n) {
        Mma16816(sums[m][n], a[m], {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]}, BFloat16());
      }
    }
  }
}

// Leaves the sums where all threads find them: [kTile, kOutStride]. REQUIRES: no thread reads the
// tiles any more.
HEDDLE_DEVICE Shared<float> LeaveSums(const float (&sums)[4][4][4]) {
  SharedArena arena;
  const Shared<float> out = arena.Take<float>(kTile * kOutStride);  // in the memory of the tiles
  const int row = WarpIndex() / 4 * 64 + Lane() / 4;
  const int col = WarpIndex() % 4 * 32 + 2 * (Lane() % 4);
  HEDDLE_UNROLL
  for (int m = 0; m < 4; ++m) {
    HEDDLE_UNROLL
    for (int n = 0; n < 4; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        out.Set((row + m * 16 + e / 2 * 8) * kOutStride + col + n * 8 + e % 2, sums[m][n][e]);
      }
    }
  }
  SyncThreads();
  return out;
}

HEDDLE_DEVICE void StoreTile(const LinearParams& p, Shared<float> out) {
  const int cols = TileCols(p);
  for (int i = ThreadX(); i < kTile * cols; i += kThreads) {
    const int64_t t = static_cast<int64_t>(BlockY()) * kTile + i / cols;
    const int64_t r = static_cast<int64_t>(BlockX()) * cols + i % cols;
    if (t >= p.x.rows || r >= OutputCols(p)) continue;
    const int at = i / cols * kOutStride + i % cols;
    const float up = p.epilogue == Epilogue::kGated ? out.Get(at + cols) : 0.0f;
    StoreOutput<BFloat16>(p, t, r, out.Get(at), up);
  }
}

// The block's products, after which no thread reads the tiles any more.
template <bool kTransposed>
HEDDLE_DEVICE void MultiplyTile(const LinearParams& p, float (&sums)[4][4][4]) {
  const Tiles tiles{SharedArena()};
  const int64_t depth = kTransposed ? p.weight.rows : p.weight.cols;
  const int steps = static_cast<int>((depth + kDepth - 1) / kDepth);
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) {
      LoadStage<kTransposed>(p, tiles, s, s);
    } else {
      CopyAsyncCommit();  // keeps the count of groups
    }
  }
  for (int step = 0; step < steps; ++step) {
    CopyAsyncWait<kStages - 2>();
    SyncThreads();  // this stage has arrived, and the one read last is free
    const int next = step + kStages - 1;
    if (next < steps) {
      LoadStage<kTransposed>(p, tiles, next % kStages, next);
    } else {
      CopyAsyncCommit();
    }
    Multiply<kTransposed>(tiles, step % kStages, sums);
  }
  SyncThreads();
}

HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 2) LinearTiledKernel(HEDDLE_PARAMS(LinearParams, p)) {
  StartInTurn();
  float sums[4][4][4] = {};
  MultiplyTile<false>(p, sums);
  StoreTile(p, LeaveSums(sums));
}

constexpr int kWide = 8;  // columns of 16 bytes

struct HeadParams {
  LinearParams linear;  // of the first head, without its carried columns
  int64_t x_step, out_step;
  int carried;
  bool stores_wide;  // 16 bytes at a time, all columns that a head has
};

HEDDLE_DEVICE LinearParams OfHead(const HeadParams& p, int64_t h) {
  LinearParams own = p.linear;
  own.weight.data += h * own.weight.rows * own.weight.row_bytes;
  own.x.data = own.x.row<BFloat16>(0) + h * p.x_step;
  own.out.data = own.out.row<BFloat16>(0) + h * p.out_step;
  return own;
}

// Copies columns of x behind those that are multiplied to the front of the output.
template <int kWidth>
HEDDLE_DEVICE void CarryColumns(const LinearParams& own, int carried) {
  const int units = carried / kWidth;
  for (int i = ThreadX(); i < kTile * units; i += kThreads) {
    const int64_t t = static_cast<int64_t>(BlockY()) * kTile + i / units;
    if (t >= own.x.rows) return;
    const int c = i % units * kWidth;
    StoreGroup(own.out.row<BFloat16>(t) - carried + c,
               LoadGroup<kWidth>(own.x.row<BFloat16>(t) + own.x.cols + c));
  }
}

// `outputs`: of a head.
HEDDLE_DEVICE void StoreHeadTile(const LinearParams& own, int64_t outputs, Shared<float> sums) {
  constexpr int kUnits = kTile / kWide;
  HEDDLE_UNROLL_BY(2)
  for (int i = ThreadX(); i < kTile * kUnits; i += kThreads) {
    const int64_t t = static_cast<int64_t>(BlockY()) * kTile + i / kUnits;
    const int64_t r = static_cast<int64_t>(BlockX()) * kTile + i % kUnits * kWide;
    if (t >= own.x.rows || r >= outputs) continue;
    const int at = i / kUnits * kOutStride + i % kUnits * kWide;
    Group<BFloat16, kWide> unit;
    HEDDLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto four = sums.GetAs<Group<float, 4>>(at + 4 * half);
      HEDDLE_UNROLL
      for (int j = 0; j < 4; ++j) unit.item[4 * half + j] = RoundTo(four.item[j], BFloat16());
    }
    StoreGroup(own.out.row<BFloat16>(t) + r, unit);
  }
}

HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 2) HeadsTiledKernel(HEDDLE_PARAMS(HeadParams, p)) {
  StartInTurn();
  const LinearParams own = OfHead(p, BlockZ());
  float sums[4][4][4] = {};
  MultiplyTile<false>(own, sums);
  const Shared<float> out = LeaveSums(sums);
  if (!p.stores_wide) {
    if (BlockX() == 0) CarryColumns<1>(own, p.carried);
    return StoreTile(own, out);
  }
  if (BlockX() == 0) CarryColumns<kWide>(own, p.carried);
  StoreHeadTile(own, own.weight.rows, out);
}

// REQUIRES: p.stores_wide.
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 2) HeadsTurnedKernel(HEDDLE_PARAMS(HeadParams, p)) {
  StartInTurn();
  const LinearParams own = OfHead(p, BlockZ());
  float sums[4][4][4] = {};
  MultiplyTile<true>(own, sums);
  const Shared<float> out = LeaveSums(sums);
  if (BlockX() == 0) CarryColumns<kWide>(own, p.carried);
  StoreHeadTile(own, own.weight.cols, out);
}

// Whether 16 bytes can be moved at once from where `carried` columns of the output begin, and from
// where all others do.
bool StoresWide(const HeadLinearArgs& args) {
  return reinterpret_cast<uintptr_t>(args.out.data) % 16 == 0 && args.out.stride % kWide == 0 &&
         args.out_step % kWide == 0 && args.carried % kWide == 0 && args.heads->rows % kWide == 0;
}

HeadParams ParamsOfHeads(const HeadLinearArgs& args, const DeviceWeight& heads) {
  HeadParams params = {.x_step = args.x_step,
                       .out_step = args.out_step,
                       .carried = static_cast<int>(args.carried),
                       .stores_wide = StoresWide(args)};
  LinearParams& linear = params.linear;
  linear.weight = heads;
  linear.weight.rows = args.heads->rows;
  linear.x = args.x;
  linear.x.cols = heads.cols;
  linear.out = args.out;
  linear.out.data = args.out.row<uint16_t>(0) + args.carried;
  return params;
}

}  // namespace

Error LaunchLinearTiled(const LinearParams& params, Stream stream) {
  const int cols = params.epilogue == Epilogue::kGated ? kTile / 2 : kTile;
  const LaunchShape shape = {.grid_x = CeilDiv(OutputCols(params), cols),
                             .grid_y = CeilDiv(params.x.rows, kTile),
                             .threads = kThreads,
                             .shared_bytes = kSharedBytes};
  return Launch(LinearTiledKernel, shape, stream, params);
}

Error LaunchHeadsTiled(const HeadLinearArgs& args, const DeviceWeight& heads, Stream stream) {
  const HeadParams params = ParamsOfHeads(args, heads);
  const LaunchShape shape = {.grid_x = CeilDiv(args.heads->rows, kTile),
                             .grid_y = CeilDiv(args.x.rows, kTile),
                             .grid_z = args.heads->count,
                             .threads = kThreads,
                             .shared_bytes = kSharedBytes};
  return Launch(HeadsTiledKernel, shape, stream, params);
}

Error LaunchHeadsTurned(const HeadLinearArgs& args, const DeviceWeight& heads, Stream stream) {
  HeadParams params = ParamsOfHeads(args, heads);
  params.linear.x.cols = args.heads->rows;
  const LaunchShape shape = {.grid_x = CeilDiv(args.heads->cols, kTile),
                             .grid_y = CeilDiv(args.x.rows, kTile),
                             .grid_z = args.heads->count,
                             .threads = kThreads,
                             .shared_bytes = kSharedBytes};
  return Launch(HeadsTurnedKernel, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
