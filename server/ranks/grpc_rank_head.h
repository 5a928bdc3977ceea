// The head's end of ranks in other processes (rank_head.h), over gRPC.
//
// grpc_rank_head.cc has the calls, grpc_rank_head_epochs.cc the group: how it forms, is lost, and
// forms anew. What callers say means what RankRoster makes of it.
// Threads: gRPC's, one per call; one that watches for silence; the loader's and the executor's,
// which call RankMeeting's functions and those for RemoteRanks, one at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "proto/heddle/ranks/v1/ranks.grpc.pb.h"
#include "server/ranks/group_links.h"
#include "server/ranks/rank_head.h"
#include "server/ranks/rank_mesh.h"
#include "server/ranks/rank_roster.h"

namespace heddle::server {

class GrpcRankHead final : public RankHead, public std::enable_shared_from_this<GrpcRankHead> {
 public:
  GrpcRankHead(const RankHeadOptions& options, const Logger* log)
      : options_(options), log_(log), service_(this), roster_(options.identity, options.settings) {}
  ~GrpcRankHead() override { Close(""); }

  absl::Status Listen();
  uint16_t port() const override { return port_; }
  std::shared_ptr<grpc::Channel> OwnChannel() override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // pages of an adapter, as over the network
    return server_->InProcessChannel(arguments);
  }
  void End(const absl::Status& why) override;
  absl::Status Failure() const override {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  bool is_lost() const override {
    const std::lock_guard lock(mutex_);
    return lost_since_.has_value();
  }

  int32_t rank() const override { return 0; }
  absl::StatusOr<std::vector<int32_t>> StageLayers(const engine::DivideStagesFn& divide) override;
  absl::StatusOr<engine::ExecutorLimits> Agree(const engine::RankOffer& own) override;
  absl::Status JoinGroups(kernels::Device& device) override;
  absl::StatusOr<std::unique_ptr<engine::OtherRanks>> Others(
      const engine::ExecutorLimits& limits) override;

  int32_t world() const { return options_.settings.layout.world(); }
  void SendToAll(const ranks::v1::FromHead& message);
  void SendTo(int32_t rank, const ranks::v1::FromHead& message);
  void BeginHalf(const ranks::v1::FromHead& message, std::optional<uint64_t> step);
  // Waits until each rank has done `layers`, or, in stage 0, `logits` halves.
  absl::Status WaitForHalves(uint64_t layers, uint64_t logits);
  absl::Status Abort(const absl::Status& why);
  // The status that clients get: OK, or why their requests cannot run while a rank is lost.
  absl::Status StatusForClients() const;
  // A step towards a whole group, as OtherRanks::Regroup.
  absl::Status Regroup(kernels::Device& device);
  bool may_regroup() const { return options_.settings.rejoin.count() > 0; }
  const std::vector<int>& own_cpus() const { return options_.own_cpus; }
  void Close(const std::string& why);

 private:
  using Stream = grpc::ServerReaderWriter<ranks::v1::FromHead, ranks::v1::FromRank>;
  using CallId = RankRoster::CallId;
  struct Call {
    grpc::ServerContext* context = nullptr;  // until the call ends
    Stream* stream = nullptr;
    std::mutex write;          // held while something is written to the stream
    bool is_welcomed = false;  // GUARDED_BY the head's mutex_
  };

  class Service final : public ranks::v1::Ranks::Service {
   public:
    explicit Service(GrpcRankHead* head) : head_(head) {}
    grpc::Status Join(grpc::ServerContext* context, Stream* stream) override {
      return head_->Serve(context, stream);
    }

   private:
    GrpcRankHead* head_;
  };

  grpc::Status Serve(grpc::ServerContext* context, Stream* stream);
  absl::Status Talk(CallId id, Call* call);
  void Welcome(Call& call, int32_t rank);
  void Leave(CallId id, Call* call);
  static void Write(Call& call, const ranks::v1::FromHead& message);
  // REQUIRES for these: mutex_ is held.
  void Fail(const absl::Status& why);
  void Spread();
  void EndForGood(const absl::Status& why);
  void CheckDeadline(RankRoster::Time now);
  absl::Status ForClients() const;
  // All ranks as they are now; their families are kept for JoinGroups.
  std::vector<RankMesh::Peer> Peers();
  ranks::v1::FromHead StartMessage(const engine::ExecutorLimits& limits,
                                   const std::vector<RankMesh::Peer>& peers) const;
  void LogWaiting();
  // Ends all waiting of rank 0.
  void AbortOwn(const absl::Status& why);
  absl::StatusOr<std::shared_ptr<RankMesh>> NewMesh();
  absl::Status BeginEpoch(kernels::Device& device, std::unique_lock<std::mutex>* lock);
  void Watch();

  const RankHeadOptions options_;
  const Logger* const log_;
  Service service_;
  int port_ = 0;
  std::shared_ptr<RankMesh> mesh_;
  uint64_t mesh_key_ = 0;  // of this epoch, as the next two
  std::vector<uint64_t> families_;
  std::shared_ptr<kernels::Communicator> local_;  // rank 0's group in this process, or null
  LocalProgress local_progress_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // GUARDED_BY(mutex_), except what Write uses of a call.
  RankRoster roster_;
  std::map<CallId, std::shared_ptr<Call>> calls_;
  std::vector<int32_t> stage_layers_;           // from StageLayers
  engine::RankOffer own_;                       // from Agree
  bool is_spread_ = false;                      // that the epoch is over
  std::optional<RankRoster::Time> lost_since_;  // until the group is whole again
  absl::Status ended_;                          // why there will be no other epoch
  bool has_done_step_ = false;                  // in this epoch
  int barren_epochs_ = 0;                       // in a row
  bool waits_for_halves_ = false;               // of steps, that ranks do
  bool has_logged_waiting_ = false;
  bool is_closed_ = false;

  std::thread watch_;
};

}  // namespace heddle::server
