// The steps of the CUDA device: planning, launching as graphs or one by one, halves side by side,
// results.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/attention/wide_pages.h"
#include "kernels/cuda/cuda_device_class.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/split_ops.h"

namespace heddle::kernels::cuda {

// Layers with state beside others have rows of another width in the same buffers: a half would
// write where the other one's attention still reads. Whether there are any, a whole step tells.
bool CudaDevice::MaySplit(const HostBatch& batch) const {
  return batch.n_groups() == 1 || (knows_layers_ && !has_states_);
}

// Whether a step may have a second batch: some rows, and not all, have logits.
bool CudaDevice::MayNarrow(const HostBatch& batch) {
  return !batch.logit_rows.empty() && std::ssize(batch.logit_rows) < batch.n_tokens() &&
         LogitBatch::IsMadeOf(batch);
}

absl::Status CudaDevice::Plan(const HostBatch& batch) {
  HEDDLE_CHECK(num_launched_ < kMaxInFlight, "a third step in flight");
  HEDDLE_RETURN_IF_ERROR(batch_.Assign(batch));
  split_.reset();
  if (MaySplit(batch)) split_ = SplitOf(batch, nano_batches_, has_run_ && !attends_both_ways_);
  if (split_.has_value() && split_->is_within) {
    HEDDLE_RETURN_IF_ERROR(batch_.Assign(cut_batch_.Cut(batch, *split_)));
  }
  runtime_->Bind();
  staging_.Reset(static_cast<int>(next_step() % kMaxInFlight));
  batch_.Stage(staging_, static_cast<const int32_t*>(results_->data()));
  for (auto& planned : planned_) planned.clear();
  if (narrows_ && !split_.has_value() && MayNarrow(batch_.host())) batch_.StageNarrow(staging_);
  for (const AttentionGrouping& grouping : groupings_) {
    if (grouping.layers >= batch.n_groups()) continue;
    if (grouping.of_logit_rows && !batch_.is_narrow()) continue;
    if (grouping.turns_queries && !HasTurns(batch_.host())) continue;
    if (split_.has_value()) {
      HEDDLE_RETURN_IF_ERROR(StageAttention(grouping, kFirst));
      HEDDLE_RETURN_IF_ERROR(StageAttention(grouping, kSecond));
    } else {
      HEDDLE_RETURN_IF_ERROR(StageAttention(grouping, kWhole));
    }
  }
  return staging_.Send();
}

absl::Status CudaDevice::StageAttention(const AttentionGrouping& grouping, Part part) {
  SequenceRange range = {0, batch_.host().n_seqs()};
  int32_t multiprocessors = runtime_->info().num_multiprocessors;
  if (part == kFirst) range.end = split_->sequences;
  if (part == kSecond) range.begin = split_->sequences;
  if (part != kWhole && split_->attention_multiprocessors > 0) {
    multiprocessors = split_->attention_multiprocessors;
  }
  const AttentionRoom room = RoomOf(workspace(part).bytes, grouping);
  AttentionGrouping own = grouping;
  // The halves' attention and products use counters at the same time.
  own.merges_in_tiles = grouping.merges_in_tiles && part == kWhole;
  const HostBatch& host = grouping.of_logit_rows ? batch_.narrow_host() : batch_.host();
  const AttentionPlan plan = PlanAttention(host.OfGroup(grouping.layers), range, own,
                                           {.multiprocessors = multiprocessors,
                                            .max_partials = static_cast<int32_t>(room.max_partials),
                                            .max_wide_pages = room.max_wide_pages});
  if (!plan.fits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attention over a context of pieces needs two partial results of each of ",
                     grouping.group, " heads at a time; the workspace of ", workspace(part).bytes,
                     " bytes holds ", room.max_partials));
  }
  planned_[part].push_back(StagePlan(plan, grouping, &staging_));
  return absl::OkStatus();
}

absl::StatusOr<PlannedAttention> CudaDevice::PlanFor(const AttentionGrouping& grouping, Part part) {
  for (const PlannedAttention& planned : planned_[part]) {
    if (planned.grouping == grouping) return planned;
  }
  if (std::find(groupings_.begin(), groupings_.end(), grouping) == groupings_.end()) {
    groupings_.push_back(grouping);
  }
  HEDDLE_RETURN_IF_ERROR(StageAttention(grouping, part));
  // Always on lane 0: the other lane has to wait for it.
  HEDDLE_RETURN_IF_ERROR(staging_.Send());
  if (part == kSecond) {
    HEDDLE_RETURN_IF_ERROR(runtime_->Signal(0));
    HEDDLE_RETURN_IF_ERROR(runtime_->Wait(1, 0));
  }
  return planned_[part].back();
}

// Steps after the first one that narrows have their second batch among what is sent in front.
absl::StatusOr<NarrowBatch> CudaDevice::Narrow() {
  narrows_ = true;
  if (!batch_.is_narrow()) {
    batch_.StageNarrow(staging_);
    HEDDLE_RETURN_IF_ERROR(staging_.Send());
  }
  return NarrowBatch{&batch_.narrow_host(), batch_.narrow_groups()};
}

