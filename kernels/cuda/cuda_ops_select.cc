// Choices of positions by indexers (kernels/selection.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/attention/select_params.h"
#include "kernels/cuda/cuda_ops.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int32_t kContextStep = 512;
static_assert(kContextStep % kScoreAlignment == 0);

// Positions of the longest context of a group of layers.
int32_t LongestContext(const HostBatch& batch, int32_t group) {
  int32_t longest = 0;
  for (const int32_t length : batch.OfGroup(group).context_len) longest = std::max(longest, length);
  return longest;
}

}  // namespace

bool CudaOps::SeesMoreThan(int32_t group, int32_t positions) const {
  return LongestContext(*step_.host, group) > positions;
}

// As many rows at a time as the workspace holds the scores of.
void CudaOps::SelectPositions(const SelectArgs& args) {
  HEDDLE_CHECK(args.cache.n_kv_heads == 1, "an indexer has one key per position");
  if (!step_.status.ok() || args.q.rows == 0) return;
  SelectParams params;
  params.args = args;
  params.batch = step_.groups[static_cast<size_t>(args.cache.group)];
  const int32_t longest = LongestContext(*step_.host, args.cache.group);
  // In steps, so that launches of one token and the next are the same.
  params.context = (longest + kContextStep - 1) / kContextStep * kContextStep;
  params.stride = params.context;
  params.scores = reinterpret_cast<float*>(step_.workspace.data);
  const int64_t row_bytes = params.stride * int64_t{sizeof(float)};
  const int64_t most = step_.workspace.bytes / row_bytes;
  if (most == 0) {
    return Note(absl::ResourceExhaustedError(
        absl::StrCat("an indexer's scores of ", longest, " positions take ", row_bytes,
                     " bytes, the device's workspace has ", step_.workspace.bytes)));
  }
  const DeviceInfo& device = step_.runtime.info();
  for (int64_t first = 0; first < args.q.rows && step_.status.ok(); first += params.n_rows) {
    params.row = static_cast<int32_t>(first);
    params.batch_row = step_.first_row + params.row;
    params.n_rows = static_cast<int32_t>(std::min(most, args.q.rows - first));
    Note(LaunchSelectScores(params, {device.num_multiprocessors, device.max_shared_bytes},
                            step_.activations, step_.stream),
         "scores of an indexer");
    Note(LaunchChoosePlaces(params, device.max_shared_bytes, step_.stream), "choice of an indexer");
  }
}

}  // namespace heddle::kernels::cuda
