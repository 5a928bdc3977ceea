#include "kernels/cpu/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/selective_scan.h"
#include "kernels/cpu/step_slices.h"
#include "kernels/recurrence_slices.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kPartRows == kScanRows);

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerMixedElement = 0.8;
constexpr double kNsPerStateElement = 0.1;  // of a row
constexpr double kNsPerGatedElement = 0.8;

constexpr float kKeyEps = 1e-6f;  // of the delta rule's keys and queries

float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// One call of the op.
class RecurrenceRun {
 public:
  RecurrenceRun(const HostBatch& batch, const RecurrenceArgs& args,
                const RecurrenceKernels& kernels, ThreadPool& pool, Scratch& scratch)
      : batch_(batch),
        args_(args),
        shape_(args.shape),
        kernels_(kernels),
        pool_(pool),
        pages_(args),
        places_(batch, args.page_tokens),
        channels_(args.shape.channels()),
        n_tokens_(batch.n_tokens()),
        memory_(static_cast<char*>(
            scratch.Get(StepSlices::Bytes(batch) + Floats() * int64_t{sizeof(float)}))),
        slices_(batch, args.page_tokens, memory_) {
    mixed_ = reinterpret_cast<float*>(memory_ + StepSlices::Bytes(batch));
    steps_ = mixed_ + n_tokens_ * channels_;
    gains_ = steps_ + n_tokens_ * shape_.n_heads;
    of_threads_ = gains_ + n_tokens_ * shape_.n_heads;
  }

