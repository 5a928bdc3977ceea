// Copies before and behind attention over keys and values made of latents. One puts the latents of
// pages in the order of rows, as the left matrix of the products that make keys and values; one
// joins queries, whose rotated columns come from one tensor and whose others from another; one puts
// results into the rows of the output.
//
// All bytes are moved once, 16 bytes at a time: for 4,096 rows of 16 heads 5 MB of latents in
// and out, and 25 MB of queries, some 15 us at 4.3 TB/s.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // of a unit

// The unit's 8 elements in BF16.
template <typename Kv>
HEDDLE_DEVICE Group<BFloat16, kElements> LatentsOf(const Kv* at, float scale) {
  const auto from = LoadGroup<kElements>(at);
  Group<BFloat16, kElements> out;
  HEDDLE_UNROLL
  for (int i = 0; i < kElements; ++i) {
    out.item[i] = RoundTo(ToFloat(from.item[i]) * scale, BFloat16());
  }
  return out;
}

template <typename Kv>
HEDDLE_KERNEL GatherLatentsKernel(HEDDLE_PARAMS(GatherLatentsParams, p)) {
  StartInTurn();
  const KvCacheView& from = p.from;
  const int per_row = from.head_dim / kElements;
  const int unit = BlockX() * kThreads + ThreadX();
  const int row = unit / per_row;
  if (row >= p.n_pages * from.page_tokens) return;
  const int column = unit % per_row * kElements;
  const KeyPlace place =
      PlaceOfKey(from, p.pages[row / from.page_tokens], row % from.page_tokens, /*kv_head=*/0);
  const int to = column < kExpandedRotatedDim ? column + from.head_dim - kExpandedRotatedDim
                                              : column - kExpandedRotatedDim;
  StoreGroup(p.to.row<BFloat16>(row) + to, LatentsOf(RowOfKey<Kv>(from.keys, place) + column,
                                                     ScaleOfKey(from.keys, place, Kv())));
}

// BlockX: a row.
HEDDLE_KERNEL JoinHeadsKernel(HEDDLE_PARAMS(JoinHeadsParams, p)) {
  StartInTurn();
  const int64_t t = p.rows[BlockX()];
  const int per_head = (p.first_cols + p.then_cols) / kElements;
  for (int i = ThreadX(); i < p.n_heads * per_head; i += kThreads) {
    const int head = i / per_head;
    const int column = i % per_head * kElements;
    const BFloat16* from =
        column < p.first_cols
            ? p.first.row<BFloat16>(t) + int64_t{head} * p.first_step + column
            : p.then.row<BFloat16>(t) + int64_t{head} * p.then_step + column - p.first_cols;
    StoreGroup(p.to.row<BFloat16>(t) + int64_t{head} * p.to_step + column,
               LoadGroup<kElements>(from));
  }
}

}  // namespace

Error LaunchGatherLatents(const GatherLatentsParams& params, Stream stream) {
  const KvCacheView& from = params.from;
  const int64_t units = int64_t{params.n_pages} * from.page_tokens * (from.head_dim / kElements);
  const LaunchShape shape = {.grid_x = CeilDiv(units, kThreads), .threads = kThreads};
  switch (from.dtype) {
    case DType::kF16:
      return Launch(GatherLatentsKernel<Half>, shape, stream, params);
    case DType::kInt8:
      return Launch(GatherLatentsKernel<Int8>, shape, stream, params);
    case DType::kF8E4M3:
      return Launch(GatherLatentsKernel<Float8>, shape, stream, params);
    default:
      return Launch(GatherLatentsKernel<BFloat16>, shape, stream, params);
  }
}

Error LaunchJoinHeads(const JoinHeadsParams& params, Stream stream) {
  const LaunchShape shape = {.grid_x = params.n_rows, .threads = kThreads};
  return Launch(JoinHeadsKernel, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
