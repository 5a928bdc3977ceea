#include "kernels/cpu/selective_scan.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/step_slices.h"
#include "kernels/recurrence_slices.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kBlockChannels == kChannelBlock);

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerConvolvedElement = 0.8;
constexpr double kNsPerStateRow = 6.0;  // an element of k and q, of a block

// Channels of a row that one thread convolves at a time.
constexpr int64_t kMixedChannels = 256;

// Blocks of channels that a thread scans together, and rows that it scans of each before the next:
// lines of a row that lie side by side are read one after the other, and with rows, states and
// decays of 16 numbers a channel it all takes some 40 KiB.
constexpr int64_t kBlocksTogether = 8;
constexpr int32_t kRowsTogether = 16;
static_assert(kRowsTogether == kScanRows);

// One call of the op.
class SelectiveRun {
 public:
  SelectiveRun(const HostBatch& batch, const RecurrenceArgs& args, const RecurrenceKernels& kernels,
               ThreadPool& pool, Scratch& scratch)
      : batch_(batch),
        args_(args),
        shape_(args.shape),
        kernels_(kernels),
        pool_(pool),
        pages_(args),
        places_(batch, args.page_tokens),
        channels_(args.shape.values()),
        n_tokens_(batch.n_tokens()),
        memory_(static_cast<char*>(
            scratch.Get(StepSlices::Bytes(batch) +
                        pool.num_threads() * ThreadFloats() * int64_t{sizeof(float)}))),
        slices_(batch, args.page_tokens, memory_),
        of_threads_(reinterpret_cast<float*>(memory_ + StepSlices::Bytes(batch))) {}

