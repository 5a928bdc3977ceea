// The recurrence of kGatedDelta and kMamba2 (kernels/recurrence.h), with the convolution before it.
//
// A block has kColumns columns of one head of one sequence, a lane each, and keeps S of them in
// registers from the first row to the last: each warp has kDepth rows of S. Rows are computed in
// parts of kScanRows positions, as on the CPU. Of a part, S is multiplied by its keys and queries
// (a thread's share of the sum over d, then the warps' shares in order), products of keys and
// queries are made by 8 lanes each, and then rows follow one another with 16 coefficients each,
// without S. Moving on to the next part adds 16 products to each element of S.
//
// So a decode reads S once and writes it once in 16 tokens, and a prompt touches it in registers
// alone. Heads that share a key head convolve and multiply its keys each for themselves: for 32
// heads of 128 x 128 that is no launch and no memory between. Where sequences have many rows, that
// would be two fifths of the work: then a launch before has made them (recurrence_end.cu).
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/state/recurrence_params.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kColumns = 32;
constexpr int kDepth = 32;  // rows of S that a warp has
constexpr int kMaxWarps = kMaxStateRows / kDepth;
constexpr int kTeam = 8;    // lanes that make one product of a key and a query
constexpr int kFolded = 8;  // updates that S takes in at a time, in registers

constexpr int WarpsFor(int key_dim) { return (key_dim + kDepth - 1) / kDepth; }
// Floats from a key to the next: not a multiple of 32 banks.
HEDDLE_HOST_DEVICE int PitchOf(int warps) { return warps * kDepth + 4; }

// The block's shared memory. Rows are those of a part; `i` counts this step's, `at` all 16.
struct ScanMemory {
  HEDDLE_DEVICE ScanMemory(int warps, SharedArena arena)
      : keys(arena.Take<float>(kScanRows * PitchOf(warps))),
        queries(arena.Take<float>(kScanRows * PitchOf(warps))),
        sums(arena.Take<float>(warps * 2 * kScanRows * kColumns)),
        values(arena.Take<float>(kScanRows * kColumns)),
        updates(arena.Take<float>(kScanRows * kColumns)),
        in_update(arena.Take<float>(kScanRows * kScanRows)),
        in_output(arena.Take<float>(kScanRows * kScanRows)),
        decays(arena.Take<float>(kScanRows)),
        gains(arena.Take<float>(kScanRows)),
        wholes(arena.Take<float>(kScanRows)),
        since(arena.Take<float>(kScanRows)) {}

  static int Bytes(int warps) {
    return 2 * SharedBytesFor<float>(kScanRows * PitchOf(warps)) +
           SharedBytesFor<float>(warps * 2 * kScanRows * kColumns) +
           2 * SharedBytesFor<float>(kScanRows * kColumns) +
           2 * SharedBytesFor<float>(kScanRows * kScanRows) + 4 * SharedBytesFor<float>(kScanRows);
  }

  Shared<float> keys;       // [at][d], zeros behind key_dim
  Shared<float> queries;    // [i][d], the same
  Shared<float> sums;       // [warp][queries, then keys: i][column]: S's products with them
  Shared<float> values;     // v [i][column]
  Shared<float> updates;    // u [at][column]
  Shared<float> in_update;  // [i][at]: coefficients of updates before row i, in its own
  Shared<float> in_output;  // [i][at]: the same in its output, row i's own too
  Shared<float> decays;     // [at]: sums of g since the part began
  Shared<float> gains;      // [i]
  Shared<float> wholes;     // [i]: by which S has decayed at row i
  Shared<float> since;      // [at]: by which u has decayed at the part's end
};

// A part of a slice's rows.
struct ScanPart {
  int t = 0;      // row of the slice
  int n = 0;      // rows
  int first = 0;  // `at` of row t
  StatePlace place = {0, 0};
};

template <typename T, bool kDelta>
struct Scan {
  const RecurrenceParams& p;
  const StateSlice slice;
  const ScanMemory m;
  const int head, key_head;
  const int column;  // of the head, this lane's
  const int warps, pitch;

