#include "server/ranks/rank_client.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/heddle/ranks/v1/ranks.grpc.pb.h"
#include "server/ranks/group_links.h"
#include "server/ranks/rank_mesh.h"
#include "server/ranks/rank_orders.h"
#include "server/ranks/welcome.h"

namespace heddle::server {
namespace {

namespace v1 = heddle::ranks::v1;
using std::chrono::milliseconds;

constexpr milliseconds kBeat{200};
constexpr int kKeepaliveMs = 2000;
// A head that notices by itself which rank is lost says more than one that only lost a link to it.
constexpr milliseconds kPatienceForHead{1500};
constexpr size_t kMaxQueued = 64;  // messages of the head that wait; it has a few steps in flight

// Why the head has ended a call before it said Welcome. It gives a reason when it refuses a rank; a
// call that it only cancels is one of a group that was lost at that moment, or that it took too
// long to hear of.
absl::Status Refusal(const grpc::Status& status) {
  if (status.ok() || status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError("the head has ended the call");
  }
  return {static_cast<absl::StatusCode>(status.error_code()),
          base::StrCat("the head: ", status.error_message())};
}

// Processor time of this process.
int64_t BusyMs() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

class Client final : public RankClient {
 public:
  Client() = default;
  ~Client() override;

  absl::Status Connect(const std::string& host, uint16_t port, const RankTls& tls,
                       const RankCaller& caller, const HeldPlace& held);
  const RankSettings& settings() const override { return settings_; }
  const engine::RankOffer& offer() const override { return offer_; }
  int32_t rank() const override { return rank_; }
  absl::StatusOr<std::vector<int32_t>> StageLayers(const engine::DivideStagesFn&) override;
  absl::StatusOr<engine::ExecutorLimits> Agree(const engine::RankOffer& own) override;
  absl::Status JoinGroups(kernels::Device& device) override;
  absl::StatusOr<std::unique_ptr<engine::OtherRanks>> Others(
      const engine::ExecutorLimits&) override {
    return absl::FailedPreconditionError("a rank that is not the head has no others");
  }
  absl::Status Run(engine::RankWorker& worker, const engine::ExecutorLimits& limits) override;
  void Stop() override { context_.TryCancel(); }

 private:
  bool Write(const v1::FromRank& message);
  bool Next(v1::FromHead* message);
  void Read();
  void Beat();
  absl::Status RunHalf(const RankOrders::Order& order, engine::RankWorker& worker);
  static absl::Status Lost();
  static absl::Status EndOf(const v1::End& end);

  std::unique_ptr<v1::Ranks::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::FromRank, v1::FromHead>> stream_;
  std::shared_ptr<RankMesh> mesh_;
  std::shared_ptr<LocalGroups> local_groups_;  // of the process; null: it has one rank
  LocalProgress local_progress_;
  bool has_gpu_ = false;
  GroupStart start_;  // from Agree on
  int32_t rank_ = 0;
  RankSettings settings_;
  engine::RankOffer offer_;

  std::atomic<uint64_t> step_{0};

