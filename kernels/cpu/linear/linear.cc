#include "kernels/cpu/linear/linear.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>

#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "kernels/cpu/linear/cpu_weight.h"
#include "kernels/cpu/linear/row_tiles.h"
#include "kernels/cpu/op_costs.h"
#include "kernels/cpu/registers_in_use.h"

namespace heddle::kernels::cpu {
namespace {

// Rows of x that one thread multiplies with a panel before the next panel, so that the weights
// stream by once for as many rows as --max-batch-tokens gives by default. Their sums are 64 KB of
// the 1 MB (Zen 5) or 2 MB (Sapphire Rapids) of L2 at 32-row panels.
constexpr int64_t kGroupRows = 512;

// Several tiles are multiplied with a range of a panel of about this size before the next range:
// the range stays in L1 while the tiles go through it. At 16 KiB, 16 rows on AVX2 took 10 to 14 %
// longer: with the range, their tiles fill an L1 of 48 KB and more.
constexpr int64_t kStretchBytes = 4 * 1024;
// Ranges are whole blocks of every format.
constexpr int64_t kStretchColumns = 256;
// The same if a range is expanded first: its codes are bytes then, and its tiles small.
constexpr int64_t kExpandedStretchBytes = 20 * 1024;

// Formats with multiply_panels: a group of more rows than kNearRowsBytes, of an L2 of 2 MB beside
// sums and weights, comes from L3 once per panel; then up to kPanelsAtOnce, whose sums are 64 KB
// each, go through it together.
constexpr int64_t kNearRowsBytes = 1536 * 1024;
constexpr int64_t kPanelsAtOnce = 8;

// How far ahead of its use one tile of rows asks for its weights, in bytes; fewer rows than
// kSeveralRows have the level's own distance (LinearKernels::few_rows_ahead).
constexpr int64_t kPrefetchBytes = 4096;
constexpr int32_t kSeveralRows = 6;

// With fewer items for each thread the last one to end would hold up the others.
constexpr int64_t kItemsOfThread = 4;

// Decides how many threads to wake: weight bytes per nanosecond, approximately.
constexpr double kBytesPerNs = 20;

// Gathers the columns of x in another order.
Tensor Gather(const Tensor& x, const std::vector<int32_t>& order, ThreadPool& pool,
              Scratch& scratch) {
  const Tensor ordered{scratch.Get(x.rows * x.cols * 4), x.rows, x.cols, x.cols};
  pool.ForRange(x.rows, kNsPerGatheredElement * static_cast<double>(x.cols),
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t t = begin; t < end; ++t) {
                    const float* from = x.row<float>(t);
                    float* to = ordered.row<float>(t);
                    for (size_t c = 0; c < order.size(); ++c) to[c] = from[order[c]];
                  }
                });
  return ordered;
}