  HEDDLE_DEVICE Scan(const RecurrenceParams& params, const StateSlice& s, int tile, int h)
      : p(params),
        slice(s),
        m(WarpsFor(params.key_dim), SharedArena()),
        head(h),
        key_head(params.tiled ? h % params.n_key_heads : h / (params.n_heads / params.n_key_heads)),
        column(tile * kColumns + Lane()),
        warps(WarpsFor(params.key_dim)),
        pitch(PitchOf(warps)) {}

  HEDDLE_DEVICE bool has_column() const { return column < p.value_dim; }
  HEDDLE_DEVICE float* StateAt(int64_t page) const {
    const int64_t row = static_cast<int64_t>(head) * p.key_dim + WarpIndex() * kDepth;
    return PageOf(p.pages, page) + p.state_at + row * p.value_dim + column;
  }
  HEDDLE_DEVICE float* UpdatesAt(int64_t page, int32_t offset) const {
    return PageOf(p.pages, page) + p.updates_at + PartOf(head, offset) * p.value_dim + column;
  }
  // Rows of S that this warp has.
  HEDDLE_DEVICE int depth() const { return p.key_dim - WarpIndex() * kDepth; }

  HEDDLE_DEVICE void LoadState(int64_t page, float (&s)[kDepth]) const {
    const float* from = StateAt(page);
    HEDDLE_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      s[d] = has_column() && d < depth() ? from[static_cast<int64_t>(d) * p.value_dim] : 0.0f;
    }
  }
  HEDDLE_DEVICE void StoreState(int64_t page, const float (&s)[kDepth]) const {
    float* to = StateAt(page);
    HEDDLE_UNROLL
    for (int d = 0; d < kDepth; ++d) {
      if (has_column() && d < depth()) to[static_cast<int64_t>(d) * p.value_dim] = s[d];
    }
  }

  // Takes over what a page keeps of `count` positions from `offset` on, where a part begins.
  HEDDLE_DEVICE void LoadKept(int64_t page, int32_t offset, int count) const {
    const float* keys = PageOf(p.pages, page) + p.keys_at + PartOf(key_head, offset) * p.key_dim;
    for (int i = ThreadX(); count > 0 && i < p.key_dim * kScanRows; i += ThreadCount()) {
      if (i % kScanRows < count) m.keys.Set(i % kScanRows * pitch + i / kScanRows, keys[i]);
    }
    const float* updates = UpdatesAt(page, offset);
    for (int at = WarpIndex(); at < count; at += warps) {
      m.updates.Set(at * kColumns + Lane(),
                    has_column() ? updates[static_cast<int64_t>(at) * p.value_dim] : 0.0f);
    }
    if (ThreadX() < count) m.decays.Set(ThreadX(), DecaysAt(p, page, head, offset)[ThreadX()]);
  }

  // Moves S on to the end of the part that is in shared memory.
  HEDDLE_DEVICE void Fold(float (&s)[kDepth]) const {
    SyncThreads();
    const float last = m.decays.Get(kScanRows - 1);
    if (ThreadX() < kScanRows) m.since.Set(ThreadX(), Exp(last - m.decays.Get(ThreadX())));
    SyncThreads();
    const float whole = Exp(last);
    HEDDLE_UNROLL
    for (int d = 0; d < kDepth; ++d) s[d] *= whole;
    for (int begin = 0; begin < kScanRows; begin += kFolded) {
      float u[kFolded];
      HEDDLE_UNROLL
      for (int j = 0; j < kFolded; ++j) {
        u[j] = m.since.Get(begin + j) * m.updates.Get((begin + j) * kColumns + Lane());
      }
      HEDDLE_UNROLL
      for (int d = 0; d < kDepth; d += 4) {
        HEDDLE_UNROLL
        for (int j = 0; j < kFolded; ++j) {
          const auto key =
              m.keys.GetAs<Group<float, 4>>((begin + j) * pitch + WarpIndex() * kDepth + d);
          HEDDLE_UNROLL
          for (int e = 0; e < 4; ++e) s[d + e] = Fma(key.item[e], u[j], s[d + e]);
        }
      }
    }
  }

  HEDDLE_DEVICE int64_t RowOf(int t) const { return slice.first_row + t; }

  // q, k and v of the part's rows, by warps that have 32 channels of a row each time.
  HEDDLE_DEVICE void Convolve(const ScanPart& part) const {
    const int chunks = (p.key_dim + 31) / 32, pieces = 2 * chunks + 1;
    for (int unit = WarpIndex(); unit < part.n * pieces; unit += warps) {
      const int i = unit / pieces, piece = unit % pieces;
      const auto made = [&](int64_t c) {
        if (p.mixed != nullptr) return p.mixed[RowOf(part.t + i) * p.conv.channels + c];
        return Convolved<T>(p.conv, p.pages, slice, part.t + i, c);
      };
      if (piece == 2 * chunks) {
        const int64_t c = 2 * p.keys + static_cast<int64_t>(head) * p.value_dim + column;
        m.values.Set(i * kColumns + Lane(), has_column() ? made(c) : 0.0f);
        continue;
      }
      const bool is_key = piece >= chunks;
      const int d = piece % chunks * 32 + Lane();
      if (d >= p.key_dim) continue;
      const int64_t c = (is_key ? p.keys : 0) + static_cast<int64_t>(key_head) * p.key_dim + d;
      const float x = made(c);
      if (is_key) {
        m.keys.Set((part.first + i) * pitch + d, x);
      } else {
        m.queries.Set(i * pitch + d, x);
      }
    }
  }

  // Gives keys and queries the length 1, and these 1 / sqrt(key_dim) of it.
  HEDDLE_DEVICE void Normalise(const ScanPart& part) const {
    const float scale = Rsqrt(static_cast<float>(p.key_dim));
    for (int unit = WarpIndex(); unit < 2 * part.n; unit += warps) {
      const bool is_key = unit >= part.n;
      const Shared<float> row =
          is_key ? m.keys.From((part.first + unit - part.n) * pitch) : m.queries.From(unit * pitch);
      float squares = 0;
      for (int d = Lane(); d < p.key_dim; d += 32) squares = Fma(row.Get(d), row.Get(d), squares);
      const float inverse = InverseLength(squares);
      const float factor = is_key ? inverse : inverse * scale;
      for (int d = Lane(); d < p.key_dim; d += 32) row.Set(d, row.Get(d) * factor);
    }
  }

  // g and the gain of the part's rows, and the sums of g. By one warp.
  HEDDLE_DEVICE void Steps(const ScanPart& part) const {
    if (ThreadX() < part.n) {
      const RowStep step = StepOf<T>(p, RowOf(part.t + ThreadX()), head, kDelta);
      m.decays.Set(part.first + ThreadX(), step.decay);
      m.gains.Set(ThreadX(), step.gain);
    }
    SyncWarp();
    if (ThreadX() == 0) {
      float sum = part.first > 0 ? m.decays.Get(part.first - 1) : 0.0f;
      for (int at = part.first; at < part.first + part.n; ++at) {
        sum += m.decays.Get(at);
        m.decays.Set(at, sum);
      }
    }
  }

  // This warp's share of S's products with queries and keys.
  HEDDLE_DEVICE void Multiply(const ScanPart& part, const float (&s)[kDepth]) const {
    const int first = WarpIndex() * kDepth;
    for (int i = 0; i < part.n; ++i) {
      float of_query = 0, of_key = 0;
      HEDDLE_UNROLL
      for (int d = 0; d < kDepth; d += 4) {
        const auto query = m.queries.GetAs<Group<float, 4>>(i * pitch + first + d);
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) of_query = Fma(query.item[e], s[d + e], of_query);
        if constexpr (kDelta) {
          const auto key = m.keys.GetAs<Group<float, 4>>((part.first + i) * pitch + first + d);
          HEDDLE_UNROLL
          for (int e = 0; e < 4; ++e) of_key = Fma(key.item[e], s[d + e], of_key);
        }
      }
      const int at = (WarpIndex() * 2 * kScanRows + i) * kColumns + Lane();
      m.sums.Set(at, of_query);
      if constexpr (kDelta) m.sums.Set(at + kScanRows * kColumns, of_key);
    }
  }

  // Coefficients of updates: products of keys with a row's query and key, decayed.
  HEDDLE_DEVICE void Coefficients(const ScanPart& part) const {
    const int team = ThreadX() / kTeam, lane = ThreadX() % kTeam;
    const int teams = ThreadCount() / kTeam;
    for (int pair = team; pair < part.n * kScanRows; pair += teams) {
      const int i = pair / kScanRows, j = pair % kScanRows, at = part.first + i;
      if (j - team % 4 > at) continue;  // nor do the warp's other teams have a pair
      float of_query = 0, of_key = 0;
      for (int d = 4 * lane; j <= at && d < warps * kDepth; d += 4 * kTeam) {
        const auto key = m.keys.GetAs<Group<float, 4>>(j * pitch + d);
        const auto query = m.queries.GetAs<Group<float, 4>>(i * pitch + d);
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) of_query = Fma(key.item[e], query.item[e], of_query);
        if constexpr (kDelta) {
          const auto own = m.keys.GetAs<Group<float, 4>>(at * pitch + d);
          HEDDLE_UNROLL
          for (int e = 0; e < 4; ++e) of_key = Fma(key.item[e], own.item[e], of_key);
        }
      }
      HEDDLE_UNROLL
      for (int mask = kTeam / 2; mask > 0; mask /= 2) {
        of_query += ShuffleXor(of_query, mask);
        if constexpr (kDelta) of_key += ShuffleXor(of_key, mask);
      }
      if (lane > 0 || j > at) continue;
      const float decayed = Exp(m.decays.Get(at) - m.decays.Get(j));
      m.in_output.Set(i * kScanRows + j, decayed * of_query);
      if constexpr (kDelta) m.in_update.Set(i * kScanRows + j, decayed * of_key);
    }
    if (ThreadX() < part.n) m.wholes.Set(ThreadX(), Exp(m.decays.Get(part.first + ThreadX())));
  }

  // Adds the warps' shares up. With kMamba2 updates need nothing else.
  HEDDLE_DEVICE void AddShares(const ScanPart& part) const {
    const int rows = kDelta ? 2 * part.n : part.n;
    for (int r = WarpIndex(); r < rows; r += warps) {
      const int row = r < part.n ? r : kScanRows + r - part.n;
      const int at = row * kColumns + Lane();
      float sum = m.sums.Get(at);
      for (int w = 1; w < warps; ++w) sum += m.sums.Get(w * 2 * kScanRows * kColumns + at);
      m.sums.Set(at, sum);
    }
    if constexpr (!kDelta) {
      for (int i = WarpIndex(); i < part.n; i += warps) {
        m.updates.Set((part.first + i) * kColumns + Lane(),
                      m.gains.Get(i) * m.values.Get(i * kColumns + Lane()));
      }
    }
  }

  // u of the part's rows, one after the other. By one warp.
  HEDDLE_DEVICE void Update(const ScanPart& part) const {
    float u[kScanRows];
    HEDDLE_UNROLL
    for (int at = 0; at < kScanRows; ++at) {
      u[at] = 0;
      if (at < part.first) {
        u[at] = m.updates.Get(at * kColumns + Lane());
      } else if (at < part.first + part.n) {
        const int i = at - part.first;
        float seen = m.wholes.Get(i) * m.sums.Get((kScanRows + i) * kColumns + Lane());
        HEDDLE_UNROLL
        for (int j = 0; j < at; ++j) seen = Fma(m.in_update.Get(i * kScanRows + j), u[j], seen);
        u[at] = m.gains.Get(i) * (m.values.Get(i * kColumns + Lane()) - seen);
        m.updates.Set(at * kColumns + Lane(), u[at]);
      }
    }
  }

  // Outputs, and the updates of rows that few follow in their pages. Sums of g are kept by a later
  // launch: the head's other blocks may still read those that have their places.
  HEDDLE_DEVICE void Finish(const ScanPart& part) const {
    const float skip = p.skip != nullptr ? p.skip[head] : 0.0f;
    float* updates = UpdatesAt(part.place.page, part.place.offset);
    for (int i = WarpIndex(); i < part.n; i += warps) {
      const int at = part.first + i;
      float out = m.wholes.Get(i) * m.sums.Get(i * kColumns + Lane());
      for (int j = 0; j <= at; ++j) {
        out = Fma(m.in_output.Get(i * kScanRows + j), m.updates.Get(j * kColumns + Lane()), out);
      }
      out = Fma(skip, m.values.Get(i * kColumns + Lane()), out);
      if (has_column()) {
        p.out.row<T>(slice.first_row + part.t +
                     i)[static_cast<int64_t>(head) * p.value_dim + column] = RoundTo(out, T());
      }
      const int behind = RowsBehind(slice, p.pages.page_tokens, part.t + i, part.place.offset + i);
      if (behind < 2 * kScanRows && has_column()) {
        updates[static_cast<int64_t>(at) * p.value_dim] = m.updates.Get(at * kColumns + Lane());
      }
    }
  }

  HEDDLE_DEVICE ScanPart PartAt(int t) const {
    ScanPart part;
    part.t = t;
    part.place = PlaceOf(p.batch, p.pages.page_tokens, slice.first_row + t);
    part.first = part.place.offset % kScanRows;
    part.n = slice.n - t < kScanRows - part.first ? slice.n - t : kScanRows - part.first;
    return part;
  }

  // Whether S at the part's beginning is what its page has to keep: where rows may be taken back,
  // that of the first part of the slice there, else that of the last.
  HEDDLE_DEVICE bool Stays(const ScanPart& part) const {
    const int32_t begin = part.place.offset - part.first;
    if (!slice.is_final()) return part.t == 0 || begin == 0;
    return begin + kScanRows == p.pages.page_tokens || part.t + part.n == slice.n;
  }

  HEDDLE_DEVICE void Run() const {
    // Places behind key_dim stay zero.
    const int extra = warps * kDepth - p.key_dim;
    for (int i = ThreadX(); i < kScanRows * extra; i += ThreadCount()) {
      const int at = i / extra * pitch + p.key_dim + i % extra;
      m.keys.Set(at, 0.0f);
      m.queries.Set(at, 0.0f);
    }
    float s[kDepth];
    bool behind = false;  // S is that of the part before
    bool moved = true;    // S is not what the page has
    const int64_t from = slice.offset > 0 ? slice.page : slice.page_before;
    if (from < 0) {
      HEDDLE_UNROLL
      for (int d = 0; d < kDepth; ++d) s[d] = 0;
    } else {
      const int32_t end =
          slice.offset > 0 ? slice.offset - slice.offset % kScanRows : p.pages.page_tokens;
      LoadState(from, s);
      behind = BorderOf(p.pages, from, end) != end;
      moved = behind || slice.offset == 0;
      if (behind) LoadKept(from, end - kScanRows, kScanRows);
    }
    for (int t = 0; t < slice.n;) {
      const ScanPart part = PartAt(t);
      if (behind) Fold(s);
      if (moved && Stays(part)) StoreState(part.place.page, s);
      SyncThreads();
      LoadKept(part.place.page, part.place.offset - part.first, part.first);
      Convolve(part);
      if (WarpIndex() == 0) Steps(part);
      SyncThreads();
      if (kDelta && p.mixed == nullptr) {
        Normalise(part);
        SyncThreads();
      }
      Multiply(part, s);
      Coefficients(part);
      SyncThreads();
      AddShares(part);
      SyncThreads();
      if constexpr (kDelta) {
        if (WarpIndex() == 0) Update(part);
        SyncThreads();
      }
      Finish(part);
      behind = moved = true;
      t += part.n;
    }
  }
};

