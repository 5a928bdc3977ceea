// Runs CUDA kernels on the host, so that their logic is tested on machines without a GPU.
//
// Model: a grid of blocks, one after the other; the threads of a block as fibers that run
// until they wait for the others of their warp (shuffle, ballot, matrix instruction) or block
// (barrier); dynamic shared memory with bounds, initialisation and race checks. What it does not
// model: time, caches, divergence within a warp-wide operation (an error here), several blocks at
// once, and ordering of global memory between blocks.
//
// Some blocks of a launch that may begin early do begin before earlier launches have run, and are
// held where they wait for those (WaitForPrevious): data that a kernel reads or writes too early
// then shows in the results. A block that ends without waiting is a finding.
//
// Race check: for each granule of shared memory the last writer and readers are kept with the
// number of barriers passed; two accesses of different threads, one a write, with no barrier of
// the block (or, within a warp, of the warp) between them are reported. Kernels whose threads
// meet in parts (barriers in shared memory, named ones: async.h) are checked with vector clocks.
// Findings are collected and not fatal: a test asks for them with TakeFindings.
// Thread-safety: each host thread runs one launch at a time; those of several threads, which have a
// device each, run at the same time. Kernels see the running thread through Current(). A launch is
// finished by the thread that began it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace heddle::kernels::cuda::emulate {

inline constexpr int kWarpLanes = 32;

struct Dim {
  int32_t x = 1;
  int32_t y = 1;
  int32_t z = 1;
};

// The order in which the threads of a block are resumed. Correct kernels do not depend on it.
enum class Order : uint8_t { kForward, kBackward };

// The identity of a running thread.
struct ThreadId {
  int32_t thread = 0;
  int32_t threads = 0;
  Dim block;
  Dim grid;
};

struct Block;

// A grid that runs `body` in every thread of every block. `threads` is a multiple of 32. Bytes of
// shared memory start out as "never written".
// Life: Begin, of a launch that may begin early, while those before it are still to run; Finish.
class Launching {
 public:
  Launching(Dim grid, int32_t threads, int32_t shared_bytes, bool early,
            std::function<void()> body);
  ~Launching();
  Launching(const Launching&) = delete;
  Launching& operator=(const Launching&) = delete;

  // Runs the first block, the last one and one between as far as they get without the earlier
  // launches. Call it at most once.
  void Begin();
  // Runs all blocks to their end. Returns false if this launch caused a finding.
  bool Finish();

 private:
  int64_t NumBlocks() const { return int64_t{grid_.x} * grid_.y * grid_.z; }
  std::unique_ptr<Block> Start(int64_t index) const;

  Dim grid_;
  int32_t threads_;
  int32_t shared_bytes_;
  bool early_;
  bool good_ = true;
  std::function<void()> body_;
  std::map<int64_t, std::unique_ptr<Block>> held_;
};

// Runs a launch that begins in its turn, from start to end.
bool Launch(Dim grid, int32_t threads, int32_t shared_bytes, const std::function<void()>& body);

// Findings since the last call, oldest first, at most 20; each names kernel-side coordinates.
std::vector<std::string> TakeFindings();
void SetOrder(Order order);

// The following is for the primitives, within a kernel only.

namespace detail {
// Each host thread's own: the thread that it runs.
extern constinit thread_local ThreadId* current;
}  // namespace detail

inline const ThreadId& Current() { return *detail::current; }
void WaitForPrevious();
void SyncThreads();
void SyncWarp();

// All 32 lanes deposit `bytes` (<= 64) at `mine` and continue when the last has. Returns the
// deposits, 64 bytes apart, valid until this lane's next collective. `kind` tells operations
// apart: lanes of a warp that meet in different ones are a finding.
char* Exchange(const char* kind, const void* mine, int32_t bytes);

// The block's dynamic shared memory.
char* SharedBase();
int32_t SharedBytes();

enum class Access : uint8_t { kRead, kWrite, kAtomic };
// Checks and records an access of the running thread. False if it must not happen (outside of the
// block's shared memory); other findings are only recorded.
bool CheckShared(const void* address, int32_t bytes, Access access);

// cp.async: the bytes arrive when the thread waits for their group. Until then the destination
// holds a poison, which a kernel that waits too late would read. `from` == nullptr writes zeros.
void CopyAsync(void* to_shared, const void* from, int32_t bytes);
void CopyAsyncCommit();
void CopyAsyncWait(int32_t groups_left);  // all but the newest `groups_left` groups are done

void Report(const std::string& finding);

// For the asynchronous machinery (async.h): describes where the running thread is.
std::string Where();
// Runs other threads until `ready` returns true; it is asked whenever this thread could continue.
void WaitUntil(const std::function<bool()>& ready);
// Records a write that `thread` made at its time `clock`.
void RecordWrite(int32_t offset, int32_t bytes, int32_t thread, uint32_t clock);

}  // namespace heddle::kernels::cuda::emulate
