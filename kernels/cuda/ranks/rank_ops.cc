// The ops across ranks of the CUDA backend (CudaOps).
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/adapter_products.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear/cuda_weight.h"
#include "kernels/cuda/ranks/nccl_group.h"
#include "kernels/cuda/ranks/nccl_ops.h"
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

Tensor TargetOf(const AllReduceArgs& args) {
  return args.residual.data != nullptr ? args.residual : args.out;
}

SumRanksParams ParamsOf(const Peers& peers, const AllReduceArgs& args) {
  SumRanksParams params = {};
  params.peers = peers;
  params.partial = args.partial.data;
  params.bias = args.bias;
  params.target = TargetOf(args);
  params.adds = args.residual.data != nullptr ? 1 : 0;
  return params;
}

// A sum whose parts the host brings, `bytes` each.
struct SumThroughHost {
  SumThroughHost(const AllReduceArgs& args, int64_t bytes, int32_t world)
      : parts(static_cast<size_t>(world), bytes),
        meeting{.part_bytes = parts,
                .has_part = args.partial.data != nullptr,
                .blocks = SumBlocks(TargetOf(args).rows)} {}

  const std::vector<int64_t> parts;
  const HostPeers::Meeting meeting;
};

}  // namespace

void CudaOps::EmbedShare(const PackedWeight& table, int64_t first_row, float scale, Tensor out) {
  if (!step_.status.ok()) return;
  Note(LaunchEmbedShare(Rows(), ViewOf(table), static_cast<int32_t>(first_row), scale, out,
                        step_.activations, step_.stream),
       "embedding");
}

// Copies this rank's part, if it has one, to where the host takes it from.
void CudaOps::CopyToHost(const absl::StatusOr<void*>& place, const Tensor& part, DType type) {
  Note(place.status());
  if (!step_.status.ok() || part.data == nullptr) return;
  Note(LaunchCopyRows(part, {*place, part.rows, part.cols, part.cols}, type, step_.stream),
       "copying a part to the host");
}

void CudaOps::SumRanks(const AllReduceArgs& args, bool is_begun) {
  HEDDLE_CHECK(step_.ranks != nullptr, "this device is in no group of ranks");
  if (!step_.status.ok()) return;
  const Tensor target = TargetOf(args);
  if (target.rows == 0) return;
  HEDDLE_CHECK(args.partial.data == nullptr || args.partial.stride == target.cols,
               "all-reduce: the partial sums are not dense");
  PeerGroup& group = *step_.ranks;
  const Peers& peers = group.peers();
  const int64_t bytes = target.rows * RowBytes(step_.activations, target.cols);
  SumRanksParams params = ParamsOf(peers, args);
  params.is_begun = is_begun ? 1 : 0;
  if (step_.is_half) params.most_blocks = kHalfPeerBlocks;
  const bool has_host = group.host() != nullptr && !step_.over_nccl;
  params.in_two = !has_host && SumsInTwo(bytes, target.rows, peers.world) ? 1 : 0;
  if (args.norm.has_value()) {
    params.norms = 1;
    params.adapters = NormAdaptersOf(step_, *args.norm);
    params.norm = *args.norm;
    params.norm.adapters = nullptr;  // the host's
  }
  if (step_.over_nccl) return SumOverNccl(step_, params);
  if (has_host) {
    const SumThroughHost sum(args, bytes, peers.world);
    if (is_begun) {
      Note(group.host()->End(sum.meeting));
    } else {
      CopyToHost(group.host()->Meet(sum.meeting), args.partial, step_.activations);
    }
    if (!step_.status.ok()) return;
  }
  Note(LaunchSumRanks(params, step_.activations, step_.stream), "the sum over ranks");
}

