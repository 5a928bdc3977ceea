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

static_assert(kPartRows == kScanRows && PartScratchFloats(1) == 2 * kScanRows);

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerMixedElement = 0.8;
constexpr double kNsPerStateElement = 0.1;  // of a row
constexpr double kNsPerGatedElement = 0.8;
constexpr double kNsPerDot = 4.0;

constexpr float kKeyEps = 1e-6f;  // of the delta rule's keys and queries

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
    dots_ = gains_ + n_tokens_ * shape_.n_heads;
    of_threads_ = dots_ + n_tokens_ * DotFloats(shape_);
  }

  void Run() {
    const int64_t seqs = batch_.n_seqs();
    const double mix_cost =
        kNsPerMixedElement * static_cast<double>(channels_) / static_cast<double>(shape_.n_heads);
    pool_.ForRange(n_tokens_ * shape_.n_heads, mix_cost, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) {
        Mix(i / shape_.n_heads, static_cast<int32_t>(i % shape_.n_heads));
      }
    });
    if (HasChunks()) MultiplyKeys();
    const double rows = static_cast<double>(n_tokens_) / static_cast<double>(seqs);
    const double scan_cost = kNsPerStateElement * static_cast<double>(StateFloats()) * (rows + 1);
    pool_.ForEach(seqs * shape_.n_heads, scan_cost,
                  [&](int64_t i, int32_t thread) { ScanHead(i, thread); });
    const int64_t groups = shape_.values() / GateWidth();
    pool_.ForRange(n_tokens_ * groups, kNsPerGatedElement * static_cast<double>(GateWidth()),
                   [&](int64_t begin, int64_t end, int32_t) {
                     for (int64_t i = begin; i < end; ++i) Finish(i / groups, i % groups);
                   });
    for (const RecurrenceSlice& slice : slices_.all()) {
      SetBorders(batch_, slice, args_.page_tokens, pages_);
    }
  }

 private:
  bool HasChunks() const {
    const auto all = slices_.all();
    return std::any_of(all.begin(), all.end(), [](const RecurrenceSlice& s) { return s.n > 1; });
  }
  int64_t StateFloats() const { return int64_t{shape_.key_dim} * shape_.value_dim; }
  // For a thread: an S, and what Scan and Fold need.
  int64_t ThreadFloats() const { return ThreadWorkingFloats(shape_) + kThreadsApart / 4; }
  int64_t GateWidth() const { return args_.norm == nullptr ? shape_.value_dim : args_.norm_width; }

  int64_t Floats() const {
    return n_tokens_ * WorkingFloats(shape_) + pool_.num_threads() * ThreadFloats();
  }

  int64_t Page(int64_t t) const { return places_.Page(t); }
  int32_t Offset(int64_t t) const { return places_.Offset(t); }

  float* Key(int64_t t, int32_t key_head) const {
    return mixed_ + t * channels_ + shape_.keys() + int64_t{key_head} * shape_.key_dim;
  }
  // The keys [kScanRows, key_dim] that the part of `offset` keeps.
  float* KeptKeys(int64_t page, int32_t key_head, int32_t offset) const {
    return pages_.keys(page, key_head, offset);
  }
  void KeepKey(int64_t t, int32_t key_head) const {
    float* to =
        KeptKeys(Page(t), key_head, Offset(t)) + int64_t{Offset(t) % kScanRows} * shape_.key_dim;
    std::memcpy(to, Key(t, key_head), static_cast<size_t>(shape_.key_dim) * sizeof(float));
  }

  // The keys of the part of row t up to it; those of earlier steps are in its page.
  void KeysOfPart(const RecurrenceSlice& slice, int64_t t, int32_t key_head,
                  const float** keys) const {
    const int32_t at = Offset(t) % kScanRows;
    const float* kept = KeptKeys(Page(t), key_head, Offset(t));
    for (int32_t j = 0; j <= at; ++j) {
      const int64_t row = t - at + j;
      keys[j] = row >= slice.first_row ? Key(row, key_head) : kept + int64_t{j} * shape_.key_dim;
    }
  }

  // The products of row t's k, if the rule has them, and q with its part's keys.
  float* DotsOf(int64_t t, int32_t key_head) const {
    return dots_ + t * DotFloats(shape_) + key_head * (DotFloats(shape_) / shape_.n_key_heads);
  }
  void MultiplyKeys(const RecurrenceSlice& slice, int64_t t, int32_t key_head) const {
    const float* keys[kScanRows];
    KeysOfPart(slice, t, key_head, keys);
    const bool is_delta = shape_.rule == RecurrenceRule::kGatedDelta;
    const float* key = Key(t, key_head);
    const float* query = key - shape_.keys();
    const float* rows[2] = {is_delta ? key : query, query};
    kernels_.dots({.rows = rows,
                   .n_rows = is_delta ? 2 : 1,
                   .keys = keys,
                   .n_keys = Offset(t) % kScanRows + 1,
                   .dim = shape_.key_dim,
                   .out = DotsOf(t, key_head)});
  }
  void MultiplyKeys() const {
    const double cost = kNsPerDot * static_cast<double>(DotFloats(shape_)) /
                        static_cast<double>(shape_.n_key_heads);
    pool_.ForRange(n_tokens_ * shape_.n_key_heads, cost, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i / shape_.n_key_heads;
        const RecurrenceSlice& slice = slices_.OfRow(t);
        if (slice.n > 1) MultiplyKeys(slice, t, static_cast<int32_t>(i % shape_.n_key_heads));
      }
    });
  }

  // Convolves `dim` channels of row t from `begin` on; eps: see MixRowArgs.
  void Mix(const RecurrenceSlice& slice, int64_t t, int64_t begin, int32_t dim, float eps,
           float scale) const {
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
                  .dim = dim,
                  .eps = eps,
                  .scale = scale,
                  .out = mixed_ + t * channels_ + begin});
    if (slice.n == 1) {
      std::memcpy(pages_.input(Page(t), Offset(t)) + begin, args_.in.row<float>(t) + begin,
                  static_cast<size_t>(dim) * sizeof(float));
    }
  }

  // Computes v of a head of row t, q and k if it is the first of those that share a key head, and
  // with the last head the steps of all. A single row is kept at once: no other one of this step
  // needs the place.
  void Mix(int64_t t, int32_t head) const {
    const RecurrenceSlice& slice = slices_.OfRow(t);
    if (head == shape_.n_heads - 1) SetSteps(t);
    Mix(slice, t, ValuesAt(head), shape_.value_dim, 0.0f, 1.0f);
    const int32_t sharing = shape_.n_heads / shape_.n_key_heads;
    if (head % sharing != 0) return;
    const int32_t key_head = head / sharing;
    const int64_t query = int64_t{key_head} * shape_.key_dim;
    const bool is_unit = shape_.rule == RecurrenceRule::kGatedDelta;
    const float eps = is_unit ? kKeyEps : 0.0f;
    Mix(slice, t, query, shape_.key_dim, eps, 1.0f / std::sqrt(static_cast<float>(shape_.key_dim)));
    Mix(slice, t, shape_.keys() + query, shape_.key_dim, eps, 1.0f);
    if (slice.n > 1) return;
    KeepKey(t, key_head);
    MultiplyKeys(slice, t, key_head);
  }

  int64_t ValuesAt(int32_t head) const {
    return 2 * shape_.keys() + int64_t{head} * shape_.value_dim;
  }

  void SetSteps(int64_t t) const {
    const float* row = args_.in.row<float>(t);
    const bool is_delta = shape_.rule == RecurrenceRule::kGatedDelta;
    kernels_.steps({.steps = row + shape_.step_column(),
                    .betas = is_delta ? row + shape_.beta_column() : nullptr,
                    .bias = args_.step_bias,
                    .decay = args_.decay,
                    .min_step = args_.min_step,
                    .max_step = args_.max_step,
                    .n = shape_.n_heads,
                    .decays = steps_ + t * shape_.n_heads,
                    .gains = gains_ + t * shape_.n_heads});
  }

  // A part of a sequence's rows in one head, as it is computed.
  struct Part {
    const float* state = nullptr;
    float* spare = nullptr;    // memory for S
    float* scratch = nullptr;  // PartScratchFloats(value_dim)
  };

  void Fold(const float* state, const float* const* keys, int64_t page, int32_t head,
            int32_t offset, const Part& part, float* out) const {
    kernels_.fold({.state = state,
                   .keys = keys,
                   .updates = pages_.updates(page, head, offset),
                   .decays = pages_.decays(page, head, offset),
                   .key_dim = shape_.key_dim,
                   .value_dim = shape_.value_dim,
                   .out = out,
                   .scratch = part.scratch});
  }

  // Moves S of `page`, which is that at `border`, on by the part behind it, which is kept there.
  void FoldKept(int64_t page, int32_t border, int32_t head, const Part& part, float* out) const {
    HEDDLE_CHECK(pages_.border(page) == border, "a snapshot of another position");
    const float* kept = KeptKeys(page, shape_.KeyHead(head), border);
    const float* keys[kScanRows];
    for (int32_t j = 0; j < kScanRows; ++j) keys[j] = kept + int64_t{j} * shape_.key_dim;
    Fold(pages_.state(page, head), keys, page, head, border, part, out);
  }

  // Brings S to the beginning of the part that the slice's first row is in.
  void Begin(const RecurrenceSlice& slice, int32_t head, Part* part) const {
    float* own = pages_.state(slice.page, head);
    part->state = own;
    if (slice.offset > 0) {
      const int32_t begin = slice.offset - slice.offset % kScanRows;
      if (pages_.border(slice.page) == begin) return;
      FoldKept(slice.page, begin - kScanRows, head, *part, own);
    } else if (slice.page_before < 0) {
      std::memset(own, 0, static_cast<size_t>(StateFloats()) * sizeof(float));
    } else {
      FoldKept(slice.page_before, args_.page_tokens - kScanRows, head, *part, own);
    }
  }

  // Goes on behind the part whose last row is t - 1.
  void Advance(const RecurrenceSlice& slice, int64_t t, int32_t head, Part* part) const {
    const bool stays = Offset(t) == 0 || slice.is_final();
    float* next = stays ? pages_.state(Page(t), head) : part->spare;
    const float* keys[kScanRows];
    KeysOfPart(slice, t - 1, shape_.KeyHead(head), keys);
    Fold(part->state, keys, Page(t - 1), head, Offset(t - 1), *part, next);
    part->state = next;
  }

  // Computes rows [t, t + n), which are in one part.
  void ScanPart(int64_t t, int32_t n, int32_t head, const Part& part) const {
    const int32_t key_head = shape_.KeyHead(head);
    const int32_t first = Offset(t) % kScanRows;
    const float *keys[kScanRows], *queries[kScanRows], *values[kScanRows], *dots[kScanRows];
    float steps[kScanRows], gains[kScanRows];
    float* out[kScanRows];
    for (int32_t i = 0; i < n; ++i) {
      keys[i] = Key(t + i, key_head);
      queries[i] = keys[i] - shape_.keys();
      values[i] = mixed_ + (t + i) * channels_ + ValuesAt(head);
      dots[i] = DotsOf(t + i, key_head);
      steps[i] = steps_[(t + i) * shape_.n_heads + head];
      gains[i] = gains_[(t + i) * shape_.n_heads + head];
      out[i] = args_.out.row<float>(t + i) + int64_t{head} * shape_.value_dim;
    }
    kernels_.scan({.state = part.state,
                   .key_rows = keys,
                   .query_rows = queries,
                   .value_rows = values,
                   .dots = dots,
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

  // Item i: one head of one sequence.
  void ScanHead(int64_t i, int32_t thread) const {
    const RecurrenceSlice& slice = slices_[i / shape_.n_heads];
    const auto head = static_cast<int32_t>(i % shape_.n_heads);
    if (slice.n == 0) return;
    Part part;
    part.spare = of_threads_ + thread * ThreadFloats();
    part.scratch = part.spare + StateFloats();
    Begin(slice, head, &part);
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
    if (slice.n == 1) return;
    const int64_t behind = places_.RowsInPage(t, slice.first_row + slice.n) - 1;
    if (behind < pages_.layout().input_rows) {
      std::memcpy(pages_.input(Page(t), Offset(t)), args_.in.row<float>(t),
                  static_cast<size_t>(channels_) * sizeof(float));
    }
    if (behind < 2 * kScanRows) {
      for (int32_t h = 0; h < shape_.n_key_heads; ++h) KeepKey(t, h);
    }
  }

  // Gates a group of row t's values, which have one norm.
  void Finish(int64_t t, int64_t group) const {
    const int64_t begin = group * GateWidth();
    const bool has_own_norm = args_.norm != nullptr && args_.norm_per_value;
    kernels_.gate({.gate = args_.in.row<float>(t) + shape_.gate_column() + begin,
                   .norm = has_own_norm ? args_.norm + begin : args_.norm,
                   .dim = GateWidth(),
                   .width = GateWidth(),
                   .norm_per_value = args_.norm_per_value,
                   .gates_first = args_.gates_first,
                   .eps = args_.norm_eps,
                   .row = args_.out.row<float>(t) + begin});
    if (group == 0) Keep(slices_.OfRow(t), t);
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
  float* dots_;        // [n_tokens, n_key_heads, k if the rule has it and q, kScanRows]
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
