// The sum over ranks with what follows it: residual and norm. Each rank reads the others' parts
// where they are, over the link between GPUs.
//
// In one round every rank adds all rows: the least latency, and two ranks move no more than in two
// rounds. In two rounds it adds its share of the rows and copies the others' results, which moves
// 2 / world of that. Both give the same bits. Source: Thakur et al. 2005.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/ranks/meet.cuh"
#include "kernels/cuda/rows/norm_row.cuh"

namespace heddle::kernels::cuda {
namespace {

// A group of elements that another device has stored.
template <typename T, int kWidth>
HEDDLE_DEVICE Group<T, kWidth> LoadPeerGroup(const T* from) {
  Group<T, kWidth> group;
  if constexpr (sizeof(group) == sizeof(Vec16)) {
    group = std::bit_cast<Group<T, kWidth>>(LoadFresh16(from));
  } else {
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) group.item[j] = LoadPeer(from + j);
  }
  return group;
}

// Adds as a binary tree over the ranks in their order (AllReduceArgs).
HEDDLE_DEVICE float TreeSum(float (&values)[kMaxPeers], int world) {
  HEDDLE_UNROLL
  for (int step = 1; step < kMaxPeers; step *= 2) {
    HEDDLE_UNROLL
    for (int i = 0; i + step < kMaxPeers; i += 2 * step) {
      if (i + step < world) values[i] += values[i + step];
    }
  }
  return values[0];
}

// Sums columns [c, c + kWidth) of row t.
template <typename T, int kWidth>
HEDDLE_DEVICE Group<float, kWidth> SumGroup(const SumRanksParams& p, const Met& met, int64_t t,
                                            int c) {
  const int world = p.peers.world;
  Group<T, kWidth> parts[kMaxPeers];
  bool has_any = false;
  HEDDLE_UNROLL
  for (int r = 0; r < kMaxPeers; ++r) {  // all on their way at once
    parts[r] = {};
    const T* part = r < world ? met.Part<T>(r) : nullptr;
    if (part == nullptr) continue;
    parts[r] = LoadPeerGroup<T, kWidth>(part + t * p.target.cols + c);
    has_any = true;
  }
  Group<float, kWidth> sum;
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    float values[kMaxPeers];
    HEDDLE_UNROLL
    for (int r = 0; r < kMaxPeers; ++r) values[r] = ToFloat(parts[r].item[j]);
    sum.item[j] = has_any ? TreeSum(values, world) : 0.0f;
    if (p.bias != nullptr) sum.item[j] += p.bias[c + j];
  }
  return sum;
}

// Completes row t of the target, from the parts or, if `from` is not nullptr, from another rank's
// result, and norms it.
template <typename T, int kWidth>
HEDDLE_DEVICE void EndRow(const SumRanksParams& p, const Met& met, int64_t t, const T* from,
                          Shared<float> row, Shared<float> scratch) {
  T* target = p.target.row<T>(t);
  const int groups = static_cast<int>(p.target.cols) / kWidth;
  float sum = 0;
  for (int i = ThreadX(); i < groups; i += ThreadCount()) {
    const int c = i * kWidth;
    Group<T, kWidth> values;
    if (from != nullptr) {
      values = LoadPeerGroup<T, kWidth>(from + c);
    } else {
      const Group<float, kWidth> parts = SumGroup<T, kWidth>(p, met, t, c);
      Group<T, kWidth> before = {};
      if (p.adds != 0) before = LoadGroup<kWidth>(target + c);
      HEDDLE_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        values.item[j] = RoundTo(ToFloat(before.item[j]) + parts.item[j], T());
      }
    }
    StoreGroup(target + c, values);
    HEDDLE_UNROLL
    for (int j = 0; p.norms != 0 && j < kWidth; ++j) {
      const float value = ToFloat(values.item[j]);
      row.Set(j * groups + i, value);
      sum += value;
    }
  }
  if (p.norms != 0) NormRow<T, kWidth>({p.norm, p.adapters}, t, row, sum, scratch);
}

