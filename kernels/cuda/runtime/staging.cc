#include "kernels/cuda/runtime/staging.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace heddle::kernels::cuda {
namespace {

// Enough for a step of 8192 rows over a million positions of context: spans and plans of some MiB.
constexpr int64_t kFirstBytes = int64_t{8} << 20;

// Room for an array, so that one that grows a little from step to step, like the spans of contexts,
// does not move the arrays behind it: launches hold their addresses, and launches that differ have
// to be changed in graphs. It is at most a quarter more, for arrays of 256 bytes or more.
int64_t RoomFor(int64_t bytes) {
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)) / 4);
  const int64_t granule = std::max<int64_t>(step, 64);
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace

Staging::~Staging() {
  for (Block& block : blocks_) Free(block);
}

void Staging::Free(Block& block) {
  for (uint8_t* host : block.host) runtime_.FreePinned(host);
  runtime_.FreeDevice(block.device, block.bytes);
}

absl::Status Staging::Reserve() { return blocks_.empty() ? Grow(kFirstBytes) : absl::OkStatus(); }

void Staging::Reset(int set) {
  set_ = set;
  status_ = absl::OkStatus();
  if (blocks_.size() > 1) {  // one block of their total size lets the next such step use one copy
    status_ = runtime_.Synchronize();  // another step's copies from them may be pending
    int64_t total = 0;
    for (Block& block : blocks_) {
      total += block.bytes;
      Free(block);
    }
    blocks_.clear();
    if (status_.ok()) status_ = Grow(total);
  }
  for (Block& block : blocks_) block.used = block.sent = 0;
}

absl::Status Staging::Grow(int64_t bytes) {
  Block block;
  block.bytes = std::max(bytes, kFirstBytes);
  absl::StatusOr<void*> device = runtime_.AllocateDevice(block.bytes);
  absl::Status status = device.status();
  if (status.ok()) block.device = static_cast<uint8_t*>(*device);
  for (int set = 0; set < kSets && status.ok(); ++set) {
    absl::StatusOr<void*> host = runtime_.AllocatePinned(block.bytes);
    status = host.status();
    if (status.ok()) block.host[set] = static_cast<uint8_t*>(*host);
  }
  if (status.ok()) {
    blocks_.push_back(block);
  } else {
    Free(block);
  }
  return status;
}

const void* Staging::AddBytes(const void* from, int64_t bytes) {
  const int64_t room = RoomFor(bytes);
  if (blocks_.empty() || blocks_.back().bytes - blocks_.back().used < room) {
    if (status_.ok()) status_ = Grow(room);
    if (!status_.ok()) return nullptr;
  }
  Block& block = blocks_.back();
  const int64_t at = std::exchange(block.used, block.used + room);
  std::memcpy(block.host[set_] + at, from, static_cast<size_t>(bytes));
  return block.device + at;
}

absl::Status Staging::Send() {
  HEDDLE_RETURN_IF_ERROR(status_);
  for (Block& block : blocks_) {
    const int64_t begin = std::exchange(block.sent, block.used);
    if (begin == block.used) continue;
    HEDDLE_RETURN_IF_ERROR(
        runtime_.CopyToDevice(block.device + begin, block.host[set_] + begin, block.used - begin));
  }
  return absl::OkStatus();
}

}  // namespace heddle::kernels::cuda
