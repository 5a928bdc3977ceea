#include "server/ranks/rank_head.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
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
#include "server/ranks/welcome.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

namespace v1 = heddle::ranks::v1;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Stream = grpc::ServerReaderWriter<v1::FromHead, v1::FromRank>;

constexpr milliseconds kTick{100};
constexpr milliseconds kHelloLimit{3000};  // between a call's begin and its first message
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
      : options_(options), log_(log), service_(this) {}
  ~Head() override { Close(""); }

  absl::Status Listen();
  uint16_t port() const override { return port_; }
  absl::Status Failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  int32_t rank() const override { return 0; }
  absl::StatusOr<engine::ExecutorLimits> Agree(const engine::RankOffer& own) override;
  absl::Status JoinGroups(kernels::Device& device) override {
    return server::JoinGroups(*mesh_, options_.settings.layout, 0, device);
  }
  absl::StatusOr<std::unique_ptr<engine::OtherRanks>> Others(
      const engine::ExecutorLimits& limits) override;

  int32_t world() const { return options_.settings.layout.world(); }
  int32_t tp() const { return options_.settings.layout.tp; }
  void SendToAll(const v1::FromHead& message);
  void set_step(uint64_t step) { step_ = step; }
  // Waits until each rank has done `layers`, or, in stage 0, `logits` halves.
  absl::Status WaitForHalves(uint64_t layers, uint64_t logits);
  absl::Status Abort(const absl::Status& why);
  void Close(const std::string& why);

 private:
  // A call, of a rank that has been let in or has not said who it is.
  struct Peer {
    int32_t rank = 0;  // 0: not let in
    std::string host;
    std::string mesh_address;
    grpc::ServerContext* context = nullptr;  // until the call ends
    Stream* stream = nullptr;
    std::mutex write;  // held while something is written to the stream
    bool has_offered = false;
    v1::Offer offer;
    bool is_ready = false;
    uint64_t halves = 0;
    uint64_t step = 0;
    int64_t op = 0;
    Clock::time_point heard = Clock::now();

    std::string name() const {
      return base::StrCat("rank ", std::to_string(rank), " (", host, ")");
    }
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
  absl::Status LetIn(const v1::Hello& hello, Peer* peer);
  void Take(const v1::FromRank& message, Peer* peer);
  void Write(Peer& peer, const v1::FromHead& message);
  void Leave(Peer* peer);
  void Lose(const Peer& peer, const std::string& why);  // REQUIRES: mutex_ is held
  void Fail(const absl::Status& why);                   // REQUIRES: mutex_ is held
  void Watch();
  absl::Status CheckOffers(const engine::RankOffer& own) const;
  bool HasAll(const std::function<bool(const Peer&)>& has) const;

  const RankHeadOptions options_;
  const Logger* const log_;
  Service service_;
  int port_ = 0;
  std::shared_ptr<RankMesh> mesh_;
  std::unique_ptr<grpc::Server> server_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // GUARDED_BY(mutex_), but for what Write uses of a peer.
  std::vector<std::shared_ptr<Peer>> calls_;
  std::map<int32_t, std::shared_ptr<Peer>> ranks_;
  absl::Status failure_;
  bool has_begun_ = false;
  bool is_closed_ = false;

  std::atomic<uint64_t> step_{0};  // that the head is in
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

absl::Status Head::LetIn(const v1::Hello& hello, Peer* peer) {
  HEDDLE_RETURN_IF_ERROR(CheckIdentity(options_.identity, {.token = hello.token(),
                                                           .build = hello.build(),
                                                           .model_digest = hello.model_digest(),
                                                           .isa = hello.isa()}));
  const std::lock_guard lock(mutex_);
  if (is_closed_ || !failure_.ok()) return absl::UnavailableError("the head is ending");
  int32_t rank = 1;
  while (ranks_.contains(rank)) ++rank;
  if (has_begun_ || rank >= world()) {
    return absl::ResourceExhaustedError(
        base::StrCat("all ", std::to_string(world() - 1), " ranks beside the head are there"));
  }
  peer->rank = rank;
  peer->mesh_address = hello.mesh_address();
  const auto same = [peer](const auto& call) { return call.get() == peer; };
  ranks_[rank] = *std::find_if(calls_.begin(), calls_.end(), same);
  return absl::OkStatus();
}

grpc::Status Head::Serve(grpc::ServerContext* context, Stream* stream) {
  const auto peer = std::make_shared<Peer>();
  peer->host = HostOfPeer(context->peer());
  peer->context = context;
  peer->stream = stream;
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back(peer);
  }
  v1::FromRank message;
  absl::Status status = absl::InvalidArgumentError("a rank says Hello first");
  if (stream->Read(&message) && message.has_hello()) status = LetIn(message.hello(), peer.get());
  if (status.ok()) {
    log_->Info("a rank has joined", {{"rank", int64_t{peer->rank}}, {"host", peer->host}});
    v1::FromHead welcome;
    *welcome.mutable_welcome() = ToWelcome(options_.settings, peer->rank);
    Write(*peer, welcome);
    while (stream->Read(&message)) Take(message, peer.get());
  } else {
    log_->Warning("a rank was refused",
                  {{"host", peer->host}, {"why", std::string(status.message())}});
  }
  Leave(peer.get());
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

void Head::Take(const v1::FromRank& message, Peer* peer) {
  const std::lock_guard lock(mutex_);
  peer->heard = Clock::now();
  switch (message.message_case()) {
    case v1::FromRank::kOffer:
      peer->offer = message.offer();
      peer->has_offered = true;
      break;
    case v1::FromRank::kReady:
      peer->is_ready = true;
      break;
    case v1::FromRank::kDone:
      peer->halves = message.done().halves();
      break;
    case v1::FromRank::kBeat:
      peer->step = message.beat().step();
      peer->op = message.beat().op();
      return;
    case v1::FromRank::kFailed:
      Lose(*peer, message.failed().why());
      break;
    case v1::FromRank::kHello:
    case v1::FromRank::MESSAGE_NOT_SET:
      Lose(*peer, "it sent a message that has no place there");
      break;
  }
  changed_.notify_all();
}

void Head::Leave(Peer* peer) {
  const std::lock_guard write(peer->write);
  const std::lock_guard lock(mutex_);
  peer->context = nullptr;
  peer->stream = nullptr;
  std::erase_if(calls_, [peer](const auto& call) { return call.get() == peer; });
  if (peer->rank == 0) return;
  if (has_begun_) {
    Lose(*peer, "its connection has ended");
  } else if (!is_closed_) {
    log_->Warning("a rank has left", {{"rank", int64_t{peer->rank}}, {"host", peer->host}});
    ranks_.erase(peer->rank);
  }
  changed_.notify_all();
}

void Head::Write(Peer& peer, const v1::FromHead& message) {
  const std::lock_guard write(peer.write);
  // A stream that is broken ends its call.
  if (peer.stream != nullptr) static_cast<void>(peer.stream->Write(message));
}

void Head::SendToAll(const v1::FromHead& message) {
  std::vector<std::shared_ptr<Peer>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, peer] : ranks_) all.push_back(peer);
  }
  for (const auto& peer : all) Write(*peer, message);
}

