#include "server/ranks/rank_head.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/parallel/plan_codec.h"
#include "grpcpp/grpcpp.h"
#include "proto/heddle/ranks/v1/ranks.grpc.pb.h"
#include "server/ranks/group_links.h"
#include "server/ranks/rank_mesh.h"
#include "server/ranks/rank_roster.h"
#include "server/ranks/welcome.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

namespace v1 = heddle::ranks::v1;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Stream = grpc::ServerReaderWriter<v1::FromHead, v1::FromRank>;

constexpr milliseconds kTick{100};
// A broken link may be noticed before the end of its rank's call, which says more.
constexpr milliseconds kPatienceForCulprit{700};
constexpr int kMaxMessageBytes = 1 << 20;  // from ranks: they send no rows here
constexpr int kMaxThreads = 96;            // a call has one; ranks are 63 at most

// Clients are told this: no addresses. The processes are started again, and load.
absl::Status ForClients() {
  constexpr double kRetryAfterSeconds = 10;
  return WithRetryAfter(
      absl::UnavailableError("A part of this server is lost; it is started again."),
      kRetryAfterSeconds);
}

class Head;

// The other ranks as the executor sees them: halves of steps go out as messages.
class RemoteRanks final : public engine::OtherRanks {
 public:
  RemoteRanks(std::shared_ptr<Head> head, const engine::ExecutorLimits& limits)
      : head_(std::move(head)), encoder_(limits) {}
  ~RemoteRanks() override;

  void Begin(const engine::StepPlan& plan, Adapters adapters) override;
  void BeginLogits() override;
  absl::Status Join(const absl::Status& head) override;
  absl::Status Fail(const absl::Status& why) override;
  int32_t world() const override;

 private:
  struct Step {
    uint64_t layers_end = 0;  // halves up to this one
    uint64_t logits_end = 0;
  };
  const std::shared_ptr<Head> head_;
  engine::PlanEncoder encoder_;
  std::deque<Step> steps_;  // begun and not joined
  uint64_t halves_ = 0;
  std::string message_;
};

class Head final : public RankHead, public std::enable_shared_from_this<Head> {
 public:
  Head(const RankHeadOptions& options, const Logger* log)
      : options_(options), log_(log), service_(this), roster_(options.identity, options.settings) {}
  ~Head() override { Close(""); }

  absl::Status Listen();
  uint16_t port() const override { return port_; }
  absl::Status Failure() const override {
    const std::lock_guard lock(mutex_);
    return roster_.failure();
  }

  int32_t rank() const override { return 0; }
  absl::StatusOr<engine::ExecutorLimits> Agree(const engine::RankOffer& own) override;
  absl::Status JoinGroups(kernels::Device& device) override {
    return server::JoinGroups(*mesh_, options_.settings.layout, 0, device);
  }
  absl::StatusOr<std::unique_ptr<engine::OtherRanks>> Others(
      const engine::ExecutorLimits& limits) override;

  int32_t world() const { return options_.settings.layout.world(); }
  void SendToAll(const v1::FromHead& message);
  void BeginHalf(const v1::FromHead& message, std::optional<uint64_t> step);
  // Waits until each rank has done `layers`, or, in stage 0, `logits` halves.
  absl::Status WaitForHalves(uint64_t layers, uint64_t logits);
  absl::Status Abort(const absl::Status& why);
  void Close(const std::string& why);

 private:
  using CallId = RankRoster::CallId;
  struct Call {
    grpc::ServerContext* context = nullptr;  // until the call ends
    Stream* stream = nullptr;
    std::mutex write;  // held while something is written to the stream
  };

  class Service final : public v1::Ranks::Service {
   public:
    explicit Service(Head* head) : head_(head) {}
    grpc::Status Join(grpc::ServerContext* context, Stream* stream) override {
      return head_->Serve(context, stream);
    }

   private:
    Head* head_;
  };

  grpc::Status Serve(grpc::ServerContext* context, Stream* stream);
  absl::Status Talk(CallId id, Call* call);
  void Leave(CallId id, Call* call);
  static void Write(Call& call, const v1::FromHead& message);
  void Fail(const absl::Status& why);  // REQUIRES: mutex_ is held
  void Spread();                       // REQUIRES: mutex_ is held
  void Watch();

  const RankHeadOptions options_;
  const Logger* const log_;
  Service service_;
  int port_ = 0;
  std::shared_ptr<RankMesh> mesh_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // GUARDED_BY(mutex_), except what Write uses of a call.
  RankRoster roster_;
  std::map<CallId, std::shared_ptr<Call>> calls_;
  bool is_spread_ = false;  // that the group cannot go on
  bool is_closed_ = false;

  std::thread watch_;
};