  void Run() {
    const int64_t pieces = 2 * int64_t{shape_.n_key_heads} + shape_.n_heads;
    const double piece_cost =
        kNsPerMixedElement * static_cast<double>(channels_) / static_cast<double>(pieces);
    pool_.ForRange(n_tokens_ * pieces, piece_cost, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) Mix(i / pieces, i % pieces);
    });
    const int64_t seqs = batch_.n_seqs();
    const double rows = static_cast<double>(n_tokens_) / static_cast<double>(seqs);
    const double scan_cost = kNsPerStateElement * shape_.key_dim * shape_.value_dim * (rows + 1);
    pool_.ForEach(seqs * shape_.n_heads, scan_cost, [&](int64_t i, int32_t thread) {
      ScanHead(slices_[i % seqs], static_cast<int32_t>(i / seqs), thread);
    });
    pool_.ForRange(n_tokens_, kNsPerGatedElement * static_cast<double>(shape_.values()),
                   [&](int64_t begin, int64_t end, int32_t) {
                     for (int64_t t = begin; t < end; ++t) Finish(t);
                   });
    for (const RecurrenceSlice& slice : slices_.all()) {
      SetBorders(batch_, slice, args_.page_tokens, pages_);
    }
  }

 private:
  int64_t StateFloats() const { return int64_t{shape_.key_dim} * shape_.value_dim; }
  // For a thread: an S, the keys of a part and their decayed ones, and what Scan needs.
  int64_t ThreadFloats() const {
    return StateFloats() + 2 * int64_t{kScanRows} * shape_.key_dim +
           ScanScratchFloats(shape_.value_dim) + kThreadsApart / 4;
  }

  int64_t Floats() const {
    return n_tokens_ * WorkingFloats(shape_) + pool_.num_threads() * ThreadFloats();
  }

  int64_t Page(int64_t t) const { return places_.Page(t); }
  int32_t Offset(int64_t t) const { return places_.Offset(t); }

  // Computes one head's q, k or v of row t. Heads of v have the row's g and gain, too.
  void Mix(int64_t t, int64_t piece) {
    const RecurrenceSlice& slice = slices_.OfRow(t);
    const int64_t n_keys = 2 * int64_t{shape_.n_key_heads};
    const bool is_key = piece < n_keys;
    const bool is_unit = is_key && shape_.rule == RecurrenceRule::kGatedDelta;
    const bool is_query = piece < shape_.n_key_heads;
    const int64_t begin = is_key ? piece * shape_.key_dim
                                 : n_keys * shape_.key_dim + (piece - n_keys) * shape_.value_dim;
    const float* inputs[kScanRows];
    for (int32_t tap = 0; tap < shape_.taps; ++tap) {
      const float* row = ConvolutionInput(args_, pages_, slice, t, shape_.taps - 1 - tap);
      inputs[tap] = row == nullptr ? nullptr : row + begin;
    }
    kernels_.mix({.inputs = inputs,
                  .weight = args_.conv + begin,
                  .weight_stride = channels_,
                  .bias = args_.conv_bias == nullptr ? nullptr : args_.conv_bias + begin,
                  .taps = shape_.taps,
                  .dim = is_key ? shape_.key_dim : shape_.value_dim,
                  .eps = is_unit ? kKeyEps : 0.0f,
                  .scale = is_query ? 1.0f / std::sqrt(static_cast<float>(shape_.key_dim)) : 1.0f,
                  .out = mixed_ + t * channels_ + begin});
    if (!is_key) SetStep(t, static_cast<int32_t>(piece - n_keys));
    if (is_key && !is_query && slice.n == 1) {
      KeepKey(t, static_cast<int32_t>(piece - shape_.n_key_heads));
    }
  }

  float* PlaceOfKey(int64_t t, int32_t key_head) const {
    return pages_.keys(Page(t), key_head, Offset(t)) + Offset(t) % kScanRows;
  }

  void KeepKey(int64_t t, int32_t key_head) const {
    const float* key = mixed_ + t * channels_ + shape_.keys() + int64_t{key_head} * shape_.key_dim;
    float* to = PlaceOfKey(t, key_head);
    for (int32_t d = 0; d < shape_.key_dim; ++d) to[int64_t{d} * kScanRows] = key[d];
  }

  void SetStep(int64_t t, int32_t head) {
    const float* row = args_.in.row<float>(t);
    const float step = Softplus(row[shape_.step_column() + head] + args_.step_bias[head]);
    float& decay = steps_[t * shape_.n_heads + head];
    float& gain = gains_[t * shape_.n_heads + head];
    if (shape_.rule == RecurrenceRule::kGatedDelta) {
      decay = args_.decay[head] * step;
      gain = 1.0f / (1.0f + std::exp(-row[shape_.beta_column() + head]));
    } else {
      gain = std::min(std::max(step, args_.min_step), args_.max_step);
      decay = args_.decay[head] * gain;
    }
  }

  // A part of a sequence's rows in one head, as it is computed.
  struct Part {
    const float* state = nullptr;
    float* spare = nullptr;       // memory for S
    const float* keys = nullptr;  // [key_dim, kScanRows]
    float* own_keys = nullptr;    // the same, to be written; nullptr: they are the page's, which
                                  // has the rows' already
    float* scratch = nullptr;
    float* folded = nullptr;  // memory for FoldArgs::scratch
  };

  void Fold(const float* state, const float* keys, int64_t page, int32_t head, int32_t offset,
            const Part& part, float* out) const {
    kernels_.fold({.state = state,
                   .keys = keys,
                   .updates = pages_.updates(page, head, offset),
                   .decays = pages_.decays(page, head, offset),
                   .key_dim = shape_.key_dim,
                   .value_dim = shape_.value_dim,
                   .out = out,
                   .scratch = part.folded});
  }

  // Brings S to the beginning of the part that the slice's first row is in.
  void Begin(const RecurrenceSlice& slice, int32_t head, Part* part) const {
    float* own = pages_.state(slice.page, head);
    part->state = own;
    const int32_t key_head = shape_.KeyHead(head);
    if (slice.offset > 0) {
      const int32_t begin = slice.offset - slice.offset % kScanRows;
      const int32_t border = pages_.border(slice.page);
      if (border == begin) return;
      HEDDLE_CHECK(border == begin - kScanRows, "a snapshot of another position");
      Fold(own, pages_.keys(slice.page, key_head, border), slice.page, head, border, *part, own);
    } else if (slice.page_before < 0) {
      std::memset(own, 0, static_cast<size_t>(StateFloats()) * sizeof(float));
    } else {
      const int64_t before = slice.page_before;
      const int32_t border = args_.page_tokens - kScanRows;
      HEDDLE_CHECK(pages_.border(before) == border, "a snapshot of another position");
      Fold(pages_.state(before, head), pages_.keys(before, key_head, border), before, head, border,
           *part, own);
    }
  }

  // Goes on behind the part whose last row is t - 1.
  void Advance(const RecurrenceSlice& slice, int64_t t, int32_t head, Part* part) const {
    const bool stays = Offset(t) == 0 || slice.is_final();
    float* next = stays ? pages_.state(Page(t), head) : part->spare;
    Fold(part->state, part->keys, Page(t - 1), head, Offset(t - 1), *part, next);
    part->state = next;
  }

  // Computes rows [t, t + n), which are in one part.
  void ScanPart(int64_t t, int32_t n, int32_t head, const Part& part) const {
    const int32_t key_head = shape_.KeyHead(head);
    const int32_t first = Offset(t) % kScanRows;
    const float *keys[kScanRows], *queries[kScanRows], *values[kScanRows];
    float steps[kScanRows], gains[kScanRows];
    float* out[kScanRows];
    for (int32_t i = 0; i < n; ++i) {
      const float* row = mixed_ + (t + i) * channels_;
      queries[i] = row + int64_t{key_head} * shape_.key_dim;
      keys[i] = queries[i] + shape_.keys();
      values[i] = row + 2 * shape_.keys() + int64_t{head} * shape_.value_dim;
      steps[i] = steps_[(t + i) * shape_.n_heads + head];
      gains[i] = gains_[(t + i) * shape_.n_heads + head];
      out[i] = args_.out.row<float>(t + i) + int64_t{head} * shape_.value_dim;
    }
    kernels_.scan({.state = part.state,
                   .keys = part.keys,
                   .placed_keys = part.own_keys,
                   .key_rows = keys,
                   .query_rows = queries,
                   .value_rows = values,
                   .steps = steps,
                   .gains = gains,
                   .skip = args_.skip == nullptr ? 0.0f : args_.skip[head],
                   .delta = shape_.rule == RecurrenceRule::kGatedDelta,
                   .first = first,
                   .rows = n,
                   .key_dim = shape_.key_dim,
                   .value_dim = shape_.value_dim,
                   .updates = pages_.updates(Page(t), head, Offset(t)),
                   .decays = pages_.decays(Page(t), head, Offset(t)),
                   .out = out,
                   .scratch = part.scratch});
  }

  void ScanHead(const RecurrenceSlice& slice, int32_t head, int32_t thread) const {
    if (slice.n == 0) return;
    float* memory = of_threads_ + thread * ThreadFloats();
    Part part;
    part.spare = memory;
    float* own_keys = part.spare + StateFloats();
    part.folded = own_keys + int64_t{kScanRows} * shape_.key_dim;
    part.scratch = part.folded + int64_t{kScanRows} * shape_.key_dim;
    Begin(slice, head, &part);
    part.keys = pages_.keys(slice.page, shape_.KeyHead(head), slice.offset);
    if (slice.n > 1) {
      const size_t bytes = static_cast<size_t>(kScanRows) * shape_.key_dim * sizeof(float);
      if (slice.offset % kScanRows > 0) {
        std::memcpy(own_keys, part.keys, bytes);
      } else {
        std::memset(own_keys, 0, bytes);
      }
      part.keys = part.own_keys = own_keys;
    }
    const int64_t end = slice.first_row + slice.n;
    for (int64_t t = slice.first_row; t < end;) {
      const int32_t in_part = Offset(t) % kScanRows;
      const auto n = static_cast<int32_t>(std::min<int64_t>(kScanRows - in_part, end - t));
      if (in_part == 0 && t > slice.first_row) Advance(slice, t, head, &part);
      ScanPart(t, n, head, part);
      t += n;
    }
  }

  // Keeps of row t what later steps need, if no later row of this step takes its place.
  void Keep(const RecurrenceSlice& slice, int64_t t) const {
    const int64_t page = Page(t);
    const int32_t offset = Offset(t);
    const int64_t behind = places_.RowsInPage(t, slice.first_row + slice.n) - 1;
    if (behind < pages_.layout().input_rows) {
      std::memcpy(pages_.input(page, offset), args_.in.row<float>(t),
                  static_cast<size_t>(channels_) * sizeof(float));
    }
    if (behind < 2 * kScanRows && slice.n > 1) {
      for (int32_t h = 0; h < shape_.n_key_heads; ++h) KeepKey(t, h);
    }
  }

  void Finish(int64_t t) const {
    kernels_.gate({.gate = args_.in.row<float>(t) + shape_.gate_column(),
                   .norm = args_.norm,
                   .dim = shape_.values(),
                   .width = args_.norm == nullptr ? shape_.values() : args_.norm_width,
                   .norm_per_value = args_.norm_per_value,
                   .gates_first = args_.gates_first,
                   .eps = args_.norm_eps,
                   .row = args_.out.row<float>(t)});
    Keep(slices_.OfRow(t), t);
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
  float* mixed_;       // [n_tokens, channels]: q, k and v
  float* steps_;       // [n_tokens, n_heads]: g
  float* gains_;       // [n_tokens, n_heads]
  float* of_threads_;  // [num_threads, ThreadFloats()]
};

}  // namespace

void Recurrence(const HostBatch& batch, const RecurrenceArgs& args,
                const RecurrenceKernels& kernels, ThreadPool& pool, Scratch& scratch) {
  if (batch.n_tokens() == 0) return;
  if (args.shape.is_selective()) return SelectiveScan(batch, args, kernels, pool, scratch);
  RecurrenceRun(batch, args, kernels, pool, scratch).Run();
}

}  // namespace heddle::kernels::cpu
