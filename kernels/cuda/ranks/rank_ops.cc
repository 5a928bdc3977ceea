// The ops across ranks of the CUDA backend (CudaOps).
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/adapter_products.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/ranks/peer_group.h"
#include "kernels/cuda/ranks/peer_params.h"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

// Parts are added in two rounds where that reads so much less: the bytes of NVLink, 450 GB/s, in
// the time of two more meetings, some 2 us each. Predicted, not measured (docs/benchmarks/gpu.md).
constexpr int64_t kTwoMeetingsBytes = 1'800'000;

// One round reads world - 1 parts, two read 2 / world of that.
bool SumsInTwo(int64_t bytes, int64_t rows, int64_t world) {
  return rows >= world && bytes * (world - 1) * (world - 2) / world >= kTwoMeetingsBytes;
}

}  // namespace

void CudaOps::EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) {
  if (!step_.status.ok()) return;
  Note(LaunchEmbed(Rows(), ViewOf(table), static_cast<int32_t>(first_row), scale, out,
                   step_.activations, step_.stream),
       "embedding");
}

void CudaOps::AllReduce(const AllReduceArgs& args) {
  HEDDLE_CHECK(step_.ranks != nullptr, "this device is in no group of ranks");
  if (!step_.status.ok()) return;
  const bool adds = args.residual.data != nullptr;
  const Tensor target = adds ? args.residual : args.out;
  HEDDLE_CHECK(args.partial.data == nullptr || args.partial.stride == target.cols,
               "all-reduce: the partial sums are not dense");
  const Peers& peers = *step_.ranks;
  const int64_t bytes = target.rows * RowBytes(step_.activations, target.cols);
  SumRanksParams params = {};
  params.peers = peers;
  params.partial = args.partial.data;
  params.bias = args.bias;
  params.target = target;
  params.adds = adds ? 1 : 0;
  params.in_two = SumsInTwo(bytes, target.rows, peers.world) ? 1 : 0;
  if (args.norm.has_value()) {
    params.norms = 1;
    params.adapters = NormAdaptersOf(step_, *args.norm);
    params.norm = *args.norm;
    params.norm.adapters = nullptr;  // the host's
  }
  Note(LaunchSumRanks(params, step_.activations, step_.stream), "the sum over ranks");
}

void CudaOps::GatherColumns(const GatherColumnsArgs& args) {
  HEDDLE_CHECK(step_.ranks != nullptr, "this device is in no group of ranks");
  if (!step_.status.ok()) return;
  const Peers& peers = *step_.ranks;
  HEDDLE_CHECK(static_cast<int32_t>(args.borders.size()) == peers.world + 1,
               "gather: a border for each rank");
  HEDDLE_CHECK(args.part.data == nullptr || args.part.stride == args.part.cols,
               "gather: the part is not dense");
  GatherColumnsParams params = {};
  params.peers = peers;
  params.part = static_cast<const float*>(args.part.data);
  std::copy(args.borders.begin(), args.borders.end(), params.borders);
  params.rows = args.part.rows;
  if (args.root < 0 || args.root == peers.rank) params.whole = args.whole;
  Note(LaunchGatherColumns(params, step_.stream), "gathering the columns of ranks");
}

void CudaOps::SendRows(Tensor rows, int32_t to) {
  HEDDLE_CHECK(step_.stages != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
  if (!step_.status.ok()) return;
  const int64_t bytes = rows.rows * RowBytes(step_.activations, rows.cols);
  Note(LaunchSendRows(step_.stages->Sent(to, rows.data, bytes), step_.stream),
       "sending rows to a stage");
}

void CudaOps::RecvRows(Tensor rows, int32_t from) {
  HEDDLE_CHECK(step_.stages != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
  if (!step_.status.ok()) return;
  const int64_t bytes = rows.rows * RowBytes(step_.activations, rows.cols);
  Note(LaunchRecvRows(step_.stages->Received(from, rows.data, bytes), step_.stream),
       "fetching the rows of a stage");
}

}  // namespace heddle::kernels::cuda