// The first row of a rank's share.
HEDDLE_DEVICE int64_t ShareOf(const SumRanksParams& p, int rank) {
  return p.target.rows * rank / p.peers.world;
}

// One warp for each block of the kernel that ends the sum.
HEDDLE_KERNEL BeginSumKernel(HEDDLE_PARAMS(SumRanksParams, p)) {
  WaitForPrevious();
  const Peers& peers = p.peers;
  const int block = BlockX(), other = ThreadX();
  const uint32_t count = peers.counts->begun[block];
  if (other < peers.world) {
    FenceSystem();
    Letter* letter = &peers.boxes[other]->late[block][count % kLatePlaces][peers.rank];
    letter->part = p.partial;
    letter->result = nullptr;
    letter->what = OpWord(kSumOp, p.target.rows, p.target.cols);
    StoreRelease(&letter->number, count + 1);
  }
  SyncWarp();
  if (other == 0) peers.counts->begun[block] = count + 1;
}

// The same for all threads: whether all parts are known.
HEDDLE_DEVICE bool FindParts(const SumRanksParams& p, const Met& met) {
  const uint32_t what = OpWord(kSumOp, p.target.rows, p.target.cols);
  if (p.is_begun == 0) return Meet(p.peers, what, p.partial, p.target.data, 0, met);
  const uint32_t count = p.peers.counts->ended[BlockX()];
  const Letter* letters = p.peers.boxes[p.peers.rank]->late[BlockX()][count % kLatePlaces];
  return TakeLetters(p.peers, letters, count + 1, what, met);
}

// The next kernel must not begin early before the ranks have met: its blocks, which wait for this
// kernel, could take the room that kernels of another rank on this GPU need to come here.
template <typename T, int kWidth>
HEDDLE_KERNEL SumRanksKernel(HEDDLE_PARAMS(SumRanksParams, p)) {
  WaitForPrevious();
  SharedArena arena;
  const Met met(arena);
  const Shared<float> scratch = arena.Take<float>(kMaxNormWarps);
  const Shared<float> row = arena.Take<float>(p.norms != 0 ? static_cast<int>(p.target.cols) : 1);
  const uint32_t what = OpWord(kSumOp, p.target.rows, p.target.cols);
  if (!FindParts(p, met)) return;
  const int64_t begin = p.in_two != 0 ? ShareOf(p, p.peers.rank) : 0;
  const int64_t end = p.in_two != 0 ? ShareOf(p, p.peers.rank + 1) : p.target.rows;
  for (int64_t t = begin + BlockX(); t < end; t += GridX()) {
    EndRow<T, kWidth>(p, met, t, nullptr, row, scratch);
  }
  if (p.in_two != 0) {
    if (!Meet(p.peers, what, nullptr, p.target.data, 1, met)) return;
    for (int i = 1; i < p.peers.world; ++i) {  // each rank begins with another one
      const int owner = (p.peers.rank + i) % p.peers.world;
      const T* results = met.Result<T>(owner);
      for (int64_t t = ShareOf(p, owner) + BlockX(); t < ShareOf(p, owner + 1); t += GridX()) {
        EndRow<T, kWidth>(p, met, t, results + t * p.target.stride, row, scratch);
      }
    }
    // The results may change when all have read them.
    if (!Meet(p.peers, what, nullptr, nullptr, 2, met)) return;
  }
  AllowNext();
  if (p.is_begun == 0) return EndMeetings(p.peers, p.in_two != 0 ? 3 : 1);
  SyncThreads();
  if (ThreadX() == 0) ++p.peers.counts->ended[BlockX()];
}

// Rows of a kernel that meets nobody: as many blocks as there are rows, up to these.
constexpr int kPartBlocks = 1024;

