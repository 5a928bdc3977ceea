// The recurrence of kGatedDelta and kMamba2 (kernels/recurrence.h), with the convolution before it.
//
// A block has kColumns columns of one head of one sequence and keeps S of them in registers from
// the first row to the last: a warp has kGroup columns and kDepth rows of S, transposed, as sums of
// matrix instructions, 16 columns by 8 rows each. Rows are computed in parts of kScanRows
// positions, as on the CPU (recurrence_part.cuh). Of a part:
//   S^T times its queries and keys: the sums' registers are the left matrix as they are, once each
//     number is terms of BF16; warps' shares of the sum over d are added in order
//   u of its rows, one after the other: a lane has a column, and 16 coefficients for each row
//   its outputs: u times coefficients, by matrix instructions
//   S moves on: u times keys, by matrix instructions, added to the decayed S in F32, so that S
//     itself is never rounded to less
// So a decode reads S once and writes it once in 16 tokens, and a prompt touches it in registers
// alone. Heads that share a key head convolve and multiply its keys each for themselves: for 32
// heads of 128 x 128 that is no launch and no memory between. Where sequences have many rows, a
// launch before has made them (recurrence_end.cu), and a block has as many warps again, which bring
// the next part while these compute this one (kAhead).
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/state/recurrence_columns.cuh"

namespace heddle::kernels::cuda {
namespace recurrence {
namespace {

template <typename T, int kWidth>
HEDDLE_DEVICE PartMemory<kWidth, kTermsOf<T>> PartAt(int stage) {
  return PartMemory<kWidth, kTermsOf<T>>(BehindParts<kWidth, kTermsOf<T>>(stage));
}

// Where a slice's parts are.
struct Walk {
  const RecurrenceParams& p;
  const StateSlice& slice;

  HEDDLE_DEVICE ScanPart First() const {
    ScanPart part;
    part.place = {slice.page, slice.offset};
    part.first = slice.offset % kScanRows;
    part.n = Rows(part);
    return part;
  }
  HEDDLE_DEVICE bool IsLast(const ScanPart& part) const { return part.t + part.n >= slice.n; }
  HEDDLE_DEVICE ScanPart After(const ScanPart& part) const {
    ScanPart next;
    next.t = part.t + part.n;
    next.place = {part.place.page, part.place.offset + part.n};
    if (next.place.offset == p.pages.page_tokens && next.t < slice.n) {
      next.place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + next.t);
    }
    next.n = Rows(next);
    return next;
  }
  // Whether S at the part's beginning is what its page has to keep: where rows may be taken back,
  // that of the first part of the slice there, else that of the last.
  HEDDLE_DEVICE bool Stays(const ScanPart& part) const {
    const int32_t begin = part.place.offset - part.first;
    if (!slice.is_final()) return part.t == 0 || begin == 0;
    return begin + kScanRows == p.pages.page_tokens || IsLast(part);
  }
  // The page that has S before the slice, or -1; and whether it is before the part that ends there.
  struct From {
    int64_t page;
    int32_t end;
    bool is_behind;
  };
  HEDDLE_DEVICE From Begin() const {
    From from = {slice.offset > 0 ? slice.page : slice.page_before, p.pages.page_tokens, false};
    if (slice.offset > 0) from.end = slice.offset - slice.offset % kScanRows;
    if (from.page >= 0) from.is_behind = BorderOf(p.pages, from.page, from.end) != from.end;
    return from;
  }