CudaOps CudaDevice::OpsFor(Part part) {
  DeviceStep step = {
      .runtime = *runtime_,
      .activations = options_.activations,
      .stream = runtime_->stream(part == kSecond ? 1 : 0),
      .groups = batch_.groups(),
      .n_rows = batch_.n_tokens(),
      .host = &batch_.host(),
      .segments = batch_.segments(),
      .workspace = workspace(part),
      .drawn = {static_cast<uint8_t*>(results_->data()), kDrawnBytes},
      .results = {static_cast<uint8_t*>(results_->data()) + kDrawnBytes,
                  kSampleBytes - kDrawnBytes},
      .row_sums = {static_cast<uint8_t*>(results_->data()) + kSampleBytes, kRowSumBytes},
      .counters = static_cast<int32_t*>(counters_->data()),
      .adapters = batch_.adapters(),
      .logit_adapters = batch_.logit_adapters(),
      .staging = staging_,
      .library = library_.get(),
      .always_dequantizes = options_.always_dequantizes,
      .scores_codes = options_.scores_codes,
      .ways = options_.tunes ? &ways_ : nullptr,
      .times_products = part == kWhole && !split_.has_value(),
      .ranks = part == kSecond ? halves_.get() : group_.get(),
      .over_nccl = StepsOverNccl(),
      .stages = stages_.get(),
      .plan_attention =
          [this, part](const AttentionGrouping& grouping) { return PlanFor(grouping, part); },
      .narrow = [this] { return Narrow(); },
      .call_library =
          [this](bool last, std::function<absl::Status()> call) {
            return CallLibrary(last, std::move(call));
          }};
  if (is_taped_) {
    step.leave_tape = [this](bool for_good) { return LeaveTape(for_good); };
  }
  if (part == kWhole) return CudaOps(step);
  step.is_half = true;
  step.attention_multiprocessors = split_->attention_multiprocessors;
  if (part == kFirst) {
    step.n_rows = split_->rows;
  } else {
    step.first_row = split_->rows;
    step.n_rows -= split_->rows;
  }
  return CudaOps(step);
}

// Launches the ops, directly or on the tape, and asks for the results.
absl::Status CudaDevice::RunBody(uint64_t step, const std::function<void(Ops&)>& body) {
  if (library_ != nullptr) {
    library_->SpareMultiprocessors(split_.has_value() ? split_->attention_multiprocessors : 0);
  }
  CudaOps whole = OpsFor(kWhole);
  absl::Status status;
  if (split_.has_value()) {
    CudaOps first = OpsFor(kFirst), second = OpsFor(kSecond);
    SplitOps ops(*runtime_, {.first = first,
                             .second = second,
                             .whole = whole,
                             .first_rows = split_->rows,
                             .rows = batch_.n_tokens(),
                             .activation_bytes = Info(options_.activations).block_bytes});
    body(ops);
    ops.Join();
    status = ops.status();
    attends_both_ways_ = attends_both_ways_ || first.attends_both_ways();
    split_.reset();  // further ops of the batch, such as draws, have rows of logits
  } else {
    body(whole);
    status = whole.status();
    has_states_ = has_states_ || whole.has_states();
    attends_both_ways_ = attends_both_ways_ || whole.attends_both_ways();
    knows_layers_ = knows_layers_ || batch_.host().n_groups() > 1;
  }
  has_run_ = true;
  runtime_->set_tape(nullptr);
  HEDDLE_RETURN_IF_ERROR(status);
  if (std::exchange(is_taped_, false)) {
    HEDDLE_RETURN_IF_ERROR(MarkBegin());
    HEDDLE_RETURN_IF_ERROR(graphs_.Play(tape_, batch_.n_tokens()));
  }
  HEDDLE_RETURN_IF_ERROR(CallLast());
  return FetchResults(whole, &At(step));
}

absl::Status CudaDevice::Run(const std::function<void(Ops&)>& body) {
  HEDDLE_CHECK(num_launched_ == 0, "Run while a step is in flight");
  HEDDLE_RETURN_IF_ERROR(Launch(body));
  return Finish().status();
}

absl::Status CudaDevice::Launch(const std::function<void(Ops&)>& body) {
  HEDDLE_CHECK(num_launched_ < kMaxInFlight, "a third step in flight");
  HEDDLE_RETURN_IF_ERROR(Enqueue(next_step(), body));
  ++num_launched_;
  return absl::OkStatus();
}

// The halves of a split step were joined where its logit rows were gathered.
absl::Status CudaDevice::Extend(const std::function<void(Ops&)>& body) {
  HEDDLE_CHECK(num_launched_ > 0, "Extend without Launch");
  HEDDLE_CHECK(At(next_step() - 1).copies.empty(), "Extend of a step that has sampled");
  split_.reset();
  return Enqueue(next_step() - 1, body);
}

