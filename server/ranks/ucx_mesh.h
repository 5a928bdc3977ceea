// The mesh over UCX (rank_mesh.h), for its communicators.
//
// Thread-safety: as RankMesh.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/ranks/rank_mesh.h"
#include "server/ranks/ucx_library.h"

namespace heddle::server {

class UcxMesh final : public RankMesh, public std::enable_shared_from_this<UcxMesh> {
 public:
  UcxMesh(const UcxLibrary& ucx, const Options& options)
      : ucx_(ucx), loopback_only_(options.loopback_only), timeout_(options.timeout) {}
  ~UcxMesh() override;
  absl::Status Open();

  std::string address() const override { return address_; }
  absl::Status Connect(const std::vector<Peer>& peers, int32_t own, uint64_t key) override;
  std::shared_ptr<kernels::Communicator> Join(const std::vector<int32_t>& members,
                                              kernels::DType wire) override;

  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  void Abort(const absl::Status& why) override {
    const std::lock_guard lock(mutex_);
    if (is_aborted_.load(std::memory_order_relaxed)) return;
    status_ = why.ok() ? absl::AbortedError("the group of ranks was aborted") : why;
    is_aborted_.store(true, std::memory_order_release);
  }
  absl::Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  int64_t ops() const override { return ops_.load(std::memory_order_relaxed); }
  bool waits() const override {
    return waits_.load(std::memory_order_relaxed) || waiting_.load(std::memory_order_relaxed) > 0;
  }

  // For the communicators; ranks are those of the mesh. Each returns false if it was aborted.
  void BeginOp() { AddOps(1); }
  void AddOps(int64_t begun) { ops_.fetch_add(begun, std::memory_order_relaxed); }
  // Communicators whose ops elsewhere wait (Communicator::Report).
  void AddWaiting(int32_t more) { waiting_.fetch_add(more, std::memory_order_relaxed); }
  // Messages of one call: of those that end before the next begins, and of the two others that may
  // have begun, in turn.
  enum Batch : uint8_t { kAtOnce, kBegun, kBegunToo };
  static constexpr size_t kBatches = 3;
  void StartSend(const void* data, int64_t bytes, int32_t to, Batch batch);
  // Waits until they are taken care of, so that their data may change.
  bool FinishSends(Batch batch);
  // Waits until all that was sent has left this process, which may then compute for long.
  bool Flush();
  // Gives the devices what they take without waiting.
  void Push();
  // Begins to take the next message of a rank, of at most so many bytes: into `data`, or into a
  // buffer of the mesh that stays as it is until the rank's next part of the batch. FinishReceive
  // waits for it and tells its length; each that was begun is to be finished, in any order of
  // ranks.
  void StartReceive(int32_t from, void* data, int64_t most_bytes, Batch batch);
  void StartPart(int32_t from, int64_t most_bytes, Batch batch);
  bool FinishReceive(int32_t from, Batch batch, int64_t* bytes);
  bool ReceiveAll(int32_t from, void* data, int64_t bytes);
  const char* PartOf(int32_t from, Batch batch) const {
    return links_[static_cast<size_t>(from)].inboxes[batch].part.data();
  }

 private:
  struct Link {
    ucp_ep_h endpoint = nullptr;
    uint32_t sent = 0;
    uint32_t received = 0;
    struct Inbox {
      std::vector<char> part;     // the last one
      void* receiving = nullptr;  // UCX's request for the message that was asked for
    };
    std::array<Inbox, kBatches> inboxes;
    std::string name;
    UcxMesh* mesh = nullptr;
  };

  static void OnBroken(void* link, ucp_ep_h, ucs_status_t status);
  // One to one for a key (SplitMix64's mixing), so that two messages never have the same, and not
  // to be guessed without it.
  ucp_tag_t Tag(int32_t from, uint32_t message) const {
    uint64_t x = ((static_cast<uint64_t>(from) << 32) | message) ^ key_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }
  // Makes progress until `is_done`; `peer` is who is to blame for a wait that is too long.
  template <typename F>
  bool WaitUntil(const F& is_done, const Link* peer);
  bool WaitFor(void* request, const Link* peer);
  void Fail(const Link* peer, ucs_status_t status);
  void Broke(const Link& link, ucs_status_t status);

  const UcxLibrary& ucx_;
  const bool loopback_only_;
  std::chrono::milliseconds timeout_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int32_t own_ = 0;
  uint64_t key_ = 0;
  std::vector<Link> links_;                         // [world]
  std::array<std::vector<void*>, kBatches> sends_;  // requests that are not done
  std::vector<void*> given_up_;                     // requests that nobody waits for any more
  std::atomic<int64_t> ops_{0};
  std::atomic<bool> waits_{false};
  std::atomic<int32_t> waiting_{0};
  std::atomic<bool> is_aborted_{false};
  mutable std::mutex mutex_;
  absl::Status status_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
