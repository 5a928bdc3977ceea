#include "kernels/cpu/linear.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/cpu_weight.h"

namespace heddle::kernels::cpu {
namespace {

// Rows of x that one thread takes past a panel before the next panel: their tiles (2 MB of F32 at
// 2048 columns) stay in L2 and L3 while the weights stream by once for each such group.
constexpr int64_t kGroupRows = 240;

// Rows of results that are kept beside each other until their epilogue: a multiple of the largest
// tiles of both kinds on every level (12 and 8, 6 and 2, 4 and 4).
constexpr int32_t kMaxStepRows = 24;

// For deciding how many threads to wake: multiply-adds per nanosecond of one core, roughly, and
// weight bytes per nanosecond.
constexpr double kMacsPerNs = 50;
constexpr double kBytesPerNs = 20;

// The rows of x as tiles of one kind: all of the largest size but the last, which takes the
// smallest size that holds the rest.
struct Tiles {
  const TileKernels* kernels;
  int64_t rows;
  int64_t cols;
  int64_t tile_bytes;  // of a largest tile
  const char* data;

  int32_t largest() const { return kernels->sizes[kernels->num_sizes - 1]; }
  int64_t count() const { return (rows + largest() - 1) / largest(); }
  int32_t RowsOf(int64_t tile) const {
    return static_cast<int32_t>(std::min<int64_t>(largest(), rows - tile * largest()));
  }
  int32_t SizeIndexOf(int64_t tile) const {
    int32_t index = 0;
    while (kernels->sizes[index] < RowsOf(tile)) ++index;
    return index;
  }
  const char* DataOf(int64_t tile) const { return data + tile * tile_bytes; }
};

int64_t TileBytes(TileKind kind, int64_t tile_rows, int64_t cols) {
  if (kind == TileKind::kFloat) return tile_rows * cols * 4;
  return tile_rows * (cols / 32) * (kind == TileKind::kInt8 ? 40 : 52);  // see TileKind
}

Tiles PrepareTiles(TileKind kind, const LinearArgs& args, const TileKernels& kernels,
                   ThreadPool& pool, Scratch& scratch) {
  Tiles tiles{&kernels, args.x.rows, args.x.cols, 0, nullptr};
  if (kind == TileKind::kFloat && args.x.rows == 1) {  // a tile of one row is the row
    tiles.data = reinterpret_cast<const char*>(args.x.row<float>(0));
    return tiles;
  }
  tiles.tile_bytes = TileBytes(kind, tiles.largest(), args.x.cols);
  auto* data = static_cast<char*>(scratch.Get(tiles.tile_bytes * tiles.count()));
  tiles.data = data;
  pool.ForRange(tiles.count(), static_cast<double>(tiles.tile_bytes) / 4,
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t i = begin; i < end; ++i) {
                    kernels.prepare(args.x.row<float>(i * tiles.largest()), args.x.stride,
                                    tiles.RowsOf(i), kernels.sizes[tiles.SizeIndexOf(i)],
                                    args.x.cols, data + i * tiles.tile_bytes);
                  }
                });
  return tiles;
}

class LinearCall {
 public:
  LinearCall(const LinearArgs& args, const LinearKernels& kernels)
      : args_(args), kernels_(kernels), weight_(static_cast<const CpuWeight&>(*args.weight)) {
    gated_ = args.epilogue == Epilogue::kGated;
    const auto& segments = weight_.segments();
    HEDDLE_CHECK(args.x.cols == weight_.cols, "linear: x and the weight differ in columns");
    HEDDLE_CHECK(!gated_ || (segments.size() == 2 && segments[0].rows == segments[1].rows),
                 "linear: a gated weight stacks two sources of equal rows");
    HEDDLE_CHECK(args.out.cols == (gated_ ? weight_.rows / 2 : weight_.rows),
                 "linear: wrong number of output columns");
    HEDDLE_CHECK(args.out.rows == args.x.rows, "linear: x and out differ in rows");
    num_panels_ = gated_ ? segments[0].num_panels : weight_.num_panels();
  }

