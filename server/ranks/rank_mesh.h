// Links between the ranks of an engine that are processes of their own, over UCX: sockets between
// machines, or what else UCX finds there. UCX is loaded at run time, so that a daemon that shares
// no model needs none.
//
// The mesh moves bytes between pairs of ranks; its communicators are groups of them. Sums are added
// by the ops as in one process, from parts in rank order, so that bits are the same.
// Thread-safety: as Communicator. All communicators of a mesh are called by one thread at a time;
// Abort, status, ops and waits from any thread.
// Source: the UCP API of UCX 1.13 (openucx.org).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/communicator.h"
#include "kernels/dtype.h"

namespace heddle::server {

class RankMesh {
 public:
  struct Options {
    bool loopback_only = true;  // else all of the machine's interfaces, or UCX_NET_DEVICES
    // A call that waits for a peer for longer gives up the step and names the peer; 0: for ever.
    std::chrono::milliseconds timeout{0};
  };
  struct Peer {
    std::string address;  // what its address() said
    std::string name;     // for messages, such as "rank 2 (10.0.0.7)"
  };

  // The version of UCX that is loaded. Errors as Create.
  static absl::StatusOr<std::string> Version();
  // UNIMPLEMENTED without UCX, saying which package has it; INTERNAL if it finds no device.
  static absl::StatusOr<std::shared_ptr<RankMesh>> Create(const Options& options);
  virtual ~RankMesh() = default;

  // Where others reach this one: bytes that only UCX understands.
  virtual std::string address() const = 0;
  // `peers` [world] in the order of ranks, `own` among them. `key` is the same in all of them and a
  // secret: messages of whoever does not know it are never taken. Once, before the first
  // communicator.
  virtual absl::Status Connect(const std::vector<Peer>& peers, int32_t own, uint64_t key) = 0;
  // The communicator of the ranks `members`, ascending, the own one among them. Two ranks have at
  // most one in common. It keeps the mesh.
  // `wire`: SendingCommunicator::wire_type, the same in all processes.
  virtual std::shared_ptr<kernels::Communicator> Join(
      const std::vector<int32_t>& members, kernels::DType wire = kernels::DType::kF32) = 0;

  // Options::timeout from now on. From the thread of the calls.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // Makes all present and later calls of this process's communicators return false.
  virtual void Abort(const absl::Status& why) = 0;
  virtual absl::Status status() const = 0;
  // Calls of communicators that have begun; for reports of how far a rank has come.
  virtual int64_t ops() const = 0;
  // Whether the last of them has waited for some milliseconds, and still does.
  virtual bool waits() const = 0;
};

}  // namespace heddle::server
