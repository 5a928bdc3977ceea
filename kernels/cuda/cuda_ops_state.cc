// Layers with state in place of keys and values: short convolutions, recurrences, time mixes. Their
// kernels find a sequence's pages by themselves, from the batch as its group of layers sees it, so
// that nothing is planned for them and launches of a step differ only in its numbers of rows and
// sequences.
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/state/state_params.h"

namespace heddle::kernels::cuda {
namespace {

absl::Status TooLarge(const char* what, int64_t found, int64_t most) {
  return absl::UnimplementedError(
      absl::StrCat(what, " of ", found, "; CUDA has kernels up to ", most));
}

void CheckSnapshots(const KvCacheView& cache, int32_t page_tokens, int64_t floats) {
  HEDDLE_CHECK(
      cache.dtype == DType::kF32 && cache.head_dim >= floats && page_tokens % kScanRows == 0,
      "pages of another layer's state");
}

// Whether q, k and v are made by a launch of their own: where a block of the scan would make those
// of many rows, and there is room. The bits are the same either way.
bool MixesApart(const RecurrenceArgs& args, int32_t n_seqs, int64_t room) {
  constexpr int64_t kLeastRows = 64, kLeastOfSequence = 4;
  const int64_t rows = args.in.rows;
  return rows >= kLeastRows && rows >= kLeastOfSequence * n_seqs &&
         rows * args.shape.channels() * static_cast<int64_t>(sizeof(float)) <= room;
}

}  // namespace

StateBatch CudaOps::States(int32_t group) {
  has_states_ = true;
  return {.all = step_.groups[static_cast<size_t>(group)],
          .first_row = step_.first_row,
          .n_rows = step_.n_rows};
}

void CudaOps::ShortConv(const ShortConvArgs& args) {
  HEDDLE_CHECK(args.cache.dtype == DType::kF32 && args.cache.n_kv_heads == 1,
               "a convolution keeps one F32 vector per position");
  if (!step_.status.ok() || args.out.rows == 0) return;
  Note(LaunchShortConv(States(args.cache.group), args, step_.activations, step_.stream),
       "short convolution");
}

void CudaOps::Recurrence(const RecurrenceArgs& args) {
  const RecurrenceShape& shape = args.shape;
  CheckSnapshots(args.cache, args.page_tokens, RecurrenceState(shape).floats);
  HEDDLE_CHECK(shape.taps <= kScanRows, "a recurrence's convolution has too many taps");
  if (!step_.status.ok() || args.out.rows == 0) return;
  const int32_t most = shape.is_selective() ? kMaxSelectedRows : kMaxStateRows;
  if (shape.key_dim > most) return Note(TooLarge("a recurrence with states", shape.key_dim, most));
  const StateBatch batch = States(args.cache.group);
  const DType act = step_.activations;
  if (!shape.is_selective()) {
    float* mixed = nullptr;
    if (MixesApart(args, batch.all.n_seqs, step_.workspace.bytes)) {
      mixed = reinterpret_cast<float*>(step_.workspace.data);
      Note(LaunchRecurrenceMix(batch, args, mixed, act, step_.stream),
           "a recurrence's convolution");
    }
    const int32_t shared = step_.runtime.info().max_shared_bytes;
    Note(LaunchRecurrenceScan(batch, args, mixed, shared, act, step_.stream), "recurrence");
    Note(LaunchRecurrenceEnd(batch, args, mixed, act, step_.stream), "a recurrence's gates");
  } else if (args.factors.data == nullptr) {
    Note(LaunchSelectiveConv(batch, args, act, step_.stream), "a selective scan's convolution");
  } else {
    Note(LaunchSelectiveScan(batch, args, act, step_.stream), "selective scan");
  }
}

void CudaOps::GateElements(Tensor gate, Tensor x) {
  if (!step_.status.ok() || x.rows == 0) return;
  Note(LaunchGateElements(gate, x, step_.activations, step_.stream), "gating");
}

void CudaOps::Scale(Tensor x, float factor) {
  if (!step_.status.ok() || x.rows == 0) return;
  Note(LaunchScaleElements(x, factor, step_.activations, step_.stream), "scaling");
}

void CudaOps::TokenShift(const TokenShiftArgs& args) {
  if (!step_.status.ok() || args.out.rows == 0) return;
  Note(LaunchTokenShift(States(args.cache.group), args, step_.activations, step_.stream),
       "token shift");
}

void CudaOps::TimeMix(const WkvArgs& args) {
  CheckSnapshots(args.cache, args.page_tokens, WkvState(args.n_heads, args.head_dim, 0).floats);
  if (!step_.status.ok() || args.out.rows == 0) return;
  if (args.head_dim > kMaxTimeMixDim) {
    return Note(TooLarge("a time mix with heads", args.head_dim, kMaxTimeMixDim));
  }
  Note(LaunchTimeMix(States(args.cache.group), args, step_.activations, step_.stream), "time mix");
}

void CudaOps::SquashElements(Squash kind, Tensor x) {
  if (!step_.status.ok() || x.rows == 0) return;
  Note(LaunchSquash(kind, x, step_.activations, step_.stream), "squashing");
}

}  // namespace heddle::kernels::cuda