 private:
  HEDDLE_DEVICE int Rows(const ScanPart& part) const {
    const int left = slice.n - part.t, room = kScanRows - part.first;
    return left < room ? left : room;
  }
};

// A block of which all warps bring a part and then compute it.
template <typename T, bool kDelta, int kWidth>
HEDDLE_DEVICE void RunInTurns(const PartsOf<T, kDelta, kWidth>& parts, const Walk& walk) {
  const auto of = PartAt<T, kWidth>(0);
  const Scan<T, kDelta, kWidth> scan{parts.p, parts.slice, parts,
                                     ScanMemory<kWidth, kTermsOf<T>>(SharedArena()), WarpIndex()};
  float s[kDepth / 8][4] = {};
  const Walk::From from = walk.Begin();
  bool moved = from.is_behind || parts.slice.offset == 0;  // S is not what the page has
  if (from.page >= 0) scan.LoadState(from.page, s);
  if (from.is_behind) {
    parts.Recall(of, from.page, from.end - kScanRows);
    SyncThreads();
    scan.TakeIn(of, s);
    SyncThreads();
  }
  for (ScanPart part = walk.First(); part.n > 0; part = walk.After(part)) {
    parts.Bring(of, part);
    if (moved && walk.Stays(part)) scan.StoreState(part.place.page, s);
    moved = true;
    SyncThreads();
    parts.Terms(of, part);
    SyncThreads();
    parts.Coefficients(of, part);
    scan.Multiply(of, part, s);
    SyncThreads();
    scan.Finish(of, part, s);
    SyncThreads();
  }
}

// A block of which the second half of the warps bring parts, one ahead of the first half. All pass
// the same barriers: three before the first part, five if a page keeps one, and two for each part.
template <typename T, bool kDelta, int kWidth>
HEDDLE_DEVICE void BringAhead(const PartsOf<T, kDelta, kWidth>& parts, const Walk& walk) {
  const Walk::From from = walk.Begin();
  if (from.is_behind) {
    parts.Recall(PartAt<T, kWidth>(1), from.page, from.end - kScanRows);
    SyncThreads();
    SyncThreads();
  }
  ScanPart part = walk.First();
  const auto first = PartAt<T, kWidth>(0);
  parts.Bring(first, part);
  SyncThreads();
  parts.Terms(first, part);
  SyncThreads();
  const AheadMemory<kWidth> ahead(BehindParts<kWidth, kTermsOf<T>>(2));
  RawStep<T> step;
  ScanPart next = walk.After(part);
  parts.LoadAhead(ahead, next, step);
  parts.Coefficients(first, part);
  SyncThreads();
  for (int stage = 1; next.n > 0; stage = 1 - stage) {  // while the part before is computed
    const auto to = PartAt<T, kWidth>(stage);
    part = next;
    parts.Place(to, ahead, part, step);
    SyncThreads();
    next = walk.After(part);
    parts.LoadAhead(ahead, next, step);
    parts.Coefficients(to, part);
    SyncThreads();
  }
  CopyAsyncWait<0>();
  SyncThreads();
  SyncThreads();
}
template <typename T, bool kDelta, int kWidth>
HEDDLE_DEVICE void ComputeBehind(const PartsOf<T, kDelta, kWidth>& parts, const Walk& walk) {
  const Scan<T, kDelta, kWidth> scan{parts.p, parts.slice, parts,
                                     ScanMemory<kWidth, kTermsOf<T>>(SharedArena()), WarpIndex()};
  float s[kDepth / 8][4] = {};
  const Walk::From from = walk.Begin();
  bool moved = from.is_behind || parts.slice.offset == 0;
  if (from.page >= 0) scan.LoadState(from.page, s);
  if (from.is_behind) {
    SyncThreads();
    scan.TakeIn(PartAt<T, kWidth>(1), s);
    SyncThreads();
  }
  SyncThreads();
  SyncThreads();
  SyncThreads();
  int stage = 0;
  for (ScanPart part = walk.First(); part.n > 0; part = walk.After(part)) {
    const auto of = PartAt<T, kWidth>(stage);
    stage = 1 - stage;
    if (moved && walk.Stays(part)) scan.StoreState(part.place.page, s);
    moved = true;
    scan.Multiply(of, part, s);
    SyncThreads();
    scan.Finish(of, part, s);
    SyncThreads();
  }
}

// Warps that have S.
constexpr int WarpsFor(int key_dim) { return kGroups * DeepFor(key_dim); }

// Blocks that registers of a multiprocessor have to suffice for: 128 for a thread, with more terms
// as many as there are.
constexpr int BlocksFor(int terms, int threads) { return terms > 2 ? 1 : 512 / threads; }

// BlockX: a tile of columns of a head. BlockY: a sequence.
template <typename T, bool kDelta, int kWidth, bool kAhead>
HEDDLE_KERNEL HEDDLE_BOUNDS((kAhead ? 2 : 1) * kWidth,
                            BlocksFor(kTermsOf<T>, kAhead ? 2 * kWidth : kWidth))
    RecurrenceScanKernel(HEDDLE_PARAMS(RecurrenceParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockY());
  if (slice.n == 0) return;
  const int tiles = (p.value_dim + kColumns - 1) / kColumns;
  const int warps = WarpsFor(p.key_dim);
  const ScanTeam team = {kAhead ? 32 * warps : 0, kAhead ? kAheadWarps<kWidth> : warps};
  const PartsOf<T, kDelta, kWidth> parts(p, slice, team, BlockX() % tiles, BlockX() / tiles);
  const Walk walk{p, slice};
  if constexpr (!kAhead) {
    RunInTurns(parts, walk);
  } else if (ThreadX() < team.first) {
    ComputeBehind(parts, walk);
  } else {
    BringAhead(parts, walk);
  }
}

struct ScanLaunch {
  const RecurrenceParams& params;
  const StateBatch& batch;
  int32_t max_shared_bytes;
  Stream stream;

