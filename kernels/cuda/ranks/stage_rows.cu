// Rows that pass between the stages of a pipeline: the sender says where they are, and the receiver
// fetches them. Messages of a pair of stages are numbered from 0 on.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/ranks/meet.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// A block fetches pieces of this size: 16 KiB.
constexpr int64_t kPieceBytes = int64_t{kThreads} * 64;

// The sender waits only where the receiver is kStagePlaces messages behind.
HEDDLE_KERNEL SendRowsKernel(HEDDLE_PARAMS(StageRowsParams, p)) {
  WaitForPrevious();
  if (ThreadX() != 0) return;
  Mailbox* own = p.peers.boxes[p.peers.rank];
  const uint32_t oldest = p.number + 1 - kStagePlaces;
  const auto has_place = [&] {
    return static_cast<int32_t>(LoadAcquire(&own->taken[p.other]) - oldest) >= 0;
  };
  if (!WaitForPeer(p.peers, p.other, p.what, has_place)) return;
  FenceSystem();
  Letter& letter = p.peers.boxes[p.other]->rows[p.peers.rank][p.number % kStagePlaces];
  letter.part = p.rows;
  letter.what = p.what;
  StoreRelease(&letter.number, p.number + 1);
}

HEDDLE_KERNEL RecvRowsKernel(HEDDLE_PARAMS(StageRowsParams, p)) {
  WaitForPrevious();
  SharedArena arena;
  const Met met(arena);
  Mailbox* own = p.peers.boxes[p.peers.rank];
  if (ThreadX() == 0) {
    const Letter* letter = &own->rows[p.other][p.number % kStagePlaces];
    const bool is_here = WaitForLetter(p.peers, letter, p.number + 1, p.other, p.what);
    met.missing.Set(0, is_here ? 0 : 1);
    met.addresses.Set(0, reinterpret_cast<uint64_t>(letter->part));
  }
  SyncThreads();
  if (met.missing.Get(0) != 0) return;
  const uint8_t* from = met.Part<uint8_t>(0);
  uint8_t* to = static_cast<uint8_t*>(p.rows);
  for (int64_t begin = BlockX() * kPieceBytes; begin < p.bytes; begin += GridX() * kPieceBytes) {
    const int64_t end = begin + kPieceBytes < p.bytes ? begin + kPieceBytes : p.bytes;
    for (int64_t i = begin + 16 * ThreadX(); i < end; i += 16 * ThreadCount()) {
      if (i + 16 <= end) {
        StoreGlobal16(to + i, LoadFresh16(from + i));
        continue;
      }
      for (int64_t j = i; j < end; j += 2) {
        *reinterpret_cast<BFloat16*>(to + j) =
            LoadPeer(reinterpret_cast<const BFloat16*>(from + j));
      }
    }
  }
  AllowNext();
  // The last block tells the sender.
  FenceSystem();
  SyncThreads();
  if (ThreadX() != 0 || AtomicAddGlobal(&own->fetched, 1) != GridX() - 1) return;
  own->fetched = 0;
  FenceSystem();
  StoreRelease(&p.peers.boxes[p.other]->taken[p.peers.rank], p.number + 1);
}

}  // namespace

uint32_t StageWord(int64_t bytes) { return OpWord(kStageOp, bytes, 1); }

Error LaunchSendRows(const StageRowsParams& params, Stream stream) {
  return Launch(SendRowsKernel, {.threads = 32}, stream, params);
}

Error LaunchRecvRows(const StageRowsParams& params, Stream stream) {
  const int64_t pieces = (params.bytes + kPieceBytes - 1) / kPieceBytes;
  const LaunchShape shape = {
      .grid_x = static_cast<int>(pieces < kPeerBlocks ? pieces : kPeerBlocks),
      .threads = kThreads,
      .shared_bytes = Met::Bytes()};
  return Launch(RecvRowsKernel, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
