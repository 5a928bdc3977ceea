// Launch parameters of the ops across ranks. Rules for all launchers are in runtime/stream.h.
//
// Block b of a rank's kernel meets block b of the same kernel on all other ranks: it writes a
// letter into each one's mailbox, in that one's memory, with the addresses of what the others may
// read, and waits for theirs. A block counts its meetings; places for letters take turns by the
// parity of the count, so that one meeting per op suffices: who is at meeting m + 1 has read the
// letters, and what they point to, of meeting m. The counts are in the device's memory, so that a
// graph need not be changed from step to step. All blocks of a kernel take part in every meeting,
// and kernels have equal grids on all ranks.
//
// Where ranks share no memory, the mailboxes are in page-locked memory of the host, which answers
// for the other ranks (host_relay.h): kernels do not see the difference.
//
// A block that waits gives up when the group is aborted, when a rank has not come for `limit_ns`,
// or when a letter is of another op; it then writes nothing more, and aborts the group.
#pragma once

#include <cstdint>

#include "kernels/cuda/norm_adapters.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// Ranks of a group at most: the GPUs of a machine.
inline constexpr int kMaxPeers = 8;
// Blocks of a kernel at most. All have to run at the same time, those of two ranks on one GPU
// included.
inline constexpr int kPeerBlocks = 32;
// The same of a kernel of half a step. Those of both halves may wait at the same time, and leave a
// device as much room as one of a whole step: what they wait for comes (decision 0170).
inline constexpr int kHalfPeerBlocks = kPeerBlocks / 2;
static_assert(2 * kHalfPeerBlocks <= kPeerBlocks);

// Messages from one stage to another that are not fetched yet, at most. A power of two.
inline constexpr uint32_t kStagePlaces = 64;

struct alignas(32) Letter {
  const void* part = nullptr;    // what the rank gives; nullptr: it has nothing
  const void* result = nullptr;  // where it leaves what it makes of its share
  uint32_t what = 0;             // the op and its shape; the same on all ranks
  uint32_t number = 0;           // of the meeting, from 1 on; written last
};

// Places for letters of sums that begin before they end (late_sums.h): a rank that begins sum
// m + 4 has ended m + 2, which the others have begun behind the end of m.
inline constexpr uint32_t kLatePlaces = 4;

// In a rank's memory; the others write letters.
struct Mailbox {
  Letter letters[kPeerBlocks][2][kMaxPeers];
  Letter late[kPeerBlocks][kLatePlaces][kMaxPeers];
  // Between stages: messages from each other one, in a ring, and how many of its messages to each
  // other one that has fetched.
  Letter rows[kMaxPeers][kStagePlaces];
  uint32_t taken[kMaxPeers];
};

// The counts of a rank's kernels, in its device's memory.
struct PeerCounts {
  uint32_t meetings[kPeerBlocks];  // of each block so far
  uint32_t begun[kPeerBlocks];     // sums that begin before they end
  uint32_t ended[kPeerBlocks];
  int32_t moved;  // blocks that have copied theirs of the present message between stages
};

// Why a rank's kernel has given up, in page-locked memory of the host.
enum class Trouble : uint32_t { kNone, kAborted, kNobodyCame, kOtherOp };
struct PeerNote {
  uint32_t abort = 0;    // set by the host or by a kernel: this rank's kernels give up
  uint32_t trouble = 0;  // Trouble; the first
  uint32_t rank = 0;     // which was waited for
  uint32_t what = 0;     // the op that waited
  uint32_t other = 0;    // kOtherOp: what the other rank did
};

struct Peers {
  int32_t rank = 0;
  int32_t world = 1;
  Mailbox* boxes[kMaxPeers] = {};  // of all ranks
  PeerCounts* counts = nullptr;    // this rank's
  PeerNote* note = nullptr;        // this rank's
  uint64_t limit_ns = 0;
};

// AllReduceArgs, with its target: the residual or out. REQUIRES: partial is dense; `norm` has no
// adapters of the host.
struct SumRanksParams {
  Peers peers;
  const void* partial = nullptr;
  const float* bias = nullptr;
  Tensor target;
  int32_t adds = 0;    // to the target
  int32_t in_two = 0;  // each rank sums a share of the rows, and copies the others'
  int32_t norms = 0;
  int32_t is_begun = 0;               // the oldest sum that LaunchBeginSum has begun; in one round
  int32_t most_blocks = kPeerBlocks;  // the same on all ranks
  NormArgs norm;
  NormAdapters adapters;
};
// Tells the other ranks where this one's part is; `partial` and the target's shape count.
Error LaunchBeginSum(const SumRanksParams& params, Stream stream);
Error LaunchSumRanks(const SumRanksParams& params, DType act, Stream stream);

// The same where a library has brought the parts (nccl_group.h): nobody is met. `all.partial` and
// `all.peers` but for the world count for nothing.
struct SumPartsParams {
  SumRanksParams all;
  // Addresses of row 0 of the target in each part, which is dense; memory before `first_row` is
  // never read.
  const void* parts[kMaxPeers] = {};
  int64_t first_row = 0;  // of the target
  int64_t end_row = 0;
  // These rows, among the others, are sums already, and are normed alone.
  int64_t first_sum = 0;
  int64_t end_sum = 0;
};
Error LaunchSumParts(const SumPartsParams& params, DType act, Stream stream);
int SumBlocks(int64_t rows, int most = kPeerBlocks);  // blocks of that kernel

// GatherColumnsArgs: elements are of four bytes.
struct GatherColumnsParams {
  Peers peers;
  const float* part = nullptr;
  int32_t borders[kMaxPeers + 1] = {};
  int64_t rows = 0;
  Tensor whole;
};
Error LaunchGatherColumns(const GatherColumnsParams& params, Stream stream);
int GatherBlocks(int64_t rows, int64_t columns);  // blocks of that kernel, which meet twice

// The same where a library has brought the parts. `all.part` and `all.peers` but for the world
// count for nothing.
struct PlaceColumnsParams {
  GatherColumnsParams all;
  const float* parts[kMaxPeers] = {};  // nullptr: these columns stay as they are
};
Error LaunchPlaceColumns(const PlaceColumnsParams& params, Stream stream);

// Ops::SendRows and RecvRows: message `number` to or from stage `other`; the peers are stages.
// REQUIRES: rows at multiples of 16 bytes; `what` is StageWord(bytes).
struct StageRowsParams {
  Peers peers;
  int32_t other = 0;
  uint32_t number = 0;
  uint32_t what = 0;
  void* rows = nullptr;
  int64_t bytes = 0;
  // SendRows: where the rows are copied to, and fetched from, at multiples of 16 bytes; nullptr:
  // they are fetched where they are. Messages take two such places in turn.
  void* copy = nullptr;
};
uint32_t StageWord(int64_t bytes);
Error LaunchSendRows(const StageRowsParams& params, Stream stream);
Error LaunchRecvRows(const StageRowsParams& params, Stream stream);

}  // namespace heddle::kernels::cuda