  template <typename T, bool kDelta, int kWidth>
  Error Of() const {
    constexpr int kTerms = kTermsOf<T>, kPart = PartMemory<kWidth, kTerms>::kBytes;
    const int warps = WarpsFor(params.key_dim);
    LaunchShape shape = {.grid_x = params.n_heads * CeilDiv(params.value_dim, kColumns),
                         .grid_y = batch.all.n_seqs,
                         .threads = 32 * warps,
                         .shared_bytes = ScanMemory<kWidth, kTerms>::kBytes + kPart};
    const int two = shape.shared_bytes + kPart + AheadMemory<kWidth>::kBytes;
    static_assert(ScanMemory<kWidth, kTerms>::kBytes + kPart <= 99 << 10,
                  "a block of every GPU has room for a part");
    // Two parts or more of a sequence, on average.
    const bool are_many = params.out.rows >= int64_t{2} * kScanRows * batch.all.n_seqs;
    if (params.mixed == nullptr || !are_many || two > max_shared_bytes) {
      return Launch(RecurrenceScanKernel<T, kDelta, kWidth, false>, shape, stream, params);
    }
    shape.threads += 32 * kAheadWarps<kWidth>;
    shape.shared_bytes = two;
    return Launch(RecurrenceScanKernel<T, kDelta, kWidth, true>, shape, stream, params);
  }
};

}  // namespace
}  // namespace recurrence

Error LaunchRecurrenceScan(const StateBatch& batch, const RecurrenceArgs& args, const float* mixed,
                           int32_t max_shared_bytes, DType act, Stream stream) {
  constexpr int kUsualKeys = 128;
  const RecurrenceParams params = ParamsOf(batch, args, mixed);
  const recurrence::ScanLaunch launch{params, batch, max_shared_bytes, stream};
  return ForActivation(act, [&]<typename T>(T) {
    if (params.key_dim <= kUsualKeys) {
      return params.delta ? launch.Of<T, true, kUsualKeys>() : launch.Of<T, false, kUsualKeys>();
    }
    return params.delta ? launch.Of<T, true, kMaxStateRows>()
                        : launch.Of<T, false, kMaxStateRows>();
  });
}

}  // namespace heddle::kernels::cuda