void CudaOps::BeginAllReduce(const AllReduceArgs& args) {
  HEDDLE_CHECK(step_.ranks != nullptr, "this device is in no group of ranks");
  PeerGroup& group = *step_.ranks;
  if (!step_.status.ok() || group.host() == nullptr || step_.over_nccl) return;
  const Tensor target = TargetOf(args);
  if (target.rows == 0) return;
  const int64_t bytes = target.rows * RowBytes(step_.activations, target.cols);
  const SumThroughHost sum(args, bytes, group.peers().world);
  CopyToHost(group.host()->Begin(sum.meeting), args.partial, step_.activations);
  if (!step_.status.ok()) return;
  Note(LaunchBeginSum(ParamsOf(group.peers(), args), step_.stream), "beginning a sum over ranks");
}

void CudaOps::EndAllReduce(const AllReduceArgs& args) {
  const bool is_begun =
      step_.ranks != nullptr && step_.ranks->host() != nullptr && !step_.over_nccl;
  SumRanks(args, is_begun);
}

void CudaOps::GatherColumns(const GatherColumnsArgs& args) {
  HEDDLE_CHECK(step_.ranks != nullptr, "this device is in no group of ranks");
  if (!step_.status.ok() || args.part.rows == 0) return;
  PeerGroup& group = *step_.ranks;
  const Peers& peers = group.peers();
  HEDDLE_CHECK(static_cast<int32_t>(args.borders.size()) == peers.world + 1,
               "gather: a border for each rank");
  HEDDLE_CHECK(args.part.data == nullptr || args.part.stride == args.part.cols,
               "gather: the part is not dense");
  if (step_.over_nccl) return GatherOverNccl(step_, args);
  if (group.host() != nullptr) {
    std::vector<int64_t> parts(static_cast<size_t>(peers.world));
    for (size_t r = 0; r < parts.size(); ++r) {
      const int64_t columns = args.borders[r + 1] - args.borders[r];
      parts[r] = args.part.rows * columns * int64_t{sizeof(float)};
    }
    const bool has_part = args.part.data != nullptr && args.part.cols > 0;
    const HostPeers::Meeting gather = {.part_bytes = parts,
                                       .has_part = has_part,
                                       .root = args.root,
                                       .blocks = GatherBlocks(args.part.rows, args.borders.back()),
                                       .meetings = 2};
    CopyToHost(group.host()->Meet(gather), has_part ? args.part : Tensor{}, DType::kF32);
    if (!step_.status.ok()) return;
  }
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
  if (!step_.status.ok() || rows.rows == 0) return;
  const int64_t bytes = rows.rows * RowBytes(step_.activations, rows.cols);
  if (NcclGroup* nccl = step_.stages->nccl(); nccl != nullptr) {
    // Later ops of the step change none of these rows.
    const auto send = [=] { return nccl->Send(to, rows.data, bytes); };
    return Note(step_.call_library(/*last=*/true, send));
  }
  const absl::StatusOr<StageRowsParams> message = step_.stages->Sent(to, rows.data, bytes);
  if (!message.ok()) return Note(message.status());
  Note(LaunchSendRows(*message, step_.stream), "sending rows to a stage");
}

void CudaOps::RecvRows(Tensor rows, int32_t from) {
  HEDDLE_CHECK(step_.stages != nullptr && rows.stride == rows.cols, "no stage, or rows with gaps");
  if (!step_.status.ok() || rows.rows == 0) return;
  const int64_t bytes = rows.rows * RowBytes(step_.activations, rows.cols);
  if (NcclGroup* nccl = step_.stages->nccl(); nccl != nullptr) {
    const auto receive = [=] { return nccl->Receive(from, rows.data, bytes); };
    return Note(step_.call_library(/*last=*/false, receive));
  }
  const absl::StatusOr<StageRowsParams> message = step_.stages->Received(from, rows.data, bytes);
  if (!message.ok()) return Note(message.status());
  Note(LaunchRecvRows(*message, step_.stream), "fetching the rows of a stage");
}

}  // namespace heddle::kernels::cuda
