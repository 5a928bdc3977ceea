#include "server/ranks/grpc_rank_head.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/ranks/welcome.h"

namespace heddle::server {
namespace {

namespace v1 = heddle::ranks::v1;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kWatchTick{100};
constexpr int kMaxMessageBytes = 1 << 20;  // from ranks: they send no rows here
constexpr int kHandshakeMs = 3000;         // as long as a call may say nothing
constexpr int kMaxThreads = 96;            // a call has one; ranks are 63 at most

}  // namespace

absl::Status GrpcRankHead::Listen() {
  const bool loopback = IsLoopbackHost(options_.host);
  if (!loopback && options_.identity.token.empty() && !options_.tls.enabled()) {
    return absl::InvalidArgumentError(
        base::StrCat("--ranks-listen ", options_.host,
                     " is not this machine alone: it needs --rank-token-file or --rank-tls-cert"));
  }
  HEDDLE_ASSIGN_OR_RETURN(mesh_, NewMesh());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(base::StrCat(options_.host, ":", std::to_string(options_.port)),
                           HeadCredentials(options_.tls), &port_);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("ranks");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  const auto ping = static_cast<int>(std::max<int64_t>(options_.settings.timeout.count() / 4, 100));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
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

grpc::Status GrpcRankHead::Serve(grpc::ServerContext* context, Stream* stream) {
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
absl::Status GrpcRankHead::Talk(CallId id, Call* call) {
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
      Welcome(*call, rank);
    }
    if (!call->stream->Read(&message)) return absl::OkStatus();
  }
}

void GrpcRankHead::Welcome(Call& call, int32_t rank) {
  RankSettings settings = options_.settings;
  std::unique_lock lock(mutex_);
  if (!stage_layers_.empty()) settings.layout.stage_layers = stage_layers_;
  lock.unlock();
  v1::FromHead welcome;
  *welcome.mutable_welcome() = ToWelcome(settings, rank);
  Write(call, welcome);
  lock.lock();
  call.is_welcomed = true;
  changed_.notify_all();
}

void GrpcRankHead::Leave(CallId id, Call* call) {
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

void GrpcRankHead::Write(Call& call, const v1::FromHead& message) {
  const std::lock_guard write(call.write);
  // A stream that is broken ends its call.
  if (call.stream != nullptr) static_cast<void>(call.stream->Write(message));
}

void GrpcRankHead::SendToAll(const v1::FromHead& message) {
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

void GrpcRankHead::SendTo(int32_t rank, const v1::FromHead& message) {
  std::shared_ptr<Call> call;
  {
    const std::lock_guard lock(mutex_);
    const auto place = roster_.ranks().find(rank);
    if (place == roster_.ranks().end()) return;  // lost: the step fails
    const auto found = calls_.find(place->second);
    if (found != calls_.end()) call = found->second;
  }
  if (call != nullptr) Write(*call, message);
}

void GrpcRankHead::BeginHalf(const v1::FromHead& message, std::optional<uint64_t> step) {
  {
    const std::lock_guard lock(mutex_);
    if (step.has_value()) roster_.set_step(*step);
    roster_.CountHalf();
  }
  SendToAll(message);
}

// Ends calls that say nothing, and notices ranks that do not beat any more.
void GrpcRankHead::Watch() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    changed_.wait_for(lock, kWatchTick);
    const Clock::time_point now = Clock::now();
    roster_.SetOwn(mesh_->ops() + local_progress_.ops,
                   waits_for_halves_ || mesh_->waits() || local_progress_.any_waits(), now);
    for (const CallId id : roster_.Tick(now)) {
      const auto found = calls_.find(id);
      if (found != calls_.end() && found->second->context != nullptr) {
        found->second->context->TryCancel();
      }
    }
    Spread();
    CheckDeadline(now);
  }
}

void GrpcRankHead::Close(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
  }
  changed_.notify_all();
  if (watch_.joinable()) watch_.join();
  v1::FromHead end;
  end.mutable_end()->set_why(why);
  end.mutable_end()->set_is_lost(!ended_.ok());
  if (mesh_ != nullptr) SendToAll(end);
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + milliseconds(500));
}

absl::StatusOr<std::shared_ptr<RankHead>> RankHead::Start(const RankHeadOptions& options,
                                                          const Logger* log) {
  auto head = std::make_shared<GrpcRankHead>(options, log);
  HEDDLE_RETURN_IF_ERROR(head->Listen());
  return head;
}

}  // namespace heddle::server
