#include "kernels/cpu/wkv.h"

#include <algorithm>

#include "kernels/cpu/step_slices.h"
#include "kernels/wkv_pages.h"

namespace heddle::kernels::cpu {
namespace {

// Approximate nanoseconds, to decide how many threads to wake.
constexpr double kNsPerShiftedElement = 0.3;
constexpr double kNsPerMixedElement = 3;    // and finished
constexpr double kNsPerStateElement = 0.3;  // of a row

// Rows of a head that are mixed before S takes them in: their parts stay in the first-level cache.
constexpr int32_t kRowsTogether = 16;

// One call of the op. A thread takes all rows of a sequence in one head.
class TimeMixRun {
 public:
  TimeMixRun(const HostBatch& batch, const WkvArgs& args, const WkvKernels& kernels,
             ThreadPool& pool, Scratch& scratch)
      : batch_(batch),
        args_(args),
        kernels_(kernels),
        pool_(pool),
        pages_(args),
        places_(batch, args.page_tokens),
        dim_(args.head_dim),
        memory_(static_cast<char*>(
            scratch.Get(StepSlices::Bytes(batch) +
                        pool.num_threads() * ThreadFloats() * int64_t{sizeof(float)}))),
        slices_(batch, args.page_tokens, memory_),
        of_threads_(reinterpret_cast<float*>(memory_ + StepSlices::Bytes(batch))) {}

  void Run() {
    const int64_t seqs = batch_.n_seqs();
    const double rows = static_cast<double>(batch_.n_tokens()) / static_cast<double>(seqs);
    const double row_ns = kNsPerStateElement * static_cast<double>(dim_ * dim_) +
                          kNsPerMixedElement * static_cast<double>(dim_);
    pool_.ForEach(seqs * args_.n_heads, row_ns * (rows + 1), [&](int64_t i, int32_t thread) {
      Walk(slices_[i % seqs], static_cast<int32_t>(i / seqs),
           of_threads_ + thread * ThreadFloats());
    });
    for (const RecurrenceSlice& slice : slices_.all()) SetRowBorders(places_, slice, pages_);
  }

 private:
  // The parts that S takes in of a row, of one head: [dim] each.
  using Parts = float * [WkvState::kParts];

  // A thread's S and the parts of kRowsTogether rows.
  int64_t ThreadFloats() const {
    return dim_ * (dim_ + kRowsTogether * WkvState::kParts) + kThreadsApart / 4;
  }

  void Walk(const RecurrenceSlice& slice, int32_t head, float* memory) const {
    WalkSlice(
        places_, pages_, slice, head, memory,
        [&](float* s, int64_t page, int32_t offset) {
          Parts parts;
          PartsInPage(page, offset, head, &parts);
          const WkvRow row = RowOf(parts);
          kernels_.step({&row, 1, static_cast<int32_t>(dim_), s});
        },
        [&](float* s, int64_t t, int32_t n) {
          for (int32_t i = 0; i < n; i += kRowsTogether) {
            RunRows(t + i, std::min(kRowsTogether, n - i), head, !slice.ends_behind(), s,
                    memory + dim_ * dim_);
          }
        });
  }

  void PartsInPage(int64_t page, int32_t offset, int32_t head, Parts* parts) const {
    for (int64_t i = 0; i < WkvState::kParts; ++i) {
      (*parts)[i] = pages_.row(page, offset, i) + head * dim_;
    }
  }

  // Rows [t, t + n) of one page. `keeps`: what S takes in stays in the page.
  void RunRows(int64_t t, int32_t n, int32_t head, bool keeps, float* s, float* memory) const {
    Parts parts[kRowsTogether];
    for (int32_t i = 0; i < n; ++i) {
      if (keeps) {
        PartsInPage(places_.Page(t + i), places_.Offset(t + i), head, &parts[i]);
      } else {
        for (int64_t p = 0; p < WkvState::kParts; ++p, memory += dim_) parts[i][p] = memory;
      }
      Mix(t + i, head, parts[i]);
    }
    WkvRow rows[kRowsTogether];
    for (int32_t i = 0; i < n; ++i) {
      rows[i] = RowOf(parts[i]);
      rows[i].r = args_.r.row<float>(t + i) + head * dim_;
      rows[i].out = args_.out.row<float>(t + i) + head * dim_;
    }
    kernels_.step({rows, n, static_cast<int32_t>(dim_), s});
    for (int32_t i = 0; i < n; ++i) Finish(t + i, head, parts[i]);
  }

  void Mix(int64_t t, int32_t head, const Parts& parts) const {
    const int64_t at = head * dim_;
    const bool is_first = args_.m.data == nullptr;
    kernels_.mix({.k = args_.k.row<float>(t) + at,
                  .v = args_.v.row<float>(t) + at,
                  .w = args_.w.row<float>(t) + at,
                  .a = args_.a.row<float>(t) + at,
                  .m = is_first ? nullptr : args_.m.row<float>(t) + at,
                  .first_value = args_.first_value.row<float>(t) + at,
                  .key_scale = args_.key_scale + at,
                  .key_mix = args_.key_mix + at,
                  .dim = static_cast<int32_t>(dim_),
                  .decay = parts[0],
                  .key = parts[1],
                  .value = parts[2],
                  .unit = parts[3],
                  .gain = parts[4]});
    if (is_first) std::copy_n(parts[2], dim_, args_.first_value.row<float>(t) + at);
  }

  static WkvRow RowOf(const Parts& parts) {
    return {.decay = parts[0],
            .key = parts[1],
            .value = parts[2],
            .unit = parts[3],
            .gain = parts[4],
            .r = nullptr,
            .out = nullptr};
  }

  void Finish(int64_t t, int32_t head, const Parts& parts) const {
    const int64_t at = head * dim_;
    kernels_.finish({.r = args_.r.row<float>(t) + at,
                     .key = parts[1],
                     .value = parts[2],
                     .bonus = args_.bonus + at,
                     .norm = args_.norm == nullptr ? nullptr : args_.norm + at,
                     .norm_bias = args_.norm_bias == nullptr ? nullptr : args_.norm_bias + at,
                     .gate = args_.gate.data == nullptr ? nullptr : args_.gate.row<float>(t) + at,
                     .eps = args_.norm_eps,
                     .dim = static_cast<int32_t>(dim_),
                     .row = args_.out.row<float>(t) + at});
  }

  const HostBatch& batch_;
  const WkvArgs& args_;
  const WkvKernels& kernels_;
  ThreadPool& pool_;
  const WkvPages pages_;
  const RowPlaces places_;
  const int64_t dim_;
  char* const memory_;  // slices, then floats
  const StepSlices slices_;
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