template <typename T, int kWidth>
HEDDLE_KERNEL SumPartsKernel(HEDDLE_PARAMS(SumPartsParams, p)) {
  WaitForPrevious();
  SharedArena arena;
  const Met met(arena);
  const Shared<float> scratch = arena.Take<float>(kMaxNormWarps);
  const Shared<float> row =
      arena.Take<float>(p.all.norms != 0 ? static_cast<int>(p.all.target.cols) : 1);
  if (ThreadX() < kMaxPeers) {
    met.addresses.Set(ThreadX(), reinterpret_cast<uint64_t>(p.parts[ThreadX()]));
  }
  SyncThreads();
  for (int64_t t = p.first_row + BlockX(); t < p.end_row; t += GridX()) {
    const bool is_sum = t >= p.first_sum && t < p.end_sum;
    EndRow<T, kWidth>(p.all, met, t, is_sum ? p.all.target.row<T>(t) : nullptr, row, scratch);
  }
  AllowNext();
}

// Launches one of both kernels, by what is aligned.
template <typename Wide, typename Narrow>
Error LaunchByWidth(const SumRanksParams& p, bool parts_are_aligned, LaunchShape shape, int width,
                    const Wide& wide, const Narrow& narrow) {
  const auto cols = static_cast<int>(p.target.cols);
  shape.shared_bytes = Met::Bytes() + SharedBytesFor<float>(kMaxNormWarps) +
                       SharedBytesFor<float>(p.norms != 0 ? cols : 1);
  const bool is_wide = parts_are_aligned && cols % width == 0 &&
                       (p.norms == 0 || (reinterpret_cast<uintptr_t>(p.norm.weight) % 16 == 0 &&
                                         reinterpret_cast<uintptr_t>(p.norm.bias) % 16 == 0));
  shape.threads = NormThreads(cols / (is_wide ? width : 1));
  return is_wide ? wide(shape) : narrow(shape);
}

}  // namespace

int SumBlocks(int64_t rows, int most) { return static_cast<int>(rows < most ? rows : most); }

Error LaunchBeginSum(const SumRanksParams& params, Stream stream) {
  return Launch(BeginSumKernel, {.grid_x = SumBlocks(params.target.rows), .threads = 32}, stream,
                params);
}

Error LaunchSumRanks(const SumRanksParams& params, DType act, Stream stream) {
  const int64_t rows = params.target.rows, cols = params.target.cols;
  const LaunchShape shape = {.grid_x = SumBlocks(rows, params.most_blocks)};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const Tensor part = {const_cast<void*>(params.partial), rows, cols, cols};
    const bool are_aligned = IsAligned<T>(params.target, kWide) && IsAligned<T>(part, kWide) &&
                             (params.norms == 0 || IsAligned<T>(params.norm.out, kWide));
    return LaunchByWidth(
        params, are_aligned, shape, kWide,
        [&](const LaunchShape& s) { return Launch(SumRanksKernel<T, kWide>, s, stream, params); },
        [&](const LaunchShape& s) { return Launch(SumRanksKernel<T, 1>, s, stream, params); });
  });
}

Error LaunchSumParts(const SumPartsParams& params, DType act, Stream stream) {
  const SumRanksParams& all = params.all;
  const int64_t cols = all.target.cols;
  const LaunchShape shape = {.grid_x = SumBlocks(params.end_row - params.first_row, kPartBlocks)};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    bool are_aligned =
        IsAligned<T>(all.target, kWide) && (all.norms == 0 || IsAligned<T>(all.norm.out, kWide));
    for (const void* part : params.parts) {
      const Tensor rows = {const_cast<void*>(part), all.target.rows, cols, cols};
      are_aligned = are_aligned && IsAligned<T>(rows, kWide);
    }
    return LaunchByWidth(
        all, are_aligned, shape, kWide,
        [&](const LaunchShape& s) { return Launch(SumPartsKernel<T, kWide>, s, stream, params); },
        [&](const LaunchShape& s) { return Launch(SumPartsKernel<T, 1>, s, stream, params); });
  });
}

}  // namespace heddle::kernels::cuda
