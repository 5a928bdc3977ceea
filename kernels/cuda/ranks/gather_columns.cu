// The columns of all ranks side by side. Each rank that wants them reads the others' where they
// are.
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/ranks/meet.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// A block copies this many columns of one rank's row at a time: 32 KiB.
constexpr int kPieceColumns = 8192;

// Copies columns [begin, end) of a row of `part` to `to`.
HEDDLE_DEVICE void CopyColumns(const float* part, float* to, int begin, int end) {
  const uint64_t places = reinterpret_cast<uint64_t>(part) | reinterpret_cast<uint64_t>(to);
  int c = begin;
  if (places % 16 == 0) {
    for (c = begin + 4 * ThreadX(); c + 4 <= end; c += 4 * ThreadCount()) {
      StoreGlobal16(to + c, LoadFresh16(part + c));
    }
    c = end - (end - begin) % 4;
  }
  for (c += ThreadX(); c < end; c += ThreadCount()) to[c] = LoadPeer(part + c);
}

// Copies the columns of all ranks to the whole; part(r) is where those of rank r are.
template <typename Part>
HEDDLE_DEVICE void PlaceAll(const GatherColumnsParams& p, const Part& part) {
  const int world = p.peers.world;
  int64_t piece = 0;
  for (int r = 0; p.whole.data != nullptr && r < world; ++r) {
    const float* own = part(r);
    const int cols = p.borders[r + 1] - p.borders[r];
    if (own == nullptr) continue;
    for (int begin = 0; begin < cols; begin += kPieceColumns) {
      const int end = begin + kPieceColumns < cols ? begin + kPieceColumns : cols;
      // Rows of a piece go to the blocks in turn, and so do pieces.
      const int64_t first = (BlockX() - piece % GridX() + GridX()) % GridX();
      for (int64_t t = first; t < p.rows; t += GridX()) {
        CopyColumns(own + t * cols, p.whole.row<float>(t) + p.borders[r], begin, end);
      }
      piece += p.rows;
    }
  }
}

HEDDLE_KERNEL PlaceColumnsKernel(HEDDLE_PARAMS(PlaceColumnsParams, p)) {
  WaitForPrevious();
  PlaceAll(p.all, [&](int r) { return p.parts[r]; });
  AllowNext();
}

HEDDLE_KERNEL GatherColumnsKernel(HEDDLE_PARAMS(GatherColumnsParams, p)) {
  WaitForPrevious();
  SharedArena arena;
  const Met met(arena);
  const uint32_t what = OpWord(kGatherOp, p.rows, p.borders[p.peers.world]);
  if (!Meet(p.peers, what, p.part, nullptr, 0, met)) return;
  PlaceAll(p, [&](int r) { return met.Part<float>(r); });
  // The parts may change when all have read them.
  if (!Meet(p.peers, what, nullptr, nullptr, 1, met)) return;
  AllowNext();
  EndMeetings(p.peers, 2);
}

}  // namespace

int GatherBlocks(int64_t rows, int64_t columns) {
  const int64_t pieces = rows * ((columns + kPieceColumns - 1) / kPieceColumns + 1);
  return static_cast<int>(pieces < kPeerBlocks ? pieces : kPeerBlocks);
}

Error LaunchGatherColumns(const GatherColumnsParams& params, Stream stream) {
  const LaunchShape shape = {
      .grid_x = GatherBlocks(params.rows, params.borders[params.peers.world]),
      .threads = kThreads,
      .shared_bytes = Met::Bytes()};
  return Launch(GatherColumnsKernel, shape, stream, params);
}

Error LaunchPlaceColumns(const PlaceColumnsParams& params, Stream stream) {
  const GatherColumnsParams& all = params.all;
  const LaunchShape shape = {.grid_x = GatherBlocks(all.rows, all.borders[all.peers.world]),
                             .threads = kThreads};
  return Launch(PlaceColumnsKernel, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
