#include "server/ranks/mesh_communicator.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace heddle::server {
namespace {

class MeshCommunicator final : public kernels::SendingCommunicator {
 public:
  MeshCommunicator(std::shared_ptr<UcxMesh> mesh, std::vector<int32_t> members, int32_t own,
                   kernels::DType wire)
      : mesh_(std::move(mesh)), members_(std::move(members)), wire_(wire) {
    const auto at = std::find(members_.begin(), members_.end(), own);
    HEDDLE_CHECK(at != members_.end(), "a rank joins a group of others");
    rank_ = static_cast<int32_t>(at - members_.begin());
  }

  int32_t rank() const override { return rank_; }
  int32_t world() const override { return static_cast<int32_t>(members_.size()); }
  kernels::DType wire_type() const override { return wire_; }

  bool Exchange(const void* part, int64_t bytes, int64_t most_bytes,
                std::span<const void*> parts) override {
    HEDDLE_CHECK(static_cast<int32_t>(parts.size()) >= world(), "a place for each rank's part");
    return Meet(part, part == nullptr ? 0 : bytes, most_bytes, parts);
  }
  bool BeginExchange(const void* part, int64_t bytes, int64_t most_bytes) override {
    HEDDLE_CHECK(n_begun_ - n_ended_ < 2, "two exchanges at most have begun");
    const UcxMesh::Batch batch = BatchOf(n_begun_);
    begun_[n_begun_++ % 2] = {part, part == nullptr ? 0 : bytes};
    mesh_->BeginOp();
    StartParts(most_bytes, batch);
    SendToAll(part, part == nullptr ? 0 : bytes, batch);
    mesh_->Push();
    return mesh_->status().ok();
  }
  bool EndExchange(std::span<const void*> parts) override {
    HEDDLE_CHECK(n_begun_ != n_ended_, "an exchange that ends has begun");
    const Own own = begun_[n_ended_ % 2];
    const UcxMesh::Batch batch = BatchOf(n_ended_++);
    return FinishParts(own.part, own.bytes, parts, batch) && mesh_->FinishSends(batch);
  }
  bool ExchangeEach(std::span<const void* const> to, std::span<const int64_t> bytes,
                    int64_t most_bytes, std::span<const void*> parts) override {
    mesh_->BeginOp();
    StartParts(most_bytes, UcxMesh::kAtOnce);
    for (int32_t r = 0; r < world(); ++r) {
      const auto at = static_cast<size_t>(r);
      if (r != rank_) mesh_->StartSend(to[at], bytes[at], members_[at], UcxMesh::kAtOnce);
    }
    const auto own = static_cast<size_t>(rank_);
    return FinishParts(to[own], bytes[own], parts, UcxMesh::kAtOnce) && FinishSends();
  }
  bool Gather(const void* part, int64_t bytes, int64_t most_bytes, int32_t root,
              std::span<const void*> parts) override {
    if (rank_ != root) return Post(part, part == nullptr ? 0 : bytes, root);
    HEDDLE_CHECK(static_cast<int32_t>(parts.size()) >= world(), "a place for each rank's part");
    mesh_->BeginOp();
    StartParts(most_bytes, UcxMesh::kAtOnce);
    return FinishParts(part, part == nullptr ? 0 : bytes, parts, UcxMesh::kAtOnce);
  }
  void Progress() override { mesh_->Push(); }
  bool Barrier() override { return Meet(nullptr, 0, 0, {}); }

  bool Send(const void* data, int64_t bytes, int32_t to) override { return Post(data, bytes, to); }
  bool Post(const void* data, int64_t bytes, int32_t to) override {
    mesh_->BeginOp();
    mesh_->StartSend(data, bytes, members_[static_cast<size_t>(to)], UcxMesh::kAtOnce);
    return FinishSends();
  }
  bool Recv(void* data, int64_t bytes, int32_t from) override {
    mesh_->BeginOp();
    return mesh_->ReceiveAll(members_[static_cast<size_t>(from)], data, bytes);
  }

  void Abort(const absl::Status& why) override { mesh_->Abort(why); }
  absl::Status status() const override { return mesh_->status(); }
  void Report(int64_t begun, bool waits) override {
    mesh_->AddOps(begun);
    if (std::exchange(reported_waits_, waits) != waits) mesh_->AddWaiting(waits ? 1 : -1);
  }

 private:
  bool Meet(const void* part, int64_t bytes, int64_t most_bytes, std::span<const void*> parts) {
    mesh_->BeginOp();
    StartParts(most_bytes, UcxMesh::kAtOnce);
    SendToAll(part, bytes, UcxMesh::kAtOnce);
    return FinishParts(part, bytes, parts, UcxMesh::kAtOnce) && FinishSends();
  }
  void SendToAll(const void* part, int64_t bytes, UcxMesh::Batch batch) {
    for (int32_t r = 0; r < world(); ++r) {
      if (r != rank_) mesh_->StartSend(part, bytes, members_[static_cast<size_t>(r)], batch);
    }
  }
  bool FinishSends() { return mesh_->FinishSends(UcxMesh::kAtOnce) && mesh_->Flush(); }
  void StartParts(int64_t most_bytes, UcxMesh::Batch batch) {
    for (int32_t r = 0; r < world(); ++r) {
      if (r != rank_) mesh_->StartPart(members_[static_cast<size_t>(r)], most_bytes, batch);
    }
  }
  // Waits for the parts of all others, also behind one that did not come.
  bool FinishParts(const void* part, int64_t bytes, std::span<const void*> parts,
                   UcxMesh::Batch batch) {
    bool is_met = true;
    for (int32_t r = 0; r < world(); ++r) {
      const auto at = static_cast<size_t>(r);
      int64_t received = bytes;
      if (r != rank_) is_met = mesh_->FinishReceive(members_[at], batch, &received) && is_met;
      if (parts.empty()) continue;
      const void* own = bytes > 0 ? part : nullptr;
      parts[at] = r == rank_ ? own : received > 0 ? mesh_->PartOf(members_[at], batch) : nullptr;
    }
    return is_met;
  }

  const std::shared_ptr<UcxMesh> mesh_;
  const std::vector<int32_t> members_;
  struct Own {
    const void* part = nullptr;
    int64_t bytes = 0;
  };
  static UcxMesh::Batch BatchOf(uint32_t begun) {
    return begun % 2 == 0 ? UcxMesh::kBegun : UcxMesh::kBegunToo;
  }

  const kernels::DType wire_;
  int32_t rank_ = 0;
  Own begun_[2];  // this rank's parts of exchanges that have not ended, in turn
  uint32_t n_begun_ = 0;
  uint32_t n_ended_ = 0;
  bool reported_waits_ = false;
};

}  // namespace

std::shared_ptr<kernels::SendingCommunicator> MakeMeshCommunicator(std::shared_ptr<UcxMesh> mesh,
                                                                   std::vector<int32_t> members,
                                                                   int32_t own,
                                                                   kernels::DType wire) {
  return std::make_shared<MeshCommunicator>(std::move(mesh), std::move(members), own, wire);
}

}  // namespace heddle::server
