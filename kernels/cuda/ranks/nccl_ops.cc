#include "kernels/cuda/ranks/nccl_ops.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/ranks/nccl_group.h"
#include "kernels/cuda/ranks/peer_group.h"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

// Workspace that a sum or a gather uses at a time, at most.
constexpr int64_t kMostPieceBytes = int64_t{64} << 20;

struct PieceRows {
  int64_t first = 0;
  int64_t end = 0;
  int64_t count() const { return end - first; }
};

// The rows of rank `rank` among those of a piece: no share has more than one row more than another.
PieceRows ShareOf(const PieceRows& piece, int64_t rank, int64_t world) {
  return {piece.first + piece.count() * rank / world,
          piece.first + piece.count() * (rank + 1) / world};
}

uint8_t* At(const void* data, int64_t bytes) {
  return const_cast<uint8_t*>(static_cast<const uint8_t*>(data)) + bytes;
}

// The address that row 0 would have if row `first` is at `rows`.
const void* ZeroOf(const void* rows, int64_t first, int64_t row_bytes) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(rows) -
                                       static_cast<uintptr_t>(first * row_bytes));
}

absl::Status NoRoomFor(int64_t bytes, int64_t room) {
  return absl::ResourceExhaustedError(absl::StrCat("a row of what ranks exchange has ", bytes,
                                                   " bytes, the workspace has room for ", room));
}

// A sum, some rows at a time. Rows of parts are dense.
class NcclSum {
 public:
  NcclSum(DeviceStep& step, const SumRanksParams& all)
      : step_(step),
        nccl_(*step.ranks->nccl()),
        rank_(all.peers.rank),
        world_(all.peers.world),
        row_bytes_(RowBytes(step.activations, all.target.cols)) {
    params_.all = all;
  }

  void Make() {
    const Tensor& target = params_.all.target;
    // Results are received where they belong.
    const bool in_two = params_.all.in_two != 0 && target.stride == target.cols;
    const int64_t room = std::min(step_.workspace.bytes, kMostPieceBytes);
    const int64_t most =
        in_two ? room / row_bytes_ - int64_t{2} * world_ : room / (world_ * row_bytes_);
    if (most < 1) return step_.Note(NoRoomFor(world_ * row_bytes_, room));
    for (int64_t first = 0; first < target.rows && step_.status.ok(); first += most) {
      piece_ = {first, std::min(target.rows, first + most)};
      if (in_two) {
        InTwoRounds();
      } else {
        InOneRound();
      }
    }
  }

 private:
  // All parts come to all ranks.
  void InOneRound() {
    const int64_t bytes = piece_.count() * row_bytes_;
    uint8_t* const parts = step_.workspace.data;
    const void* own = parts + rank_ * bytes;
    if (params_.all.partial == nullptr) {
      PutZeros(parts + rank_ * bytes, piece_.count());
    } else {
      own = At(params_.all.partial, piece_.first * row_bytes_);
    }
    step_.Note(nccl_.AllGather(own, parts, bytes));
    for (int32_t r = 0; r < world_; ++r) {
      params_.parts[r] = ZeroOf(parts + r * bytes, piece_.first, row_bytes_);
    }
    Add(piece_);
  }

  // Each rank takes all parts of its share, adds them, and gives the others what came of it.
  void InTwoRounds() {
    const PieceRows own = ShareOf(piece_, rank_, world_);
    const int64_t place = (own.count() + 1) * row_bytes_;
    const void* const target = params_.all.target.data;
    uint8_t* const parts = step_.workspace.data;
    uint8_t* const zeros = parts + rank_ * place;
    if (params_.all.partial == nullptr) PutZeros(zeros, own.count() + 1);
    Pieces sent, received, results, others;
    for (Pieces* list : {&sent, &received, &results, &others}) {
      list->reserve(static_cast<size_t>(world_));
    }
    for (int32_t r = 0; r < world_; ++r) {
      const PieceRows share = ShareOf(piece_, r, world_);
      const int64_t at = share.first * row_bytes_, bytes = share.count() * row_bytes_;
      uint8_t* const from = params_.all.partial == nullptr ? zeros : At(params_.all.partial, at);
      uint8_t* const to = r == rank_ ? from : parts + r * place;
      params_.parts[r] = ZeroOf(to, own.first, row_bytes_);
      if (r == rank_) continue;
      sent.push_back({r, from, bytes});
      received.push_back({r, to, own.count() * row_bytes_});
      results.push_back({r, At(target, own.first * row_bytes_), own.count() * row_bytes_});
      others.push_back({r, At(target, at), bytes});
    }
    step_.Note(nccl_.Exchange(sent, received));
    Add(own);
    if (!step_.status.ok()) return;
    step_.Note(nccl_.Exchange(results, others));
    Norm({piece_.first, own.first});
    Norm({own.end, piece_.end});
  }