void Head::Lose(const Peer& peer, const std::string& why) {
  Fail(absl::UnavailableError(base::StrCat(
      peer.name(), " is lost in step ", std::to_string(step_.load()), " (it last reported step ",
      std::to_string(peer.step), ", op ", std::to_string(peer.op), "): ", why)));
}

void Head::Fail(const absl::Status& why) {
  if (is_closed_ || !failure_.ok()) return;
  failure_ = why;
  log_->Error("the ranks cannot go on", {{"why", std::string(why.message())}});
  mesh_->Abort(why);
  for (const auto& call : calls_) {
    if (call->context != nullptr) call->context->TryCancel();
  }
  changed_.notify_all();
}

// Ends calls that say nothing, and notices ranks that do not beat any more. Time in which this
// process itself was stopped does not count.
void Head::Watch() {
  std::unique_lock lock(mutex_);
  Clock::time_point last = Clock::now();
  while (!is_closed_) {
    changed_.wait_for(lock, kTick);
    const Clock::time_point now = Clock::now();
    const bool was_stopped = now - last > 5 * kTick;
    last = now;
    for (const auto& call : calls_) {
      if (was_stopped) call->heard = now;
      const milliseconds limit = call->rank == 0 ? kHelloLimit : options_.settings.timeout;
      if (call->context == nullptr || now - call->heard <= limit) continue;
      if (call->rank > 0 && has_begun_) {
        Lose(*call, base::StrCat("nothing was heard of it for ", std::to_string(limit.count()),
                                 " ms (--rank-timeout)"));
      }
      call->context->TryCancel();
    }
  }
}