  std::mutex write_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::FromHead> queue_;  // GUARDED_BY(mutex_), as the two below
  bool is_over_ = false;            // nothing more comes
  bool is_closing_ = false;
  std::shared_ptr<kernels::Communicator> local_;  // its group in this process's memory, or null
  absl::Status aborted_;                          // why that is at its end, or would be
  std::thread reader_, beat_;
};

Client::~Client() {
  if (stream_ != nullptr) context_.TryCancel();
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  if (!reader_.joinable()) return;  // Connect has ended the call
  reader_.join();
  beat_.join();
  static_cast<void>(stream_->Finish());
}

bool Client::Write(const v1::FromRank& message) {
  const std::lock_guard lock(write_);
  return stream_->Write(message);
}

absl::Status Client::Connect(const std::string& host, uint16_t port, const RankTls& tls,
                             const RankCaller& caller, const HeldPlace& held) {
  HEDDLE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                          RankCredentials(tls));
  HEDDLE_ASSIGN_OR_RETURN(mesh_, RankMesh::Create({.loopback_only = IsLoopbackHost(host)}));
  grpc::ChannelArguments arguments;
  // A head that is stopped does not answer pings.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 4 * kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);  // from the head, which this process trusts
  const std::string address = base::StrCat(host, ":", std::to_string(port));
  stub_ = v1::Ranks::NewStub(caller.channel != nullptr
                                 ? caller.channel
                                 : grpc::CreateCustomChannel(address, credentials, arguments));
  local_groups_ = caller.family.groups;
  stream_ = stub_->Join(&context_);
  v1::FromRank message;
  v1::Hello& hello = *message.mutable_hello();
  const RankIdentity& identity = caller.identity;
  has_gpu_ = identity.isa == "cuda";
  hello.set_token(identity.token);
  hello.set_build(identity.build);
  hello.set_model_digest(identity.model_digest);
  hello.set_isa(identity.isa);
  hello.set_ucx(identity.ucx);
  hello.set_mesh_address(mesh_->address());
  hello.set_held_session(held.session);
  hello.set_held_rank(held.rank);
  hello.set_process(caller.process);
  hello.set_wanted_rank(caller.wanted_rank);
  hello.set_family(caller.family.number);
  hello.set_family_rank(caller.family.rank);
  hello.set_family_ranks(caller.family.ranks);
  hello.set_read_gb_s(caller.means.read_gb_s);
  hello.set_memory_bytes(caller.means.memory_bytes);
  v1::FromHead answer;
  if (!Write(message) || !stream_->Read(&answer)) return Refusal(stream_->Finish());
  if (!answer.has_welcome()) return absl::InvalidArgumentError("the head does not say Welcome");
  HEDDLE_ASSIGN_OR_RETURN(settings_, FromWelcome(answer.welcome()));
  rank_ = answer.welcome().rank();
  reader_ = std::thread([this] { Read(); });
  beat_ = std::thread([this] { Beat(); });
  return absl::OkStatus();
}

void Client::Read() {
  v1::FromHead message;
  while (stream_->Read(&message)) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.size() < kMaxQueued || is_closing_; });
    if (is_closing_) break;
    const bool is_end = message.has_end();
    queue_.push_back(std::move(message));
    if (is_end) is_over_ = true;
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  const absl::Status ended = absl::UnavailableError("the connection to the head has ended");
  if (!is_over_) mesh_->Abort(ended);
  // Also behind an end in order: another rank of this process may wait in a step that has none.
  aborted_ = ended;
  if (local_ != nullptr) local_->Abort(ended);
  is_over_ = true;
  changed_.notify_all();
}

absl::Status Client::JoinGroups(kernels::Device& device) {
  const GroupPlace place = {.rank = rank_,
                            .key = start_.mesh_key,
                            .families = start_.families,
                            .local = local_groups_.get(),
                            .progress = &local_progress_};
  HEDDLE_ASSIGN_OR_RETURN(JoinedGroups joined,
                          server::JoinGroups(*mesh_, settings_, place, device));
  const std::lock_guard lock(mutex_);
  local_ = std::move(joined.local);
  if (local_ != nullptr && !aborted_.ok()) local_->Abort(aborted_);
  return absl::OkStatus();
}

void Client::Beat() {
  std::unique_lock lock(mutex_);
  while (!is_over_ && !is_closing_) {
    lock.unlock();
    v1::FromRank message;
    message.mutable_beat()->set_step(step_);
    message.mutable_beat()->set_op(mesh_->ops() + local_progress_.ops);
    message.mutable_beat()->set_waits(mesh_->waits() || local_progress_.any_waits());
    // Threads that only watch a GPU use processors, too, also while it hangs.
    if (!has_gpu_) message.mutable_beat()->set_busy_ms(BusyMs());
    if (!Write(message)) return;
    lock.lock();
    changed_.wait_for(lock, kBeat, [this] { return is_over_ || is_closing_; });
  }
}

// False: the head ends the group, or the connection has ended.
bool Client::Next(v1::FromHead* message) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !queue_.empty() || is_over_; });
  if (queue_.empty()) return false;
  *message = std::move(queue_.front());
  queue_.pop_front();
  changed_.notify_all();
  return true;
}

absl::Status Client::Lost() {
  return absl::UnavailableError("the head has ended the group, or is lost");
}

absl::Status Client::EndOf(const v1::End& end) {
  return end.is_lost() ? absl::AbortedError("the head has ended the group, which has lost a rank")
                       : absl::CancelledError("the head has ended the group");
}

