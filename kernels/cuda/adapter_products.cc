#include "kernels/cuda/adapter_products.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/linear_parts.h"

namespace heddle::kernels::cuda {
namespace {

// Outputs of a launch, whose blocks are counted in a direction of up to 65,535.
constexpr int64_t kMostOutputs = 65535;

int64_t ShrunkFloats(const AdapterParams& params) {
  return RoundUp(int64_t{params.n_parts} * params.max_rank, 4);
}

}  // namespace

const DeviceAdapters& AdaptersOf(const DeviceStep& step, const AdapterRows& rows) {
  return rows.of_logits ? step.logit_adapters : step.adapters;
}

NormAdapters NormAdaptersOf(const DeviceStep& step, const NormArgs& args) {
  return NormAdaptersOf(step, args.adapters, args.adapter_rows);
}

NormAdapters NormAdaptersOf(const DeviceStep& step, const AdapterMatrix* adapters,
                            const AdapterRows& rows) {
  const DeviceAdapters& batch = AdaptersOf(step, rows);
  if (adapters == nullptr || batch.n_segments == 0) return {};
  const int64_t first = rows.first + (rows.of_logits ? 0 : step.first_row);
  return {adapters->factors, adapters->slot_stride, batch.slots + first};
}

AdapterParams AdapterParamsOf(const DeviceStep& step, const AdapterMatrix& adapters,
                              const AdapterRows& rows, int64_t cols) {
  HEDDLE_CHECK(adapters.parts.size() <= kMaxAdapterParts, "adapters: too many parts of a weight");
  AdapterParams params;
  params.batch = AdaptersOf(step, rows);
  params.first_row = rows.first + (rows.of_logits ? 0 : step.first_row);
  params.cols = cols;
  params.dtype = adapters.dtype;
  params.factors = adapters.factors;
  params.slot_stride = adapters.slot_stride;
  params.n_parts = static_cast<int32_t>(adapters.parts.size());
  std::copy(adapters.parts.begin(), adapters.parts.end(), params.parts);
  params.max_rank = adapters.max_rank;
  const AdapterPart& last = adapters.parts.back();
  params.delta_stride = RoundUp(last.first_row + last.rows, 4);
  return params;
}

int64_t AdapterOutputBytes(const AdapterParams& params, bool has_gains) {
  return (ShrunkFloats(params) + (has_gains ? 2 : 1) * params.delta_stride) *
         int64_t{sizeof(float)};
}

Workspace PlaceAdapterOutputs(const Workspace& workspace, int64_t n, bool has_gains,
                              AdapterParams* params) {
  const int64_t bytes = n * AdapterOutputBytes(*params, has_gains);
  HEDDLE_CHECK(bytes <= workspace.bytes, "the workspace does not hold what adapters add");
  params->delta = reinterpret_cast<float*>(workspace.data);
  params->gains = has_gains ? params->delta + n * params->delta_stride : nullptr;
  params->shrunk = params->delta + (has_gains ? 2 : 1) * n * params->delta_stride;
  return Behind(workspace, bytes);
}

void LaunchAdapters(DeviceStep& step, const AdapterParams& params) {
  step.Note(LaunchAdapterShrink(params, step.activations, step.stream), "adapters (shrink)");
  step.Note(LaunchAdapterExpand(params, step.stream), "adapters (expand)");
}

void SetAdapters(const AdapterParams& params, int64_t half, LinearParams* linear) {
  linear->delta = params.delta;
  linear->delta_up = params.delta + half;
  linear->gains = params.gains;
  linear->gains_up = params.gains == nullptr ? nullptr : params.gains + half;
  linear->delta_stride = params.delta_stride;
  linear->delta_slots = params.batch.slots + params.first_row;
  linear->outputs_per_slot = params.outputs_per_row;
}

void AdaptEmbedding(DeviceStep& step, const AdapterMatrix& adapters, const DeviceBatch& tokens,
                    Tensor x) {
  if (step.adapters.n_segments == 0) return;
  const bool has_gains = adapters.has_gains;
  AdapterParams params = AdapterParamsOf(step, adapters, {}, adapters.num_tokens);
  const int64_t fits = step.workspace.bytes / AdapterOutputBytes(params, has_gains);
  const int64_t count = RowsOfPart(x.rows, std::min(fits, kMostOutputs));
  PlaceAdapterOutputs(step.workspace, count, has_gains, &params);
  const int64_t first_row = params.first_row;
  for (int64_t first = 0; first < x.rows && step.status.ok(); first += count) {
    params.n_outputs = std::min(count, x.rows - first);
    params.first_row = first_row + first;
    DeviceBatch part = tokens;
    part.token_ids += first;
    if (part.draw_of_row != nullptr) part.draw_of_row += first;
    step.Note(LaunchAdapterGather(params, part, adapters.first_token, step.stream),
              "adapters (gather)");
    step.Note(LaunchAdapterExpand(params, step.stream), "adapters (expand)");
    const Tensor out = RowsOf(x, first, params.n_outputs, Info(step.activations).block_bytes);
    step.Note(LaunchAdapterAdd(params, {.out = out}, step.activations, step.stream),
              "adapters (add)");
  }
}

void AdaptHeads(DeviceStep& step, const HeadLinearArgs& args) {
  if (args.adapters == nullptr || step.adapters.n_segments == 0) return;
  const int64_t bytes = Info(step.activations).block_bytes;
  const int32_t n_heads = args.heads->count;
  AdapterParams params = AdapterParamsOf(step, *args.adapters, {}, args.heads->cols);
  params.kind = AdapterOutputs::kHeads;
  params.outputs_per_row = params.outputs_per_x = n_heads;
  params.x_step = args.x_step;
  const int64_t fits =
      std::min(step.workspace.bytes / AdapterOutputBytes(params, false), kMostOutputs) / n_heads;
  const int64_t count = RowsOfPart(args.x.rows, fits);
  PlaceAdapterOutputs(step.workspace, count * n_heads, false, &params);
  const int64_t first_row = params.first_row;
  for (int64_t first = 0; first < args.x.rows && step.status.ok(); first += count) {
    const int64_t rows = std::min(count, args.x.rows - first);
    params.n_outputs = rows * n_heads;
    params.first_row = first_row + first;
    params.x = RowsOf(args.x, first, rows, bytes);
    LaunchAdapters(step, params);
    const AdapterTarget target = {RowsOf(args.out, first, rows, bytes), args.carried,
                                  args.out_step};
    step.Note(LaunchAdapterAdd(params, target, step.activations, step.stream), "adapters (add)");
  }
}

}  // namespace heddle::kernels::cuda