class LinearCall {
 public:
  LinearCall(const LinearArgs& args, const LinearKernels& kernels, const AdapterCall* adapters)
      : args_(args),
        kernels_(kernels),
        adapters_(adapters),
        weight_(static_cast<const CpuWeight&>(*args.weight)) {
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

  void Run(ThreadPool& pool, LinearScratch& scratch) {
    const bool takes = TakesTiles(scratch.handed);
    if (!takes && HandsOver()) LeaveTiles(scratch.handed);
    int64_t step = 1;  // rows in whole tiles of every kind in use
    for (size_t i = 0; i < weight_.segments().size(); ++i) {
      tiles_.push_back(takes ? HandedTiles(scratch.handed) : TilesOfSegment(i, pool, scratch));
      step = std::lcm(step, tiles_.back().tile_rows);
    }
    // The groups have about equal sizes.
    int64_t groups = (args_.x.rows + kGroupRows - 1) / kGroupRows;
    group_rows_ = (args_.x.rows + groups - 1) / groups;
    group_rows_ = (group_rows_ + step - 1) / step * step;
    bundle_ = PanelsOfItem(pool.num_threads());
    const int64_t num_bundles = (num_panels_ + bundle_ - 1) / bundle_;
    sums_each_ = MostSums(weight_.ranges()) * SumsOfRange();
    const int64_t sums_of_thread = (gated_ ? 2 : 1) * bundle_ * sums_each_ + kThreadsApart / 4;
    auto* sums = static_cast<float*>(scratch.sums.Get(pool.num_threads() * sums_of_thread * 4));
    const int64_t expanded_bytes = ExpandedBytes();
    auto* expanded = static_cast<char*>(scratch.expanded.Get(pool.num_threads() * expanded_bytes));
    pool.ForRange(
        groups * num_bundles, ItemCost(), [&](int64_t begin, int64_t end, int32_t thread) {
          float* own = sums + thread * sums_of_thread;
          RegistersInUse registers(kernels_.release_tiles);
          const ThreadMemory memory = {own, own + bundle_ * sums_each_,
                                       expanded + thread * expanded_bytes, &registers};
          for (int64_t i = begin; i < end; ++i) {
            const int64_t panel = i % num_bundles * bundle_;
            RunBundle(panel, std::min(panel + bundle_, num_panels_), i / num_bundles, memory);
          }
        });
    if (takes) scratch.handed.reader = nullptr;
  }

 private:
  struct ThreadMemory {
    float* sums;     // [bundle][most sums of ranges][group rows][panel rows]
    float* sums_up;  // for the second factor of a gated product
    char* expanded;
    TileRegisters* registers;
  };

  // Whether the product before this one has left its outputs, which are x, as tiles.
  bool TakesTiles(const LinearScratch::Handed& handed) const {
    if (handed.reader == nullptr || handed.x != args_.x.data) return false;
    HEDDLE_CHECK(handed.reader == args_.weight, "linear: x was left for another product");
    return true;
  }
  Tiles HandedTiles(LinearScratch::Handed& handed) const {
    Tiles tiles = TilesFor(TileKind::kBf16Rows, args_.x.rows, weight_.ranges(),
                           KernelsOf(TileKind::kBf16Rows));
    tiles.data = static_cast<const char*>(handed.tiles.Get(0));
    return tiles;
  }
  // Whether outputs can be left as tiles: the reader takes no others, and panels of outputs are
  // whole steps of its columns.
  bool HandsOver() const {
    if (args_.reader == nullptr || kernels_.finish_tiles == nullptr || adapters_ != nullptr ||
        args_.epilogue == Epilogue::kAdd || args_.out.cols % kernels_.panel_rows != 0 ||
        (!gated_ && weight_.segments().size() > 1)) {
      return false;
    }
    const auto& reader = static_cast<const CpuWeight&>(*args_.reader);
    if (reader.ranges().size() > 1) return false;  // whose tiles hold ranges apart
    const auto& readers = reader.segments();
    return std::all_of(readers.begin(), readers.end(), [](const CpuWeight::Segment& segment) {
      return segment.format->multiply_panels != nullptr && segment.column_order == nullptr;
    });
  }
  void LeaveTiles(LinearScratch::Handed& handed) {
    const std::span<const ColumnRange> ranges =
        static_cast<const CpuWeight&>(*args_.reader).ranges();
    const Tiles tiles =
        TilesFor(TileKind::kBf16Rows, args_.out.rows, ranges, KernelsOf(TileKind::kBf16Rows));
    auto* data = static_cast<char*>(handed.tiles.Get(tiles.count() * tiles.tile_bytes));
    const int64_t last = tiles.count() - 1;
    output_ = {data, tiles.tile_bytes, tiles.count(), tiles.tile_rows,
               tiles.kernels->sizes[tiles.SizeIndexOf(last)]};
    if (tiles.RowsOf(last) < output_->last_rows) {  // the rest of them is zero
      std::memset(data + last * tiles.tile_bytes, 0, static_cast<size_t>(tiles.tile_bytes));
    }
    handed.reader = args_.reader;
    handed.x = args_.out.data;
  }

  // The tiles of an earlier segment with the same needs, or new ones.
  Tiles TilesOfSegment(size_t index, ThreadPool& pool, LinearScratch& scratch) const {
    const CpuWeight::Segment& segment = weight_.segments()[index];
    for (size_t i = 0; i < index; ++i) {
      const CpuWeight::Segment& earlier = weight_.segments()[i];
      if (earlier.format->tile == segment.format->tile &&
          earlier.column_order == segment.column_order) {
        return tiles_[i];
      }
    }
    if (scratch.inputs.size() <= index) scratch.inputs.resize(index + 1);
    LinearScratch::Input& input = scratch.inputs[index];
    Tensor x = args_.x;
    if (segment.column_order != nullptr) x = Gather(x, *segment.column_order, pool, input.ordered);
    const TileKind kind = segment.format->tile;
    return PrepareTiles(kind, x, weight_.ranges(), KernelsOf(kind), pool, input.tiles);
  }

  const TileKernels& KernelsOf(TileKind kind) const {
    switch (kind) {
      case TileKind::kFloat:
        return kernels_.tiles[0];
      case TileKind::kInt8:
      case TileKind::kInt8Pairs:
        return kernels_.tiles[1];
      case TileKind::kInt8Shared:
      case TileKind::kInt8Sums16:
        return kernels_.blocks->shared_tile;
      case TileKind::kBf16:
        return kernels_.bf16_tile;
      case TileKind::kBf16Rows:
        return kernels_.bf16_rows_tile;
    }
    return kernels_.tiles[0];
  }

  // Panels that one item computes, or pairs of them: several if that spares reading the rows or if
  // one row goes through two at once, but few enough for items of equal numbers for all threads.
  int64_t PanelsOfItem(int32_t num_threads) const {
    const auto& segments = weight_.segments();
    const bool pairs = std::any_of(segments.begin(), segments.end(), [](const auto& segment) {
      return segment.format->multiply_row_pair != nullptr;
    });
    if (pairs && args_.x.rows == 1 && num_panels_ >= kItemsOfThread * 2 * num_threads) return 2;
    const bool many = std::any_of(segments.begin(), segments.end(), [](const auto& segment) {
      return segment.format->multiply_panels != nullptr;
    });
    if (!many || group_rows_ * weight_.cols * 2 <= kNearRowsBytes) return 1;
    const int64_t sums = (gated_ ? 2 : 1) * MostSums(weight_.ranges());  // of a panel
    const int64_t most = std::max<int64_t>(1, kPanelsAtOnce / sums) * num_threads;
    const int64_t rounds = (num_panels_ + most - 1) / most;
    return (num_panels_ + rounds * num_threads - 1) / (rounds * num_threads);
  }

  double ItemCost() const {
    const CpuWeight::Segment& segment = weight_.segments()[0];
    auto rows = static_cast<double>(std::min(args_.x.rows, kGroupRows));
    double macs = rows * static_cast<double>(weight_.cols) * kernels_.panel_rows;
    double bytes = static_cast<double>(segment.panel_bytes);
    return static_cast<double>(gated_ ? 2 * bundle_ : bundle_) *
           std::max(macs / segment.format->macs_per_ns, bytes / kBytesPerNs);
  }

  // Computes panels [begin, end) of outputs for one group of rows.
  void RunBundle(int64_t begin, int64_t end, int64_t group, const ThreadMemory& memory) const {
    const int64_t row = group * group_rows_;
    const int64_t rows = std::min(args_.x.rows - row, group_rows_);
    if (rows <= 0) return;
    while (begin < end) {
      const CpuWeight::Segment& segment = weight_.SegmentOfPanel(begin);
      const int64_t local = begin - segment.panel_begin;
      const int64_t count = std::min(end - begin, segment.num_panels - local);
      RunPanels(segment, {local, count, row, rows}, memory);
      begin += count;
    }
  }

  // Panels [panel, panel + num_panels) of a segment, for rows [row, row + rows).
  struct Part {
    int64_t panel;
    int64_t num_panels;
    int64_t row;
    int64_t rows;
  };

  void RunPanels(const CpuWeight::Segment& segment, const Part& part,
                 const ThreadMemory& memory) const {
    const auto index = static_cast<size_t>(&segment - weight_.segments().data());
    Multiply(index, part, memory, memory.sums);
    if (gated_) Multiply(1, part, memory, memory.sums_up);
    for (int64_t i = 0; i < part.num_panels; ++i) {
      const int64_t local = part.panel + i;
      float* const sums = memory.sums + i * sums_each_;
      float* const sums_up = gated_ ? memory.sums_up + i * sums_each_ : nullptr;
      if (adapters_ != nullptr) {
        AddAdapters(segment, local, part.row, part.rows, sums);
        if (gated_) AddAdapters(weight_.segments()[1], local, part.row, part.rows, sums_up);
      }
      Finish(segment, local, part.row, static_cast<int32_t>(part.rows), sums, sums_up);
    }
  }

  // Computes sums [rows, panel_rows] of each panel of a part of segment `index`.
  void Multiply(size_t index, const Part& part, const ThreadMemory& memory, float* sums) const {
    if (weight_.segments()[index].format->multiply_panels != nullptr) {
      return MultiplyPanels(index, part, *memory.registers, sums);
    }
    int64_t i = 0;
    const bool pairs = weight_.segments()[index].format->multiply_row_pair != nullptr;
    for (; pairs && args_.x.rows == 1 && i + 1 < part.num_panels; i += 2) {
      MultiplyRowPair(index, part.panel + i, sums + i * sums_each_);
    }
    for (; i < part.num_panels; ++i) {
      MultiplyPanel(index, part.panel + i, part.row, part.rows, memory.expanded,
                    sums + i * sums_each_);
    }
  }

  void MultiplyPanels(size_t index, const Part& part, TileRegisters& registers, float* sums) const {
    const CpuWeight::Segment& segment = weight_.segments()[index];
    const Tiles& tiles = tiles_[index];
    const int64_t first = part.row / tiles.tile_rows;
    const int64_t num_tiles = (part.rows + tiles.tile_rows - 1) / tiles.tile_rows;
    PanelProductArgs product{};
    product.panel_bytes = segment.panel_bytes;
    product.num_panels = static_cast<int32_t>(part.num_panels);
    product.tile_bytes = tiles.tile_bytes;
    product.num_tiles = static_cast<int32_t>(num_tiles);
    product.tile_rows = tiles.tile_rows;
    product.last_rows = tiles.kernels->sizes[tiles.SizeIndexOf(first + num_tiles - 1)];
    product.sums_stride = sums_each_;
    const std::span<const ColumnRange> ranges = weight_.ranges();
    for (size_t r = 0; r < ranges.size(); ++r) {
      product.panels = segment.data + part.panel * segment.panel_bytes + segment.range_bytes[r];
      product.tiles = tiles.DataOf(first, r);
      product.cols = ranges[r].cols;
      product.sums = sums;
      segment.format->multiply_panels(product, registers);
      for (int64_t i = 0; i < part.num_panels && ranges[r].joins > 0; ++i) {
        Join(ranges[r].joins, (num_tiles - 1) * tiles.tile_rows + product.last_rows,
             sums + i * sums_each_);
      }
      sums += (1 - ranges[r].joins) * SumsOfRange();
    }
  }

  static bool Expands(const FormatKernels& format, int64_t num_tiles) {
    return format.expand_tiles > 0 && num_tiles >= format.expand_tiles;
  }

  // Bytes of a thread's longest expanded range.
  int64_t ExpandedBytes() const {
    int64_t bytes = 0;
    for (const CpuWeight::Segment& segment : weight_.segments()) {
      if (segment.format->expand_tiles == 0) continue;
      const int64_t cols = std::min(weight_.cols, StretchOf(*segment.format, true));
      bytes = std::max(bytes, segment.format->expanded_bytes(cols));
    }
    return (bytes + 63) / 64 * 64 + kThreadsApart;
  }

  // Bytes of kStretchColumns within a panel. 64 times as many are never padded.
  static int64_t UnitBytes(const FormatKernels& format) {
    return format.panel_bytes(64 * kStretchColumns) / 64;
  }

  // Columns of a range that several tiles share.
  static int64_t StretchOf(const FormatKernels& format, bool expands) {
    const int64_t unit_bytes = expands ? format.expanded_bytes(kStretchColumns) : UnitBytes(format);
    const int64_t limit = expands ? kExpandedStretchBytes : kStretchBytes;
    return kStretchColumns * std::max<int64_t>(1, limit / unit_bytes);
  }

  // The sums of one range of columns: [group_rows_, panel_rows].
  int64_t SumsOfRange() const { return group_rows_ * kernels_.panel_rows; }

  // Adds the newest of the sums that wait to the one before it, `joins` times, and leaves zeros.
  void Join(int32_t joins, int64_t rows, float* newest) const {
    for (; joins > 0; --joins, newest -= SumsOfRange()) {
      kernels_.join(rows * kernels_.panel_rows, newest, newest - SumsOfRange());
    }
  }

  // Some rows of a panel that are computed together.
  struct PanelRows {
    const FormatKernels& format;
    const Tiles& tiles;
    int64_t first_tile;
    int64_t num_tiles;
    char* expanded;  // nullptr: ranges are not expanded
  };

  // Computes sums [rows, panel_rows] of the tiles of segment `index` that hold rows [row, row +
  // rows). Each range of columns has sums of its own, which wait in a stack for those that they are
  // joined with.
  void MultiplyPanel(size_t index, int64_t local, int64_t row, int64_t rows, char* expanded,
                     float* sums) const {
    const CpuWeight::Segment& segment = weight_.segments()[index];
    const Tiles& tiles = tiles_[index];
    const int64_t num_tiles = (rows + tiles.tile_rows - 1) / tiles.tile_rows;
    const PanelRows task = {*segment.format, tiles, row / tiles.tile_rows, num_tiles,
                            Expands(*segment.format, num_tiles) ? expanded : nullptr};
    const uint8_t* panel = segment.data + local * segment.panel_bytes;
    const std::span<const ColumnRange> ranges = weight_.ranges();
    const float* used = sums;  // what is free before it has zeros
    for (size_t r = 0; r < ranges.size(); ++r) {
      if (sums == used) {
        std::fill_n(sums, num_tiles * tiles.tile_rows * kernels_.panel_rows, 0.0f);
        used += SumsOfRange();
      }
      MultiplyRange(task, r, panel + segment.range_bytes[r], sums);
      sums += (1 - ranges[r].joins) * SumsOfRange();
    }
  }

  // MultiplyPanel for the only row and the panels `local` and local + 1.
  void MultiplyRowPair(size_t index, int64_t local, float* sums) const {
    const CpuWeight::Segment& segment = weight_.segments()[index];
    const uint8_t* panel = segment.data + local * segment.panel_bytes;
    const std::span<const ColumnRange> ranges = weight_.ranges();
    const float* used = sums;  // what is free before it has zeros
    for (size_t r = 0; r < ranges.size(); ++r) {
      float* const both[2] = {sums, sums + sums_each_};
      if (sums == used) {
        for (float* own : both) std::fill_n(own, SumsOfRange(), 0.0f);
        used += SumsOfRange();
      }
      const uint8_t* part = panel + segment.range_bytes[r];
      segment.format->multiply_row_pair({.panels = {part, part + segment.panel_bytes},
                                         .tile = tiles_[index].DataOf(0, r),
                                         .cols = ranges[r].cols,
                                         .sums = {both[0], both[1]},
                                         .ahead = kernels_.few_rows_ahead,
                                         .skipped = segment.panel_bytes});
      for (float* own : both) Join(ranges[r].joins, 1, own);
      sums += (1 - ranges[r].joins) * SumsOfRange();
    }
  }

  // `panel`: where the range begins in it.
  void MultiplyRange(const PanelRows& task, size_t range, const uint8_t* panel, float* sums) const {
    const FormatKernels& format = task.format;
    const Tiles& tiles = task.tiles;
    const ColumnRange& columns = weight_.ranges()[range];
    const bool expands = task.expanded != nullptr;
    const int64_t stretch = task.num_tiles == 1 ? columns.cols : StretchOf(format, expands);
    const int64_t unit_bytes = UnitBytes(format);
    for (int64_t begin = 0; begin < columns.cols; begin += stretch) {
      const int64_t cols = std::min(stretch, columns.cols - begin);
      const uint8_t* part = panel + begin / kStretchColumns * unit_bytes;
      if (expands) format.expand(part, cols, task.expanded);
      for (int64_t i = 0; i < task.num_tiles; ++i) {
        const int32_t size = tiles.SizeIndexOf(task.first_tile + i);
        const int64_t tile_rows = tiles.kernels->sizes[size];
        const char* x =
            tiles.DataOf(task.first_tile + i, range) + TileBytes(tiles.kind, tile_rows, begin);
        float* own = sums + i * tiles.tile_rows * kernels_.panel_rows;
        auto* multiply = expands ? format.multiply_expanded[size] : format.multiply[size];
        multiply(expands ? static_cast<const void*>(task.expanded) : part, x, cols, own,
                 AheadOf(task, part, format.panel_bytes(cols), i));
        if (begin + cols == columns.cols) Join(columns.joins, tile_rows, own);
      }
    }
  }

  void AddAdapters(const CpuWeight::Segment& segment, int64_t local, int64_t row, int64_t rows,
                   float* sums) const {
    const int64_t first = local * kernels_.panel_rows;  // within the segment
    const auto cols =
        static_cast<int32_t>(std::min<int64_t>(kernels_.panel_rows, segment.rows - first));
    adapters_->Add({.row = row,
                    .rows = rows,
                    .first = segment.row_begin + first,
                    .cols = cols,
                    .sums = sums,
                    .stride = kernels_.panel_rows});
  }

  // The bytes that the i-th tile prefetches while it passes a range of `bytes`: a share of the next
  // range, which is behind it. A single tile prefetches what it multiplies itself a little later.
  WeightsAhead AheadOf(const PanelRows& task, const uint8_t* part, int64_t bytes, int64_t i) const {
    if (task.num_tiles == 1) {
      const bool few = task.tiles.tile_rows < kSeveralRows;
      return {part + (few ? kernels_.few_rows_ahead : kPrefetchBytes), bytes};
    }
    const int64_t begin = bytes * i / task.num_tiles;
    return {part + bytes + begin, bytes * (i + 1) / task.num_tiles - begin};
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
    if (output_) return kernels_.finish_tiles(epilogue, row, out_column, *output_);
    epilogue.out = args_.out.row<float>(row) + out_column;
    epilogue.out_stride = args_.out.stride;
    kernels_.epilogue(epilogue);
  }

  const LinearArgs& args_;
  const LinearKernels& kernels_;
  const AdapterCall* adapters_;
  const CpuWeight& weight_;
  bool gated_ = false;
  int64_t num_panels_ = 0;
  std::optional<OutputTiles> output_;  // nullopt: outputs go to args_.out
  int64_t group_rows_ = 0;
  int64_t bundle_ = 1;                   // panels of an item, or pairs of them
  int64_t sums_each_ = 0;                // floats of one panel's sums
  absl::InlinedVector<Tiles, 4> tiles_;  // one per segment
};

}  // namespace

void Linear(const LinearArgs& args, const LinearKernels& kernels, ThreadPool& pool,
            LinearScratch& scratch, const AdapterCall* adapters) {
  if (args.x.rows == 0) return;
  LinearCall(args, kernels, adapters).Run(pool, scratch);
}

}  // namespace heddle::kernels::cpu
