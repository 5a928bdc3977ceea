// Rows that pass between the stages of a pipeline: the sender says where they are, and the receiver
// fetches them. Messages of a pair of stages are numbered from 0 on.
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/ranks/meet.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// A block moves pieces of this size: 16 KiB.
constexpr int64_t kPieceBytes = int64_t{kThreads} * 64;
// Places for copies of messages to a stage.
constexpr uint32_t kCopies = 2;

// Waits until the receiver is at most `places` messages behind this one.
HEDDLE_DEVICE bool WaitForPlace(const StageRowsParams& p, uint32_t places) {
  const uint32_t* taken = &p.peers.boxes[p.peers.rank]->taken[p.other];
  const uint32_t oldest = p.number + 1 - places;
  return WaitForPeer(p.peers, p.other, p.what,
                     [&] { return static_cast<int32_t>(LoadAcquire(taken) - oldest) >= 0; });
}

HEDDLE_DEVICE void TellReceiver(const StageRowsParams& p, const void* part) {
  FenceSystem();
  Letter& letter = p.peers.boxes[p.other]->rows[p.peers.rank][p.number % kStagePlaces];
  letter.part = part;
  letter.what = p.what;
  StoreRelease(&letter.number, p.number + 1);
}

// Moves the pieces of this block; rows of another device, or for one.
HEDDLE_DEVICE void MovePieces(const uint8_t* from, uint8_t* to, int64_t bytes) {
  for (int64_t begin = BlockX() * kPieceBytes; begin < bytes; begin += GridX() * kPieceBytes) {
    const int64_t end = begin + kPieceBytes < bytes ? begin + kPieceBytes : bytes;
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
}

// True in one thread: the first one of the last block that has moved its pieces.
HEDDLE_DEVICE bool IsLastToMove(const Peers& peers) {
  FenceSystem();
  SyncThreads();
  if (ThreadX() != 0 || AtomicAddGlobal(&peers.counts->moved, 1) != GridX() - 1) return false;
  peers.counts->moved = 0;
  FenceSystem();
  return true;
}

// The sender waits only where the receiver is kStagePlaces messages behind.
HEDDLE_KERNEL SendRowsKernel(HEDDLE_PARAMS(StageRowsParams, p)) {
  WaitForPrevious();
  if (ThreadX() != 0 || !WaitForPlace(p, kStagePlaces)) return;
  TellReceiver(p, p.rows);
}

HEDDLE_KERNEL SendCopiedRowsKernel(HEDDLE_PARAMS(StageRowsParams, p)) {
  WaitForPrevious();
  SharedArena arena;
  const Met met(arena);
  if (ThreadX() == 0) met.missing.Set(0, WaitForPlace(p, kCopies) ? 0 : 1);
  SyncThreads();
  if (met.missing.Get(0) != 0) return;
  MovePieces(static_cast<const uint8_t*>(p.rows), static_cast<uint8_t*>(p.copy), p.bytes);
  AllowNext();
  if (IsLastToMove(p.peers)) TellReceiver(p, p.copy);
}

HEDDLE_KERNEL RecvRowsKernel(HEDDLE_PARAMS(StageRowsParams, p)) {
  WaitForPrevious();
  SharedArena arena;
  const Met met(arena);
  if (ThreadX() == 0) {
    const Letter* letter = &p.peers.boxes[p.peers.rank]->rows[p.other][p.number % kStagePlaces];
    const bool is_here = WaitForLetter(p.peers, letter, p.number + 1, p.other, p.what);
    met.missing.Set(0, is_here ? 0 : 1);
    met.addresses.Set(0, reinterpret_cast<uint64_t>(letter->part));
  }
  SyncThreads();
  if (met.missing.Get(0) != 0) return;
  MovePieces(met.Part<uint8_t>(0), static_cast<uint8_t*>(p.rows), p.bytes);
  AllowNext();
  // The last block tells the sender.
  if (!IsLastToMove(p.peers)) return;
  StoreRelease(&p.peers.boxes[p.other]->taken[p.peers.rank], p.number + 1);
}

// The shape of kernels that move rows.
LaunchShape ShapeOf(int64_t bytes) {
  const int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  return {.grid_x = static_cast<int>(pieces < kPeerBlocks ? pieces : kPeerBlocks),
          .threads = kThreads,
          .shared_bytes = Met::Bytes()};
}

}  // namespace

uint32_t StageWord(int64_t bytes) { return OpWord(kStageOp, bytes, 1); }

Error LaunchSendRows(const StageRowsParams& params, Stream stream) {
  if (params.copy == nullptr) return Launch(SendRowsKernel, {.threads = 32}, stream, params);
  return Launch(SendCopiedRowsKernel, ShapeOf(params.bytes), stream, params);
}

Error LaunchRecvRows(const StageRowsParams& params, Stream stream) {
  return Launch(RecvRowsKernel, ShapeOf(params.bytes), stream, params);
}

}  // namespace heddle::kernels::cuda