absl::Status Head::Listen() {
  const bool loopback = IsLoopbackHost(options_.host);
  if (!loopback && options_.identity.token.empty()) {
    return absl::InvalidArgumentError(
        base::StrCat("--ranks-listen ", options_.host,
                     " is not this machine alone: it needs --rank-token-file"));
  }
  HEDDLE_ASSIGN_OR_RETURN(
      mesh_, RankMesh::Create({.loopback_only = loopback, .timeout = milliseconds(0)}));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(base::StrCat(options_.host, ":", std::to_string(options_.port)),
                           grpc::InsecureServerCredentials(), &port_);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("ranks");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  const auto ping = static_cast<int>(std::max<int64_t>(options_.settings.timeout.count() / 4, 100));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, ping / 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.RegisterService(&service_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) {
    return absl::UnavailableError(base::StrCat("--ranks-listen: ", options_.host, ":",
                                               std::to_string(options_.port),
                                               " cannot be listened on"));
  }
  watch_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

grpc::Status Head::Serve(grpc::ServerContext* context, Stream* stream) {
  const std::string host = HostOfPeer(context->peer());
  const auto call = std::make_shared<Call>();
  call->context = context;
  call->stream = stream;
  absl::StatusOr<CallId> id;
  {
    const std::lock_guard lock(mutex_);
    id = roster_.Begin(host, Clock::now());
    if (id.ok()) calls_[*id] = call;
  }
  absl::Status status = id.status();
  if (status.ok()) {
    status = Talk(*id, call.get());
    Leave(*id, call.get());
  }
  if (!status.ok()) {
    log_->Warning("a call of a rank was ended",
                  {{"host", host}, {"why", std::string(status.message())}});
  }
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

// Takes what a rank says until its call ends, or says something that ends it.
absl::Status Head::Talk(CallId id, Call* call) {
  v1::FromRank message;
  if (!call->stream->Read(&message)) return absl::InvalidArgumentError("a rank says Hello first");
  for (bool is_first = true;; is_first = false) {
    int32_t rank = 0;
    {
      const std::lock_guard lock(mutex_);
      absl::Status status = roster_.Take(id, message, Clock::now());
      Spread();
      changed_.notify_all();
      if (!status.ok()) return status;
      rank = roster_.Find(id)->rank;
    }
    if (is_first) {
      log_->Info("a rank has joined",
                 {{"rank", int64_t{rank}}, {"host", HostOfPeer(call->context->peer())}});
      v1::FromHead welcome;
      *welcome.mutable_welcome() = ToWelcome(options_.settings, rank);
      Write(*call, welcome);
    }
    if (!call->stream->Read(&message)) return absl::OkStatus();
  }
}

void Head::Leave(CallId id, Call* call) {
  const std::lock_guard write(call->write);
  const std::lock_guard lock(mutex_);
  call->context = nullptr;
  call->stream = nullptr;
  calls_.erase(id);
  const RankRoster::Member* member = roster_.Find(id);
  if (!is_closed_ && member->rank > 0 && roster_.phase() == RankRoster::Phase::kGathering) {
    log_->Warning("a rank has left", {{"rank", int64_t{member->rank}}, {"host", member->host}});
  }
  if (!is_closed_) roster_.End(id);
  Spread();
  changed_.notify_all();
}

void Head::Write(Call& call, const v1::FromHead& message) {
  const std::lock_guard write(call.write);
  // A stream that is broken ends its call.
  if (call.stream != nullptr) static_cast<void>(call.stream->Write(message));
}

void Head::SendToAll(const v1::FromHead& message) {
  std::vector<std::shared_ptr<Call>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, id] : roster_.ranks()) {
      const auto found = calls_.find(id);
      if (found != calls_.end()) all.push_back(found->second);
    }
  }
  for (const auto& call : all) Write(*call, message);
}

void Head::BeginHalf(const v1::FromHead& message, std::optional<uint64_t> step) {
  {
    const std::lock_guard lock(mutex_);
    if (step.has_value()) roster_.set_step(*step);
    roster_.CountHalf();
  }
  SendToAll(message);
}

void Head::Fail(const absl::Status& why) {
  if (is_closed_) return;
  roster_.Fail(why);
  Spread();
}

// If the group has come to its end just now, says so and wakes everybody who waits for a rank.
void Head::Spread() {
  if (is_closed_ || is_spread_ || roster_.failure().ok()) return;
  is_spread_ = true;
  const absl::Status& why = roster_.failure();
  log_->Error("the ranks cannot go on", {{"why", std::string(why.message())}});
  mesh_->Abort(why);
  for (const auto& [id, call] : calls_) {
    if (call->context != nullptr) call->context->TryCancel();
  }
  changed_.notify_all();
}

