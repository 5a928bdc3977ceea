#include "kernels/cpu/wkv.h"

#include <algorithm>

#include "kernels/cpu/step_slices.h"
#include "kernels/wkv_pages.h"

namespace heddle::kernels::cpu {
namespace {

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerShiftedElement = 0.3;
constexpr double kNsPerMixedElement = 2;
constexpr double kNsPerStateElement = 0.3;  // of a row
constexpr double kNsPerFinishedElement = 1;

// One call of the op. Memory holds for each row the parts of WkvState::kParts.
class TimeMixRun {
 public:
  TimeMixRun(const HostBatch& batch, const WkvArgs& args, const WkvKernels& kernels,
             ThreadPool& pool, Scratch& scratch)
      : batch_(batch),
        args_(args),
        kernels_(kernels),
        pool_(pool),
        pages_(args),
        dim_(args.head_dim),
        memory_(static_cast<char*>(
            scratch.Get(StepSlices::Bytes(batch) + Floats() * int64_t{sizeof(float)}))),
        slices_(batch, args.page_tokens, memory_),
        rows_(reinterpret_cast<float*>(memory_ + StepSlices::Bytes(batch))),
        of_threads_(rows_ + batch.n_tokens() * RowFloats()) {}

  void Run() {
    const auto width = static_cast<double>(pages_.width());
    pool_.ForRange(batch_.n_tokens(), kNsPerMixedElement * width,
                   [&](int64_t begin, int64_t end, int32_t) {
                     for (int64_t t = begin; t < end; ++t) Mix(t);
                   });
    const int64_t seqs = batch_.n_seqs();
    const double rows = static_cast<double>(batch_.n_tokens()) / static_cast<double>(seqs);
    pool_.ForEach(seqs * args_.n_heads,
                  kNsPerStateElement * static_cast<double>(dim_ * dim_) * (rows + 0.5 * kScanRows),
                  [&](int64_t i, int32_t thread) {
                    Walk(slices_[i % seqs], static_cast<int32_t>(i / seqs),
                         of_threads_ + thread * ThreadFloats());
                  });
    pool_.ForRange(batch_.n_tokens(), kNsPerFinishedElement * width,
                   [&](int64_t begin, int64_t end, int32_t) {
                     for (int64_t t = begin; t < end; ++t) Finish(t);
                   });
    for (const RecurrenceSlice& slice : slices_.all()) Keep(slice);
  }

 private:
  int64_t RowFloats() const { return WkvState::kParts * pages_.width(); }
  int64_t ThreadFloats() const { return dim_ * dim_; }
  int64_t Floats() const {
    return batch_.n_tokens() * RowFloats() + pool_.num_threads() * ThreadFloats();
  }
  float* PartOf(int64_t t, int64_t part) const {
    return rows_ + t * RowFloats() + part * pages_.width();
  }

  void Mix(int64_t t) const {
    for (int32_t head = 0; head < args_.n_heads; ++head) {
      const int64_t at = head * dim_;
      const float* const m = args_.m.data == nullptr ? nullptr : args_.m.row<float>(t) + at;
      kernels_.mix({.k = args_.k.row<float>(t) + at,
                    .v = args_.v.row<float>(t) + at,
                    .w = args_.w.row<float>(t) + at,
                    .a = args_.a.row<float>(t) + at,
                    .m = m,
                    .first_value = args_.first_value.row<float>(t) + at,
                    .key_scale = args_.key_scale + at,
                    .key_mix = args_.key_mix + at,
                    .dim = static_cast<int32_t>(dim_),
                    .decay = PartOf(t, 0) + at,
                    .key = PartOf(t, 1) + at,
                    .value = PartOf(t, 2) + at,
                    .unit = PartOf(t, 3) + at,
                    .gain = PartOf(t, 4) + at});
    }
    if (args_.m.data == nullptr) {
      std::copy_n(args_.v.row<float>(t), pages_.width(), args_.first_value.row<float>(t));
    }
  }

  WkvStepArgs StepOf(const float* const (&parts)[WkvState::kParts], float* s) const {
    return {.decay = parts[0],
            .key = parts[1],
            .value = parts[2],
            .unit = parts[3],
            .gain = parts[4],
            .r = nullptr,
            .dim = static_cast<int32_t>(dim_),
            .state = s,
            .out = nullptr};
  }

