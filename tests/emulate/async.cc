#include "tests/emulate/async.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/emulate/async_state.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"

namespace heddle::kernels::cuda::emulate {
namespace {

std::atomic<int64_t> tile_copies{0};  // of all kernels so far

int32_t Me() { return Current().thread; }

void Complain(const char* wrong, int32_t offset) {
  if (wrong == nullptr) return;
  Report(absl::StrCat(Where(), " ", wrong, ", at ", offset, " of shared memory"));
}

Barrier* FindBarrier(int32_t offset) {
  auto found = Async().barriers.find(offset);
  if (found != Async().barriers.end()) return &found->second;
  Report(absl::StrCat(Where(), " uses a barrier at ", offset, " that nobody initialised"));
  return nullptr;
}

void CompletePhase(Barrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  barrier.missing = barrier.count;
  barrier.completed = barrier.arriving;
  ++barrier.phase;
}

// Byte of a tile's row in memory that is swizzled by 128 bytes: 16-byte units of a line change
// places by the number of the line.
int32_t Swizzled(int32_t offset) { return offset ^ (((offset >> 7) & 7) << 4); }

// The box's present content; zeros outside of the matrix.
std::vector<char> Take(const TensorMap& map, int64_t x, int64_t y) {
  std::vector<char> box(static_cast<size_t>(map.box_rows) * kLineBytes);
  for (int32_t r = 0; r < map.box_rows; ++r) {
    for (int32_t c = 0; c < kLineBytes; c += 16) {
      const int64_t col = x + c / map.element_bytes;
      const int64_t row = y + r;
      if (col < 0 || col >= map.cols || row < 0 || row >= map.rows) continue;
      std::memcpy(box.data() + r * kLineBytes + c,
                  map.data + row * map.row_bytes + col * map.element_bytes, 16);
    }
  }
  return box;
}

void Arrive(const TileCopy& copy) {
  AsyncState& state = Async();
  const TensorMap& map = copy.map;
  if (Take(map, copy.x, copy.y) != copy.taken) {
    Complain("copies a tile that others write meanwhile", copy.to_offset);
  }
  for (int32_t r = 0; r < map.box_rows; ++r) {
    for (int32_t c = 0; c < kLineBytes; c += 16) {
      std::memcpy(SharedBase() + Swizzled(copy.to_offset + r * kLineBytes + c),
                  copy.taken.data() + r * kLineBytes + c, 16);
    }
    state.lines.Filled(copy.to_offset / kLineBytes + r);
  }
  RecordWrite(copy.to_offset, map.box_rows * kLineBytes, copy.issuer,
              copy.issued[static_cast<size_t>(copy.issuer)]);
}

void ArriveCopies(Barrier& barrier) {
  for (const TileCopy& copy : barrier.copies) {
    Arrive(copy);
    barrier.bytes -= int64_t{copy.map.box_rows} * copy.map.box_cols * copy.map.element_bytes;
    if (barrier.arriving.size() < copy.issued.size()) barrier.arriving.resize(copy.issued.size());
    for (size_t i = 0; i < copy.issued.size(); ++i) {
      barrier.arriving[i] = std::max(barrier.arriving[i], copy.issued[i]);
    }
  }
  const bool any = !barrier.copies.empty();
  barrier.copies.clear();
  if (any) CompletePhase(barrier);
}

const char* WrongTile(int32_t to_offset, const TensorMap& map) {
  if (map.box_cols * map.element_bytes != kLineBytes) return "copies rows that are no lines";
  if (to_offset % kLineBytes != 0) return "copies a tile to a misaligned place";
  if (to_offset < 0 || to_offset + map.box_rows * kLineBytes > SharedBytes()) {
    return "copies a tile beyond the block's memory";
  }
  return nullptr;
}

}  // namespace

void UseAsync() {
  AsyncState& state = Async();
  if (state.is_used) return;
  state.is_used = true;
  state.clocks.Start(state.threads);
  state.lines.Reset(state.threads, state.shared_bytes);
  state.products.assign(state.threads, ProductThread());
  state.matrices.assign((state.threads + 127) / 128, {});
}

void BarrierInit(int32_t offset, int32_t count) {
  UseAsync();
  if (offset % 8 != 0) Complain("initialises a misaligned barrier", offset);
  Async().barriers[offset] = {.count = count, .missing = count};
}

void BarrierArrive(int32_t offset, int64_t bytes) {
  Barrier* barrier = FindBarrier(offset);
  if (barrier == nullptr) return;
  if (barrier->missing == 0) Complain("arrives more often than the barrier counts", offset);
  Async().clocks.Release(Me(), &barrier->arriving);
  barrier->bytes += bytes;
  --barrier->missing;
  CompletePhase(*barrier);
}

void BarrierWait(int32_t offset, uint32_t parity) {
  Barrier* barrier = FindBarrier(offset);
  if (barrier == nullptr) return;
  WaitUntil([barrier, parity] {
    ArriveCopies(*barrier);
    return (barrier->phase & 1) != parity;
  });
  Async().clocks.Acquire(Me(), barrier->completed);
}

void NamedBarrier(int32_t id, int32_t threads, bool waits) {
  UseAsync();
  NamedBarrierState& barrier = Async().named[id];
  if (barrier.threads != 0 && barrier.threads != threads) {
    Complain("meets others who count differently at a named barrier", id);
  }
  barrier.threads = threads;
  Async().clocks.Release(Me(), &barrier.arriving);
  const uint32_t generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = barrier.threads = 0;
    barrier.completed = barrier.arriving;
    ++barrier.generation;
  }
  if (!waits) return;
  WaitUntil([&barrier, generation] { return barrier.generation != generation; });
  Async().clocks.Acquire(Me(), barrier.completed);
}