  void Convolve() {
    const int64_t pieces = (channels_ + kMixedChannels - 1) / kMixedChannels;
    const double cost =
        kNsPerConvolvedElement * static_cast<double>(std::min(channels_, kMixedChannels));
    pool_.ForRange(n_tokens_ * pieces, cost, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) Mix(i / pieces, i % pieces * kMixedChannels);
    });
    pool_.ForRange(n_tokens_, 0.2 * static_cast<double>(channels_),
                   [&](int64_t begin, int64_t end, int32_t) {
                     for (int64_t t = begin; t < end; ++t) KeepInput(t);
                   });
  }

  void Scan() {
    const int64_t blocks = ChannelBlocks(channels_);
    const int64_t groups = (blocks + kBlocksTogether - 1) / kBlocksTogether;
    const double rows = static_cast<double>(n_tokens_) / batch_.n_seqs();
    const double cost =
        kNsPerStateRow * shape_.key_dim * (rows + 1) * static_cast<double>(kBlocksTogether);
    pool_.ForEach(batch_.n_seqs() * groups, cost, [&](int64_t i, int32_t thread) {
      const int64_t first = i % groups * kBlocksTogether;
      ScanBlocks(slices_[i / groups], BlocksAt(first, std::min(kBlocksTogether, blocks - first)),
                 thread);
    });
    for (const RecurrenceSlice& slice : slices_.all()) KeepRows(slice);
  }

 private:
  int64_t BlockFloats() const { return int64_t{shape_.key_dim} * kChannelBlock; }
  int64_t ThreadFloats() const { return kBlocksTogether * BlockFloats() + kThreadsApart / 4; }

  int64_t Page(int64_t t) const { return places_.Page(t); }
  int32_t Offset(int64_t t) const { return places_.Offset(t); }

  void Mix(int64_t t, int64_t first) const {
    const RecurrenceSlice& slice = slices_.OfRow(t);
    const float* inputs[kScanRows];
    for (int32_t tap = 0; tap < shape_.taps; ++tap) {
      const float* row = ConvolutionInput(args_, pages_, slice, t, shape_.taps - 1 - tap);
      inputs[tap] = row == nullptr ? nullptr : row + first;
    }
    kernels_.mix({.inputs = inputs,
                  .weight = args_.conv + first,
                  .weight_stride = channels_,
                  .bias = args_.conv_bias == nullptr ? nullptr : args_.conv_bias + first,
                  .taps = shape_.taps,
                  .dim = std::min(kMixedChannels, channels_ - first),
                  .eps = 0.0f,
                  .scale = 1.0f,
                  .out = args_.out.row<float>(t) + first});
  }

  // Keeps the convolution's input, if no later row of this step takes its place.
  void KeepInput(int64_t t) const {
    const RecurrenceSlice& slice = slices_.OfRow(t);
    const int64_t behind = places_.RowsInPage(t, slice.first_row + slice.n) - 1;
    if (behind >= pages_.layout().input_rows) return;
    std::memcpy(pages_.input(Page(t), Offset(t)), args_.in.row<float>(t),
                static_cast<size_t>(channels_) * sizeof(float));
  }

  // Blocks of channels that follow each other.
  struct Blocks {
    int64_t index;  // of the first
    int64_t count;
    int64_t first_channel;
    int64_t channels;
  };

  Blocks BlocksAt(int64_t index, int64_t count) const {
    const int64_t first = index * kChannelBlock;
    return {index, count, first, std::min(count * kChannelBlock, channels_ - first)};
  }
  size_t StateBytes(const Blocks& blocks) const {
    return static_cast<size_t>(blocks.count * BlockFloats()) * sizeof(float);
  }

  // Moves S on over positions [from, to) that the page keeps.
  void Replay(int64_t page, int32_t from, int32_t to, const Blocks& blocks, float* states) const {
    HEDDLE_CHECK(from <= to && to - from <= kScanRows, "a snapshot of another position");
    for (int32_t offset = from; offset < to; ++offset) {
      SelectRowsArgs row{};
      row.steps = pages_.kept_steps(page, offset) + blocks.first_channel;
      row.values = pages_.kept_values(page, offset) + blocks.first_channel;
      row.keys = pages_.kept_keys(page, offset);
      row.kept = true;
      row.rows = 1;
      Select(row, blocks, states);
    }
  }

  void Select(SelectRowsArgs rows, const Blocks& blocks, float* states) const {
    rows.decay = args_.decay + blocks.index * BlockFloats();
    rows.skip = args_.skip == nullptr ? nullptr : args_.skip + blocks.first_channel;
    rows.state_dim = shape_.key_dim;
    rows.channels = blocks.channels;
    rows.state = states;
    kernels_.select(rows);
  }

  // Brings S to the slice's first row, in that row's page.
  void Begin(const RecurrenceSlice& slice, const Blocks& blocks) const {
    float* own = pages_.block_state(slice.page, blocks.index);
    if (slice.offset > 0) {
      Replay(slice.page, pages_.border(slice.page), slice.offset, blocks, own);
    } else if (slice.page_before < 0) {
      std::memset(own, 0, StateBytes(blocks));
    } else {
      const int64_t before = slice.page_before;
      std::memcpy(own, pages_.block_state(before, blocks.index), StateBytes(blocks));
      Replay(before, pages_.border(before), args_.page_tokens, blocks, own);
    }
  }

  // Rows [t, t + n), up to kRowsTogether, which are in one page.
  void ScanRows(int64_t t, int32_t n, const Blocks& blocks, bool keeps, float* states) const {
    SelectRowsArgs rows{};
    rows.steps = args_.in.row<float>(t) + blocks.first_channel;
    rows.gates = args_.gates ? rows.steps + shape_.gate_column() : nullptr;
    rows.step_stride = args_.in.stride;
    rows.values = rows.out = args_.out.row<float>(t) + blocks.first_channel;
    rows.value_stride = args_.out.stride;
    rows.keys = args_.factors.row<float>(t);
    rows.queries = rows.keys + shape_.key_dim;
    rows.key_stride = args_.factors.stride;
    rows.rows = n;
    if (!keeps) return Select(rows, blocks, states);
    // The places of kept rows go around once.
    const int32_t offset = Offset(t);
    const int32_t before_end = std::min(n, kScanRows - offset % kScanRows);
    rows.rows = before_end;
    rows.kept_stride = channels_;
    rows.kept_steps = pages_.kept_steps(Page(t), offset) + blocks.first_channel;
    rows.kept_values = pages_.kept_values(Page(t), offset) + blocks.first_channel;
    Select(rows, blocks, states);
    if (before_end == n) return;
    rows.rows = n - before_end;
    rows.steps += before_end * rows.step_stride;
    if (args_.gates) rows.gates += before_end * rows.step_stride;
    rows.out += before_end * rows.value_stride;
    rows.values = rows.out;
    rows.keys += before_end * rows.key_stride;
    rows.queries += before_end * rows.key_stride;
    rows.kept_steps = pages_.kept_steps(Page(t), offset + before_end) + blocks.first_channel;
    rows.kept_values = pages_.kept_values(Page(t), offset + before_end) + blocks.first_channel;
    Select(rows, blocks, states);
  }

  void ScanBlocks(const RecurrenceSlice& slice, const Blocks& blocks, int32_t thread) const {
    if (slice.n == 0) return;
    Begin(slice, blocks);
    float* states = pages_.block_state(slice.page, blocks.index);
    if (!slice.ends_behind()) {
      float* spare = of_threads_ + thread * ThreadFloats();
      std::memcpy(spare, states, StateBytes(blocks));
      states = spare;
    }
    const int64_t end = slice.first_row + slice.n;
    for (int64_t t = slice.first_row; t < end;) {
      if (t > slice.first_row) {  // a page begins
        float* next = pages_.block_state(Page(t), blocks.index);
        std::memcpy(next, states, StateBytes(blocks));
        if (slice.ends_behind()) states = next;
      }
      const int32_t n = places_.RowsInPage(t, end);
      for (int32_t row = 0; row < n; row += kRowsTogether) {
        ScanRows(t + row, std::min(kRowsTogether, n - row), blocks, !slice.ends_behind(), states);
      }
      t += n;
    }
  }

  // Keeps k of the rows that may be taken back, and the positions that S is before.
  void KeepRows(const RecurrenceSlice& slice) const {
    SetRowBorders(places_, slice, pages_);
    if (slice.ends_behind()) return;
    for (int64_t t = slice.first_row; t < slice.first_row + slice.n; ++t) {
      std::memcpy(pages_.kept_keys(Page(t), Offset(t)), args_.factors.row<float>(t),
                  static_cast<size_t>(shape_.key_dim) * sizeof(float));
    }
  }

  const HostBatch& batch_;
  const RecurrenceArgs& args_;
  const RecurrenceShape& shape_;
  const RecurrenceKernels& kernels_;
  ThreadPool& pool_;
  const RecurrencePages pages_;
  const RowPlaces places_;
  const int64_t channels_;
  const int64_t n_tokens_;
  char* const memory_;  // slices, then floats
  const StepSlices slices_;
  float* const of_threads_;  // [num_threads, ThreadFloats()]
};

}  // namespace

void SelectiveScan(const HostBatch& batch, const RecurrenceArgs& args,
                   const RecurrenceKernels& kernels, ThreadPool& pool, Scratch& scratch) {
  SelectiveRun run(batch, args, kernels, pool, scratch);
  if (args.factors.data == nullptr) {
    run.Convolve();
  } else {
    run.Scan();
  }
}

}  // namespace heddle::kernels::cpu