bool Head::HasAll(const std::function<bool(const Peer&)>& has) const {
  return static_cast<int32_t>(ranks_.size()) == world() - 1 &&
         std::all_of(ranks_.begin(), ranks_.end(),
                     [&has](const auto& entry) { return has(*entry.second); });
}

absl::Status Head::CheckOffers(const engine::RankOffer& own) const {
  for (const auto& [rank, peer] : ranks_) {
    if (peer->offer.kv_type() != own.kv_type) {
      return absl::FailedPreconditionError(base::StrCat(
          peer->name(), " would keep keys and values as ", base::Quote(peer->offer.kv_type()),
          ", the head as ", base::Quote(own.kv_type), "; --kv-type decides"));
    }
    if (peer->offer.logit_rows() != own.logit_rows) {
      return absl::FailedPreconditionError(
          base::StrCat(peer->name(), " computes ", std::to_string(peer->offer.logit_rows()),
                       " rows of logits at a time, the head ", std::to_string(own.logit_rows)));
    }
    if (peer->offer.num_pages() < 1 || peer->offer.max_context() < 1 ||
        peer->offer.num_host_pages() < 0) {
      return absl::InvalidArgumentError(base::StrCat(peer->name(), " has room for no page"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<engine::ExecutorLimits> Head::Agree(const engine::RankOffer& own) {
  std::unique_lock lock(mutex_);
  log_->Info("waiting for ranks to join",
             {{"at", base::StrCat(options_.host, ":", std::to_string(port_))},
              {"ranks", int64_t{world() - 1}}});
  changed_.wait(lock, [this] { return HasAll([](const Peer& peer) { return peer.has_offered; }); });
  HEDDLE_RETURN_IF_ERROR(CheckOffers(own));
  has_begun_ = true;
  engine::ExecutorLimits limits = own.limits;
  v1::FromHead message;
  v1::Start& start = *message.mutable_start();
  std::vector<RankMesh::Peer> peers = {{mesh_->address(), "the head"}};
  for (const auto& [rank, peer] : ranks_) {
    limits.num_pages = std::min(limits.num_pages, peer->offer.num_pages());
    limits.num_host_pages = std::min(limits.num_host_pages, peer->offer.num_host_pages());
    limits.max_context = std::min(limits.max_context, peer->offer.max_context());
    peers.push_back({peer->mesh_address, peer->name()});
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
  changed_.wait(lock, [this] {
    return !failure_.ok() || HasAll([](const Peer& peer) { return peer.is_ready; });
  });
  HEDDLE_RETURN_IF_ERROR(failure_);
  lock.unlock();
  return std::make_unique<RemoteRanks>(shared_from_this(), limits);
}

absl::Status Head::WaitForHalves(uint64_t layers, uint64_t logits) {
  std::unique_lock lock(mutex_);
  const auto is_done = [&](const Peer& peer) {
    return peer.halves >= (peer.rank < tp() ? logits : layers);
  };
  while (failure_.ok() && !HasAll(is_done)) {
    changed_.wait_for(lock, kTick);
    if (!failure_.ok() || mesh_->status().ok()) continue;
    changed_.wait_for(lock, kPatienceForCulprit, [this] { return !failure_.ok(); });
    Fail(mesh_->status());
  }
  return failure_.ok() ? failure_ : ForClients();
}

absl::Status Head::Abort(const absl::Status& why) {
  std::unique_lock lock(mutex_);
  const bool is_link = !mesh_->status().ok();
  if (is_link) changed_.wait_for(lock, kPatienceForCulprit, [this] { return !failure_.ok(); });
  Fail(is_link ? mesh_->status() : why);
  return failure_.ok() ? why : ForClients();
}

void Head::Close(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable()) watch_.join();
  if (failure_.ok() && mesh_ != nullptr) {
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
  head_->set_step(plan.step);
  message_.clear();
  encoder_.Encode(plan, &message_);
  v1::FromHead message;
  message.set_plan(message_);
  head_->SendToAll(message);
  ++halves_;
  steps_.push_back({.layers_end = halves_, .logits_end = halves_});
}

void RemoteRanks::BeginLogits() {
  v1::FromHead message;
  message.mutable_logits();
  head_->SendToAll(message);
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