// The loader asks where Welcome has left it open.
absl::StatusOr<std::vector<int32_t>> Client::StageLayers(const engine::DivideStagesFn&) {
  v1::FromHead answer;
  if (!Next(&answer)) return Lost();
  if (answer.has_end()) return EndOf(answer.end());
  if (!answer.has_stages()) return absl::InvalidArgumentError("the head does not say Stages");
  return std::vector<int32_t>(answer.stages().layers().begin(), answer.stages().layers().end());
}

absl::StatusOr<engine::ExecutorLimits> Client::Agree(const engine::RankOffer& own) {
  offer_ = own;
  v1::FromRank message;
  v1::Offer& offer = *message.mutable_offer();
  offer.set_num_pages(own.limits.num_pages);
  offer.set_num_host_pages(own.limits.num_host_pages);
  offer.set_max_context(own.limits.max_context);
  offer.set_page_tokens(own.limits.page_tokens);
  offer.set_logit_rows(own.logit_rows);
  offer.set_kv_type(own.kv_type);
  offer.set_feature_pages(own.feature_pages);
  v1::FromHead answer;
  if (!Write(message) || !Next(&answer)) return Lost();
  // A rank that comes while layers are divided hears of them twice.
  if (answer.has_stages() && !Next(&answer)) return Lost();
  if (answer.has_end()) return EndOf(answer.end());
  if (!answer.has_start()) return absl::InvalidArgumentError("the head does not say Start");
  HEDDLE_ASSIGN_OR_RETURN(start_, FromStart(answer.start(), own, settings_.layout.world()));
  HEDDLE_RETURN_IF_ERROR(mesh_->Connect(start_.peers, rank_, start_.mesh_key));
  return start_.limits;
}

absl::Status Client::RunHalf(const RankOrders::Order& order, engine::RankWorker& worker) {
  if (order.kind == RankOrders::Order::Kind::kLogits) return worker.RunLogits(*order.plan);
  step_ = order.plan->step;
  return worker.RunStage(*order.plan, order.adapters);
}

absl::Status Client::Run(engine::RankWorker& worker, const engine::ExecutorLimits& limits) {
  RankOrders orders(limits, rank_);
  v1::FromRank message;
  message.mutable_ready();
  if (!Write(message)) return Lost();
  v1::FromHead next;
  uint64_t halves = 0;
  while (Next(&next)) {
    const absl::StatusOr<RankOrders::Order> order = orders.Take(next);
    if (order.ok() && order->kind == RankOrders::Order::Kind::kAdapter) continue;
    if (order.ok() && order->kind == RankOrders::Order::Kind::kEnd) {
      const absl::Status end = EndOf(next.end());
      return absl::IsCancelled(end) ? absl::OkStatus() : end;
    }
    absl::Status status = order.ok() ? RunHalf(*order, worker) : order.status();
    absl::Status mesh = mesh_->status();
    if (mesh.ok() && local_ != nullptr) mesh = local_->status();
    if (!mesh.ok()) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kPatienceForHead, [this] { return is_over_; });
      status = absl::UnavailableError(mesh.message());
    }
    if (!status.ok()) {
      v1::FromRank failed;
      failed.mutable_failed()->set_why(std::string(status.message()));
      static_cast<void>(Write(failed));
      return status;
    }
    message.mutable_done()->set_halves(++halves);
    if (!Write(message)) return Lost();
  }
  return Lost();
}

}  // namespace

absl::Status RankClient::Rejoin(engine::RankWorker& worker, const engine::RankOffer& offer,
                                const engine::ExecutorLimits& limits) {
  HEDDLE_ASSIGN_OR_RETURN(const engine::ExecutorLimits agreed, Agree(offer));
  const bool is_same = agreed.num_pages == limits.num_pages &&
                       agreed.num_host_pages == limits.num_host_pages &&
                       agreed.max_context == limits.max_context &&
                       agreed.max_ahead_tokens == limits.max_ahead_tokens &&
                       agreed.rows_beyond_guesses == limits.rows_beyond_guesses &&
                       agreed.drafter_features == limits.drafter_features;
  if (!is_same) return absl::InvalidArgumentError("the head has other limits than before");
  return JoinGroups(worker.device());
}

absl::StatusOr<std::shared_ptr<RankClient>> RankClient::Join(const std::string& host, uint16_t port,
                                                             const RankTls& tls,
                                                             const RankCaller& caller,
                                                             const HeldPlace& held) {
  auto client = std::make_shared<Client>();
  HEDDLE_RETURN_IF_ERROR(client->Connect(host, port, tls, caller, held));
  return client;
}

}  // namespace heddle::server