// Ends calls that say nothing, and notices ranks that do not beat any more.
void Head::Watch() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    changed_.wait_for(lock, kTick);
    for (const CallId id : roster_.Tick(Clock::now())) {
      const auto found = calls_.find(id);
      if (found != calls_.end() && found->second->context != nullptr) {
        found->second->context->TryCancel();
      }
    }
    Spread();
  }
}

absl::StatusOr<engine::ExecutorLimits> Head::Agree(const engine::RankOffer& own) {
  std::unique_lock lock(mutex_);
  log_->Info("waiting for ranks to join",
             {{"at", base::StrCat(options_.host, ":", std::to_string(port_))},
              {"ranks", int64_t{world() - 1}}});
  changed_.wait(lock, [this] { return roster_.has_all_offers(); });
  HEDDLE_ASSIGN_OR_RETURN(const engine::ExecutorLimits limits, roster_.Start(own));
  v1::FromHead message;
  v1::Start& start = *message.mutable_start();
  std::vector<RankMesh::Peer> peers = {{mesh_->address(), "the head"}};
  for (const auto& [rank, id] : roster_.ranks()) {
    const RankRoster::Member& member = *roster_.Find(id);
    peers.push_back({member.mesh_address, member.name()});
  }
  start.set_num_pages(limits.num_pages);
  start.set_num_host_pages(limits.num_host_pages);
  start.set_max_context(limits.max_context);
  for (const RankMesh::Peer& peer : peers) {
    v1::Start::Peer* added = start.add_peers();
    added->set_mesh_address(peer.address);
    added->set_name(peer.name);
  }
  lock.unlock();
  HEDDLE_RETURN_IF_ERROR(mesh_->Connect(peers, 0));
  SendToAll(message);
  return limits;
}

absl::StatusOr<std::unique_ptr<engine::OtherRanks>> Head::Others(
    const engine::ExecutorLimits& limits) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return roster_.phase() != RankRoster::Phase::kLoading; });
  HEDDLE_RETURN_IF_ERROR(roster_.failure());
  lock.unlock();
  return std::make_unique<RemoteRanks>(shared_from_this(), limits);
}

absl::Status Head::WaitForHalves(uint64_t layers, uint64_t logits) {
  std::unique_lock lock(mutex_);
  const auto is_lost = [this] { return !roster_.failure().ok(); };
  while (!is_lost() && !roster_.AreDone(layers, logits)) {
    changed_.wait_for(lock, kTick);
    if (is_lost() || mesh_->status().ok()) continue;
    changed_.wait_for(lock, kPatienceForCulprit, is_lost);
    Fail(mesh_->status());
  }
  return is_lost() ? ForClients() : absl::OkStatus();
}

absl::Status Head::Abort(const absl::Status& why) {
  std::unique_lock lock(mutex_);
  const bool is_link = !mesh_->status().ok();
  if (is_link) {
    changed_.wait_for(lock, kPatienceForCulprit, [this] { return !roster_.failure().ok(); });
  }
  Fail(is_link ? mesh_->status() : why);
  return ForClients();
}

void Head::Close(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable()) watch_.join();
  if (roster_.failure().ok() && mesh_ != nullptr) {
    v1::FromHead end;
    end.mutable_end()->set_why(why);
    SendToAll(end);
  }
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + milliseconds(500));
}

RemoteRanks::~RemoteRanks() { head_->Close("the head has ended"); }

int32_t RemoteRanks::world() const { return head_->world(); }

void RemoteRanks::Begin(const engine::StepPlan& plan, Adapters adapters) {
  HEDDLE_CHECK(adapters.empty(), "adapters do not travel");
  message_.clear();
  encoder_.Encode(plan, &message_);
  v1::FromHead message;
  message.set_plan(message_);
  head_->BeginHalf(message, plan.step);
  ++halves_;
  steps_.push_back({.layers_end = halves_, .logits_end = halves_});
}

void RemoteRanks::BeginLogits() {
  v1::FromHead message;
  message.mutable_logits();
  head_->BeginHalf(message, std::nullopt);
  steps_.front().logits_end = ++halves_;
}

absl::Status RemoteRanks::Join(const absl::Status& head) {
  if (!head.ok()) return Fail(head);
  const Step step = steps_.front();
  steps_.pop_front();
  return head_->WaitForHalves(step.layers_end, step.logits_end);
}

absl::Status RemoteRanks::Fail(const absl::Status& why) {
  steps_.clear();
  return head_->Abort(why);
}

}  // namespace

absl::StatusOr<std::shared_ptr<RankHead>> RankHead::Start(const RankHeadOptions& options,
                                                          const Logger* log) {
  auto head = std::make_shared<Head>(options, log);
  HEDDLE_RETURN_IF_ERROR(head->Listen());
  return head;
}

}  // namespace heddle::server