  void Run(ThreadPool& pool, Scratch (&scratch)[kNumTileKinds]) {
    for (const CpuWeight::Segment& segment : weight_.segments()) {
      auto kind = static_cast<size_t>(segment.format->tile);
      if (tiles_[kind].kernels != nullptr) continue;
      const TileKernels& kernels = segment.format->tile == TileKind::kInt8Halves
                                       ? kernels_.blocks->tile
                                       : kernels_.tiles[kind];
      tiles_[kind] = PrepareTiles(segment.format->tile, args_, kernels, pool, scratch[kind]);
      step_rows_ = std::lcm(step_rows_, tiles_[kind].largest());
    }
    HEDDLE_CHECK(step_rows_ <= kMaxStepRows && kGroupRows % step_rows_ == 0,
                 "linear: tile sizes do not fit the buffers");
    int64_t groups = (args_.x.rows + kGroupRows - 1) / kGroupRows;
    double cost = ItemCost();
    pool.ForRange(groups * num_panels_, cost, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) RunPanel(i % num_panels_, i / num_panels_);
    });
  }

 private:
  double ItemCost() const {
    auto rows = static_cast<double>(std::min(args_.x.rows, kGroupRows));
    double macs = rows * static_cast<double>(weight_.cols) * kernels_.panel_rows;
    double bytes = static_cast<double>(weight_.segments()[0].panel_bytes);
    return (gated_ ? 2 : 1) * std::max(macs / kMacsPerNs, bytes / kBytesPerNs);
  }

  // One panel of outputs for one group of rows.
  void RunPanel(int64_t panel, int64_t group) const {
    const CpuWeight::Segment& segment = weight_.SegmentOfPanel(panel);
    int64_t local = panel - segment.panel_begin;
    int64_t row = group * kGroupRows;
    int64_t row_end = std::min(args_.x.rows, row + kGroupRows);
    for (; row < row_end; row += step_rows_) {
      auto rows = static_cast<int32_t>(std::min<int64_t>(step_rows_, row_end - row));
      alignas(64) float acc[2][kMaxStepRows * kMaxPanelRows];
      Multiply(segment, local, row, rows, acc[0]);
      if (gated_) Multiply(weight_.segments()[1], local, row, rows, acc[1]);
      Finish(segment, local, row, rows, acc[0], gated_ ? acc[1] : nullptr);
    }
  }

  // The tiles of the segment's kind that hold rows [row, row + rows).
  void Multiply(const CpuWeight::Segment& segment, int64_t local, int64_t row, int32_t rows,
                float* acc) const {
    const Tiles& tiles = tiles_[static_cast<size_t>(segment.format->tile)];
    for (int32_t done = 0; done < rows; done += tiles.largest()) {
      int64_t tile = (row + done) / tiles.largest();
      segment.format->multiply[tiles.SizeIndexOf(tile)](segment.data + local * segment.panel_bytes,
                                                        tiles.DataOf(tile), weight_.cols,
                                                        acc + done * kernels_.panel_rows);
    }
  }

  void Finish(const CpuWeight::Segment& segment, int64_t local, int64_t row, int32_t rows,
              const float* acc, const float* acc_up) const {
    int64_t first = local * kernels_.panel_rows;  // within the segment
    int64_t out_column = segment.row_begin + first;
    const float* bias = args_.bias ? args_.bias + out_column : nullptr;
    EpilogueArgs epilogue{};
    epilogue.acc = acc;
    epilogue.acc_up = acc_up;
    epilogue.bias = bias;
    epilogue.bias_up = bias && gated_ ? bias + segment.rows : nullptr;
    epilogue.activation = args_.epilogue == Epilogue::kAdd
                              ? ActivationCode::kNone
                              : static_cast<ActivationCode>(args_.activation);
    epilogue.add = args_.epilogue == Epilogue::kAdd;
    epilogue.rows = rows;
    epilogue.cols =
        static_cast<int32_t>(std::min<int64_t>(kernels_.panel_rows, segment.rows - first));
    epilogue.out = args_.out.row<float>(row) + out_column;
    epilogue.out_stride = args_.out.stride;
    kernels_.epilogue(epilogue);
  }

  const LinearArgs& args_;
  const LinearKernels& kernels_;
  const CpuWeight& weight_;
  bool gated_ = false;
  int64_t num_panels_ = 0;
  int32_t step_rows_ = 1;  // whole tiles of every kind in use
  Tiles tiles_[kNumTileKinds] = {};
};

}  // namespace

void Linear(const LinearArgs& args, const LinearKernels& kernels, ThreadPool& pool,
            Scratch (&scratch)[kNumTileKinds]) {
  if (args.x.rows == 0) return;
  LinearCall(args, kernels).Run(pool, scratch);
}

}  // namespace heddle::kernels::cpu