// BlockX: a tile of columns of a head. BlockY: a sequence.
template <typename T, bool kDelta>
HEDDLE_KERNEL HEDDLE_BOUNDS(32 * kMaxWarps, 1)
    RecurrenceScanKernel(HEDDLE_PARAMS(RecurrenceParams, p)) {
  StartInTurn();
  const StateSlice slice = SliceOf(p.batch, p.pages.page_tokens, BlockY());
  if (slice.n == 0) return;
  const int tiles = (p.value_dim + kColumns - 1) / kColumns;
  Scan<T, kDelta>(p, slice, BlockX() % tiles, BlockX() / tiles).Run();
}

}  // namespace

Error LaunchRecurrenceScan(const StateBatch& batch, const RecurrenceArgs& args, const float* mixed,
                           DType act, Stream stream) {
  const RecurrenceParams params = ParamsOf(batch, args, mixed);
  const int warps = WarpsFor(params.key_dim);
  const LaunchShape shape = {.grid_x = params.n_heads * CeilDiv(params.value_dim, kColumns),
                             .grid_y = params.batch.all.n_seqs,
                             .threads = 32 * warps,
                             .shared_bytes = ScanMemory::Bytes(warps)};
  return ForActivation(act, [&]<typename T>(T) {
    return params.delta ? Launch(RecurrenceScanKernel<T, true>, shape, stream, params)
                        : Launch(RecurrenceScanKernel<T, false>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