// Prompts keep the device busy for longer than their launches take, and no two of their steps are
// alike; sequences that decode make one step like the other.
bool CudaDevice::SuitsGraph() const {
  const int32_t rows = batch_.n_tokens();
  if (!options_.graphs || rows > kGraphRows || StepsOverNccl()) return false;
  if (rows <= kSkinnyRows) return true;
  return rows == last_rows_ && !split_.has_value() && !direct_rows_[static_cast<size_t>(rows)];
}

// Halves of a step never come here: their products are not timed while they are taped, and steps of
// so few rows ask no library.
absl::Status CudaDevice::LeaveTape(bool for_good) {
  if (!std::exchange(is_taped_, false)) return absl::OkStatus();
  if (for_good) direct_rows_.set(static_cast<size_t>(batch_.n_tokens()));
  runtime_->set_tape(nullptr);
  HEDDLE_RETURN_IF_ERROR(MarkBegin());
  HEDDLE_RETURN_IF_ERROR(runtime_->LaunchAll(tape_));
  return CallLast();
}

// NCCL enqueues its ops itself, which no tape keeps (decision 0181).
bool CudaDevice::StepsOverNccl() const {
  return group_ != nullptr && group_->nccl() != nullptr &&
         batch_.n_tokens() > options_.rows_through_host;
}

absl::Status CudaDevice::CallLibrary(bool last, std::function<absl::Status()> call) {
  if (!is_taped_) return call();
  if (last) {
    last_calls_.push_back(std::move(call));
    return absl::OkStatus();
  }
  // A receiver may wait for what a call that was put off would send.
  if (!tape_.launches().empty() || !last_calls_.empty()) {
    HEDDLE_RETURN_IF_ERROR(LeaveTape(/*for_good=*/false));
    return call();
  }
  runtime_->set_tape(nullptr);
  absl::Status status = call();
  runtime_->set_tape(&tape_);
  return status;
}

absl::Status CudaDevice::CallLast() {
  for (const std::function<absl::Status()>& call : last_calls_) HEDDLE_RETURN_IF_ERROR(call());
  last_calls_.clear();
  return absl::OkStatus();
}

// Unless the ops are more of a step that has begun.
absl::Status CudaDevice::MarkBegin() {
  return enqueued_ == next_step() ? runtime_->Mark(BeginOf(enqueued_)) : absl::OkStatus();
}

// Enqueues ops as the next step, or as more of the last one.
absl::Status CudaDevice::Enqueue(uint64_t step, const std::function<void(Ops&)>& body) {
  HEDDLE_RETURN_IF_ERROR(pending_error_);
  runtime_->Bind();
  enqueued_ = step;
  is_taped_ = SuitsGraph();
  last_rows_ = batch_.n_tokens();
  tape_.Clear();
  last_calls_.clear();
  if (is_taped_) {
    runtime_->set_tape(&tape_);
  } else {
    HEDDLE_RETURN_IF_ERROR(MarkBegin());
  }
  const absl::Status status = RunBody(step, body);
  runtime_->set_tape(nullptr);
  HEDDLE_RETURN_IF_ERROR(status);
  return runtime_->Mark(EndOf(step));
}

// Fetches tokens by one copy to pinned memory, and what else was sampled, and sums of rows, if any,
// by others.
absl::Status CudaDevice::FetchResults(const CudaOps& ops, Launched* launched) {
  launched->copies = ops.results();
  const auto* base = static_cast<const uint8_t*>(results_->data());
  const auto fetch = [&](int64_t at, int64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    return runtime_->CopyToHost(launched->host_results + at, base + at, bytes);
  };
  HEDDLE_RETURN_IF_ERROR(fetch(0, ops.drawn_bytes()));
  HEDDLE_RETURN_IF_ERROR(fetch(kDrawnBytes, ops.result_bytes()));
  return fetch(kSampleBytes, ops.row_sum_bytes());
}

absl::StatusOr<RunTiming> CudaDevice::Finish() {
  HEDDLE_CHECK(num_launched_ > 0, "Finish without Launch");
  const uint64_t step = first_launched_++;
  --num_launched_;
  runtime_->Bind();
  HEDDLE_RETURN_IF_ERROR(runtime_->WaitForMark(EndOf(step)));
  for (PeerGroup* group : {group_.get(), halves_.get(), stages_.get()}) {
    if (group != nullptr) HEDDLE_RETURN_IF_ERROR(group->Check());
  }
  const auto* base = static_cast<const uint8_t*>(results_->data());
  for (const PendingCopy& copy : At(step).copies) {
    const uint8_t* from = At(step).host_results + (static_cast<const uint8_t*>(copy.from) - base);
    std::copy_n(from, copy.bytes, static_cast<uint8_t*>(copy.to));
  }
  RunTiming timing;
  HEDDLE_ASSIGN_OR_RETURN(timing.run_ns, runtime_->NsBetween(BeginOf(step), EndOf(step)));
  if (step > 0) {
    HEDDLE_ASSIGN_OR_RETURN(timing.idle_ns, runtime_->NsBetween(EndOf(step - 1), BeginOf(step)));
  }
  return timing;
}

}  // namespace heddle::kernels::cuda