  void Add(const PieceRows& rows) { Launch(rows, {}); }
  void Norm(const PieceRows& sums) {
    if (params_.all.norms != 0) Launch(sums, sums);
  }
  void Launch(const PieceRows& rows, const PieceRows& sums) {
    if (!step_.status.ok() || rows.count() == 0) return;
    params_.first_row = rows.first;
    params_.end_row = rows.end;
    params_.first_sum = sums.first;
    params_.end_sum = sums.end;
    step_.Note(LaunchSumParts(params_, step_.activations, step_.stream), "the sum over ranks");
  }

  // In the place of a part that this rank does not have: a sum with zeros has the bits of one
  // without. They are those that the counters are between ops.
  void PutZeros(uint8_t* to, int64_t rows) {
    const int64_t cols = params_.all.target.cols, element = row_bytes_ / cols;
    const int64_t most = kReductionCounters * int64_t{sizeof(int32_t)} / element;
    for (int64_t c = 0; c < cols; c += most) {
      const int64_t count = std::min(most, cols - c);
      step_.Note(
          LaunchCopyRows({step_.counters, rows, count, 0}, {to + c * element, rows, count, cols},
                         step_.activations, step_.stream),
          "an absent part of a sum");
    }
  }

  using Pieces = std::vector<NcclPiece>;

  DeviceStep& step_;
  NcclGroup& nccl_;
  const int32_t rank_;
  const int32_t world_;
  const int64_t row_bytes_;
  SumPartsParams params_;
  PieceRows piece_;
};

}  // namespace

void SumOverNccl(DeviceStep& step, const SumRanksParams& params) { NcclSum(step, params).Make(); }

void GatherOverNccl(DeviceStep& step, const GatherColumnsArgs& args) {
  constexpr int64_t kElement = sizeof(float), kAlignment = 16;
  const Peers& peers = step.ranks->peers();
  const auto world = static_cast<size_t>(peers.world), own = static_cast<size_t>(peers.rank);
  const auto row_bytes = [&](size_t r) {
    return (args.borders[r + 1] - args.borders[r]) * kElement;
  };
  HEDDLE_CHECK(args.part.data != nullptr || row_bytes(own) == 0, "gather: a part is missing");
  const bool wants = args.root < 0 || args.root == peers.rank;
  const int64_t room = std::min(step.workspace.bytes, kMostPieceBytes) - kMaxPeers * kAlignment;
  const int64_t all_bytes = args.borders.back() * kElement;
  const int64_t most = room / std::max<int64_t>(all_bytes, 1);
  if (most < 1) return step.Note(NoRoomFor(all_bytes, room));
  PlaceColumnsParams params;
  params.all.peers = peers;
  std::copy(args.borders.begin(), args.borders.end(), params.all.borders);
  std::vector<NcclPiece> sent, received;
  sent.reserve(world);
  received.reserve(world);
  for (int64_t first = 0; first < args.part.rows && step.status.ok(); first += most) {
    const int64_t rows = std::min(most, args.part.rows - first);
    uint8_t* const part = At(args.part.data, first * row_bytes(own));
    uint8_t* place = step.workspace.data;
    sent.clear();
    received.clear();
    for (size_t r = 0; r < world; ++r) {
      const auto rank = static_cast<int32_t>(r);
      const int64_t bytes = rows * row_bytes(r);
      params.parts[r] = reinterpret_cast<const float*>(r == own ? part : place);
      if (bytes == 0) params.parts[r] = nullptr;
      if (r == own) continue;
      if (args.root < 0 || args.root == rank) sent.push_back({rank, part, rows * row_bytes(own)});
      if (!wants) continue;
      received.push_back({rank, place, bytes});
      place += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    step.Note(step.ranks->nccl()->Exchange(sent, received));
    if (!step.status.ok() || !wants || args.whole.data == nullptr) continue;
    params.all.rows = rows;
    params.all.whole = {args.whole.row<float>(first), rows, args.whole.cols, args.whole.stride};
    step.Note(LaunchPlaceColumns(params, step.stream), "gathering the columns of ranks");
  }
}

}  // namespace heddle::kernels::cuda