int64_t TileCopies() { return tile_copies; }

void CopyTile(int32_t to_offset, const TensorMap& map, int32_t x, int32_t y, int32_t barrier) {
  UseAsync();
  ++tile_copies;
  Barrier* signals = FindBarrier(barrier);
  const char* wrong = WrongTile(to_offset, map);
  Complain(wrong, to_offset);
  if (signals == nullptr || wrong != nullptr) return;
  for (int32_t r = 0; r < map.box_rows; ++r) {
    Complain(Async().lines.Fill(to_offset / kLineBytes + r, Me()), to_offset + r * kLineBytes);
  }
  std::memset(SharedBase() + to_offset, 0xFF, map.box_rows * kLineBytes);
  TileCopy copy = {to_offset, map, x, y, Me(), {}, Take(map, x, y)};
  Async().clocks.Release(Me(), &copy.issued);
  signals->copies.push_back(std::move(copy));
}

void FenceProxies() {
  UseAsync();
  Async().lines.Fence(Me());
}

void SetRegisters(int32_t count) {
  if (count % 8 != 0 || count < 24 || count > 256) Complain("asks for so many registers", count);
  Exchange("SetRegisters", &count, sizeof(count));
}

void AsyncBegin(int32_t threads, int32_t shared_bytes) {
  AsyncState& state = Async();
  state.is_used = false;
  state.threads = threads;
  state.shared_bytes = shared_bytes;
  state.clocks.Reset();
  state.barriers.clear();
  state.named = {};
}

void AsyncEnd() {
  AsyncState& state = Async();
  if (!state.is_used) return;
  for (const auto& [offset, barrier] : state.barriers) {
    if (!barrier.copies.empty()) Complain("ends with bulk copies that nobody waited for", offset);
  }
  for (size_t id = 0; id < state.named.size(); ++id) {
    if (state.named[id].arrived != 0) {
      Complain("ends with a named barrier half full", static_cast<int32_t>(id));
    }
  }
  EndProducts();
}

void AsyncSyncWarp(int32_t warp) {
  if (Async().clocks.started()) Async().clocks.Meet(warp * kWarpLanes, kWarpLanes);
}

void AsyncOrdinary(int32_t offset, int32_t bytes, bool writes) {
  AsyncState& state = Async();
  if (!state.is_used) return;
  for (int32_t line = offset / kLineBytes; line <= (offset + bytes - 1) / kLineBytes; ++line) {
    Complain(writes ? state.lines.OrdinaryWrite(line, Me()) : state.lines.OrdinaryRead(line),
             offset);
  }
}

}  // namespace heddle::kernels::cuda::emulate
