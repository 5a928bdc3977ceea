// Moves bytes between the ranks of one group, and adds nothing: sums are ops (AllReduceArgs), so
// that their order is this program's and the same over every transport.
//
// All ranks make the same calls in the same order, except Send, Post and Recv, which pair up. A
// call that returns false was given up because the group is aborted; its results are undefined, and
// status() says why. Whoever gives up a step calls Abort, so that nobody waits for it for ever.
// Thread-safety: a rank's calls come from one thread at a time; Abort and status from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace heddle::kernels {

inline constexpr int32_t kMaxRanks = 64;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t world() const = 0;
  // Whether others' parts are read in place, at no cost but the reading.
  virtual bool shares_memory() const { return true; }

  // Waits until every rank has come with its part of `bytes`; no rank's has more than `most_bytes`,
  // which is the same on all. parts[r] is where rank r's part can be read; it is nullptr if that
  // rank gave nullptr. A rank must not change its part before its next call of any collective has
  // returned: until then, others may read it.
  virtual bool Exchange(const void* part, int64_t bytes, int64_t most_bytes,
                        std::span<const void*> parts) = 0;
  // The same for parts that rank `root` alone wants: on the others, `parts` may be anything.
  virtual bool Gather(const void* part, int64_t bytes, int64_t most_bytes, int32_t /*root*/,
                      std::span<const void*> parts) {
    return Exchange(part, bytes, most_bytes, parts);
  }
  // Exchange in two calls, between which the rank may compute, and call others: the parts travel
  // meanwhile. Exchanges end in the order in which they begin, and two at most have begun. A part
  // must not change until two exchanges that began later have ended; parts[r] can be read until the
  // next but one begins.
  virtual bool BeginExchange(const void* part, int64_t bytes, int64_t most_bytes) = 0;
  virtual bool EndExchange(std::span<const void*> parts) = 0;
  // Takes what has come for later calls, without waiting; for a rank that waits for something else.
  virtual void Progress() {}
  // Waits until every rank has come here.
  virtual bool Barrier() = 0;

  // Blocks until rank `to` has received; its Recv asks for the same number of bytes.
  virtual bool Send(const void* data, int64_t bytes, int32_t to) = 0;
  virtual bool Recv(void* data, int64_t bytes, int32_t from) = 0;
  // Send without waiting, in the same order; `data` must stay as it is until it is received, which
  // the caller has to learn from elsewhere. Blocks only while world() + 2 messages to that rank are
  // not received.
  virtual bool Post(const void* data, int64_t bytes, int32_t to) = 0;

  // Makes all present and later calls of all ranks return false. The first reason is kept.
  virtual void Abort(const absl::Status& why) = 0;
  virtual absl::Status status() const = 0;
  // Counts ops that are carried out elsewhere, by a library between devices, for whoever reports
  // how far this rank has come: `begun` more have, and the last of them waits for other ranks or
  // does not. From one thread, which may be another one than that of the calls.
  virtual void Report(int64_t /*begun*/, bool /*waits*/) {}
  // In one process: calls `call` when the group is aborted, on that thread; at once if it is.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): others ignore it.
  virtual void AtAbort(std::function<void()> /*call*/) {}

  // The parts, `bytes` each, one behind the other in rank order. Buffers are free on return.
  bool AllGather(const void* part, void* whole, int64_t bytes);
  // `parts` holds one part of `bytes` for each rank, `received` takes one from each rank.
  bool AllToAll(const void* parts, void* received, int64_t bytes);
  // Copies the root's data to all others.
  bool Broadcast(void* data, int64_t bytes, int32_t root);
};

// Why a call of the group has returned false: its status, or ABORTED where that is OK.
absl::Status WhyAborted(const Communicator& group);

// The ranks of a group that are threads of this process: they read each other's memory, and wait by
// spinning, then yielding, then sleeping, so that more ranks than processors still make progress.
// REQUIRES: 1 <= world <= kMaxRanks.
std::vector<std::unique_ptr<Communicator>> MakeLocalCommunicators(int32_t world);

}  // namespace heddle::kernels