  void Walk(const RecurrenceSlice& slice, int32_t head, float* memory) const {
    const int64_t at = head * dim_;
    WalkSlice(
        batch_, slice, args_, head, memory,
        [&](float* s, int64_t page, int32_t offset) {
          const float* parts[WkvState::kParts];
          for (int64_t i = 0; i < WkvState::kParts; ++i)
            parts[i] = pages_.row(page, offset, i) + at;
          kernels_.step(StepOf(parts, s));
        },
        [&](float* s, int64_t t) {
          const float* parts[WkvState::kParts];
          for (int64_t i = 0; i < WkvState::kParts; ++i) parts[i] = PartOf(t, i) + at;
          WkvStepArgs step = StepOf(parts, s);
          step.r = args_.r.row<float>(t) + at;
          step.out = args_.out.row<float>(t) + at;
          kernels_.step(step);
        });
  }

  void Finish(int64_t t) const {
    for (int32_t head = 0; head < args_.n_heads; ++head) {
      const int64_t at = head * dim_;
      kernels_.finish({.r = args_.r.row<float>(t) + at,
                       .key = PartOf(t, 1) + at,
                       .value = PartOf(t, 2) + at,
                       .bonus = args_.bonus + at,
                       .norm = args_.norm + at,
                       .norm_bias = args_.norm_bias + at,
                       .gate = args_.gate.row<float>(t) + at,
                       .eps = args_.norm_eps,
                       .dim = static_cast<int32_t>(dim_),
                       .row = args_.out.row<float>(t) + at});
    }
  }

  void Keep(const RecurrenceSlice& slice) const {
    ForKeptRows(batch_, slice, args_.page_tokens, 2 * kScanRows,
                [&](int64_t t, int64_t page, int32_t offset, int64_t) {
                  std::copy_n(PartOf(t, 0), RowFloats(), pages_.row(page, offset, 0));
                });
    SetBorders(batch_, slice, args_.page_tokens, pages_);
  }

  const HostBatch& batch_;
  const WkvArgs& args_;
  const WkvKernels& kernels_;
  ThreadPool& pool_;
  const WkvPages pages_;
  const int64_t dim_;
  char* const memory_;  // slices, then floats
  const StepSlices slices_;
  float* const rows_;        // [n_tokens, kParts, width]
  float* const of_threads_;  // [num_threads, ThreadFloats()]
};

}  // namespace

void TokenShift(const HostBatch& batch, const TokenShiftArgs& args, const WkvKernels& kernels,
                ThreadPool& pool, Scratch& scratch) {
  if (batch.n_tokens() == 0) return;
  const StepSlices slices(batch, args.page_tokens, scratch.Get(StepSlices::Bytes(batch)));
  const int64_t hidden = args.x.cols;
  pool.ForRange(batch.n_tokens(), kNsPerShiftedElement * static_cast<double>(hidden * args.n_mixes),
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t t = begin; t < end; ++t) {
                    const RecurrenceSlice& slice = slices.OfRow(t);
                    const float* before =
                        t > slice.first_row ? args.x.row<float>(t - 1) : ShiftBefore(args, slice);
                    for (int32_t m = 0; m < args.n_mixes; ++m) {
                      kernels.shift(args.x.row<float>(t), before, args.mix + m * hidden, hidden,
                                    args.out.row<float>(t) + m * hidden);
                    }
                  }
                });
  for (const RecurrenceSlice& slice : slices.all()) {
    ForKeptRows(batch, slice, args.page_tokens, WkvState::kShiftRows,
                [&](int64_t t, int64_t page, int32_t offset, int64_t) {
                  std::copy_n(args.x.row<float>(t), hidden, ShiftRow(args, page, offset));
                });
  }
}

void TimeMix(const HostBatch& batch, const WkvArgs& args, const WkvKernels& kernels,
             ThreadPool& pool, Scratch& scratch) {
  if (batch.n_tokens() == 0) return;
  TimeMixRun(batch, args, kernels, pool, scratch).Run();
}

}  // namespace heddle::kernels::cpu
