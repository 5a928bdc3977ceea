// How a group forms, is lost, and forms anew.
#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/ranks/group_links.h"
#include "server/ranks/grpc_rank_head.h"
#include "server/ranks/remote_ranks.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

namespace v1 = heddle::ranks::v1;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kLook{100};
// A broken link may be noticed before the end of its rank's call, which says more.
constexpr milliseconds kPatienceForCulprit{700};
// Epochs in a row that may be lost before any step is done: a step that kills a rank would kill it
// for ever.
constexpr int kMaxBarrenEpochs = 3;

// Divides the memory that the ranks of a process have in common by their shares of layers.
void ShareMemory(std::span<const double> shares, std::span<engine::RankMeans> family) {
  int64_t bytes = 0;
  double all = 0;
  for (size_t i = 0; i < family.size(); ++i) {
    if (family[i].memory_bytes <= 0) return;  // not known
    bytes += family[i].memory_bytes;
    all += shares[i];
  }
  for (size_t i = 0; i < family.size(); ++i) {
    family[i].memory_bytes = static_cast<int64_t>(static_cast<double>(bytes) * shares[i] / all);
  }
}

}  // namespace

void GrpcRankHead::Fail(const absl::Status& why) {
  if (is_closed_) return;
  roster_.Fail(why);
  Spread();
}

// If the epoch has come to its end just now, says so and wakes everybody who waits for a rank.
void GrpcRankHead::Spread() {
  if (is_closed_ || is_spread_ || roster_.failure().ok()) return;
  is_spread_ = true;
  const absl::Status& why = roster_.failure();
  log_->Error("the ranks cannot go on", {{"why", std::string(why.message())}});
  AbortOwn(why);
  if (!lost_since_.has_value()) lost_since_ = Clock::now();
  const bool is_barren = roster_.begun_halves() > 0 && !has_done_step_;
  barren_epochs_ = is_barren ? barren_epochs_ + 1 : 0;
  if (!may_regroup()) {
    EndForGood(why);
  } else if (barren_epochs_ >= kMaxBarrenEpochs) {
    EndForGood(absl::UnavailableError(
        base::StrCat(barren_epochs_, " times in a row no step was done; the last time ",
                     std::string(why.message()))));
  }
  for (const auto& [id, call] : calls_) {
    if (call->context != nullptr) call->context->TryCancel();
  }
  changed_.notify_all();
}

void GrpcRankHead::EndForGood(const absl::Status& why) {
  if (!ended_.ok()) return;
  ended_ = why;
  log_->Error("the group of ranks has ended for good", {{"why", std::string(why.message())}});
  changed_.notify_all();
}

void GrpcRankHead::End(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  EndForGood(why);
  Fail(why);
}

// A lost rank has to be there again in time; how long it then loads does not count.
void GrpcRankHead::CheckDeadline(Clock::time_point now) {
  if (!lost_since_.has_value() || !ended_.ok() || !may_regroup()) return;
  const bool is_missing = static_cast<int32_t>(roster_.ranks().size()) < world() - 1;
  if (!is_missing || now - *lost_since_ <= options_.settings.rejoin) return;
  EndForGood(absl::UnavailableError(
      base::StrCat("no rank has come in place of the lost one within ",
                   options_.settings.rejoin.count(), " ms (--rank-rejoin-timeout)")));
}

std::vector<RankMesh::Peer> GrpcRankHead::Peers() {
  std::vector<RankMesh::Peer> peers = {{mesh_->address(), "the head"}};
  families_ = {options_.settings.head_ranks > 1 ? uint64_t{1} : 0};
  for (const auto& [rank, id] : roster_.ranks()) {
    const RankRoster::Member& member = *roster_.Find(id);
    peers.push_back({member.mesh_address, member.name()});
    families_.push_back(member.family == 0 ? 0 : static_cast<uint64_t>(member.first()) + 1);
  }
  return peers;
}

void GrpcRankHead::AbortOwn(const absl::Status& why) {
  mesh_->Abort(why);
  if (local_ != nullptr) local_->Abort(why);
}

v1::FromHead GrpcRankHead::StartMessage(const engine::ExecutorLimits& limits,
                                        const std::vector<RankMesh::Peer>& peers) const {
  v1::FromHead message;
  v1::Start& start = *message.mutable_start();
  start.set_num_pages(limits.num_pages);
  start.set_num_host_pages(limits.num_host_pages);
  start.set_max_context(limits.max_context);
  start.set_mesh_key(mesh_key_);
  start.set_max_ahead_tokens(limits.max_ahead_tokens);
  start.set_rows_beyond_guesses(limits.rows_beyond_guesses);
  for (const int32_t feature : limits.drafter_features) start.add_drafter_features(feature);
  for (size_t i = 0; i < peers.size(); ++i) {
    v1::Start::Peer* added = start.add_peers();
    added->set_mesh_address(peers[i].address);
    added->set_name(peers[i].name);
    added->set_family(families_[i]);
  }
  return message;
}

absl::StatusOr<std::shared_ptr<RankMesh>> GrpcRankHead::NewMesh() {
  std::random_device random;
  mesh_key_ = uint64_t{random()} << 32 | random();
  return RankMesh::Create(
      {.loopback_only = IsLoopbackHost(options_.host), .timeout = milliseconds(0)});
}

absl::StatusOr<std::vector<int32_t>> GrpcRankHead::StageLayers(
    const engine::DivideStagesFn& divide) {
  std::unique_lock lock(mutex_);
  LogWaiting();
  // Whoever is welcomed before the layers are divided hears of them in a message of their own.
  changed_.wait(lock, [this] {
    if (!ended_.ok()) return true;
    return roster_.has_all() && std::all_of(calls_.begin(), calls_.end(), [this](const auto& call) {
             return roster_.Find(call.first)->rank == 0 || call.second->is_welcomed;
           });
  });
  if (!ended_.ok()) return absl::AbortedError(ended_.message());
  std::vector<engine::RankMeans> means = {options_.own_means};
  std::vector<int32_t> families = {options_.settings.head_ranks};  // of each rank's process
  for (const auto& [rank, id] : roster_.ranks()) {
    means.push_back(roster_.Find(id)->means);
    families.push_back(roster_.Find(id)->family_ranks);
  }
  const std::vector<double>& shares = options_.settings.layout.weights;
  const bool have_own_memory = options_.identity.isa == "cuda";
  for (size_t first = 0; first < means.size() && !shares.empty() && !have_own_memory;) {
    const auto count = static_cast<size_t>(std::max(families[first], 1));
    ShareMemory(std::span(shares).subspan(first % shares.size(), count),
                std::span(means).subspan(first, count));
    first += count;
  }
  stage_layers_ = divide(means);
  v1::FromHead message;
  std::string text;
  for (const int32_t layers : stage_layers_) {
    message.mutable_stages()->add_layers(layers);
    text += base::StrCat(text.empty() ? "" : ",", layers);
  }
  const std::vector<int32_t> divided = stage_layers_;
  std::vector<std::shared_ptr<Call>> welcomed;  // whoever comes later has them in Welcome
  for (const auto& [id, call] : calls_) {
    if (call->is_welcomed) welcomed.push_back(call);
  }
  lock.unlock();
  log_->Info("layers are divided by what the ranks have", {{"layers", text}});
  for (const auto& call : welcomed) Write(*call, message);
  return divided;
}

void GrpcRankHead::LogWaiting() {
  if (has_logged_waiting_) return;
  has_logged_waiting_ = true;
  log_->Info("waiting for ranks to join",
             {{"at", base::StrCat(options_.host, ":", std::to_string(port_))},
              {"ranks", int64_t{world() - 1}}});
}

absl::StatusOr<engine::ExecutorLimits> GrpcRankHead::Agree(const engine::RankOffer& own) {
  std::unique_lock lock(mutex_);
  LogWaiting();
  changed_.wait(lock, [this] { return roster_.has_all_offers() || !ended_.ok(); });
  if (!ended_.ok()) return absl::AbortedError(ended_.message());
  own_ = own;
  HEDDLE_ASSIGN_OR_RETURN(const engine::ExecutorLimits limits, roster_.Start(own));
  const std::vector<RankMesh::Peer> peers = Peers();
  lock.unlock();
  HEDDLE_RETURN_IF_ERROR(mesh_->Connect(peers, 0, mesh_key_));
  SendToAll(StartMessage(limits, peers));
  return limits;
}

absl::Status GrpcRankHead::JoinGroups(kernels::Device& device) {
  const GroupPlace place = {.rank = 0,
                            .key = mesh_key_,
                            .families = families_,
                            .local = options_.local_groups.get(),
                            .progress = &local_progress_};
  HEDDLE_ASSIGN_OR_RETURN(JoinedGroups joined,
                          server::JoinGroups(*mesh_, options_.settings, place, device));
  {
    const std::lock_guard lock(mutex_);
    local_ = std::move(joined.local);
    if (local_ != nullptr && !roster_.failure().ok()) local_->Abort(roster_.failure());
  }
  const LinkSpeeds& speeds = joined.speeds;
  const std::pair<const char*, std::optional<LinkSpeed>> links[] = {
      {"ranks that share layers", speeds.group}, {"stages", speeds.stages}};
  for (const auto& [of, speed] : links) {
    if (!speed.has_value()) continue;
    log_->Info("links between ranks",
               {{"of", of}, {"latency_us", speed->latency_us}, {"gbit_per_s", speed->gbit_s}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<engine::OtherRanks>> GrpcRankHead::Others(
    const engine::ExecutorLimits& limits) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return roster_.phase() != RankRoster::Phase::kLoading; });
  // This process has not begun to serve: it is started again as all others are.
  if (!roster_.failure().ok()) return absl::AbortedError(roster_.failure().message());
  lock.unlock();
  return std::make_unique<RemoteRanks>(shared_from_this(), limits);
}

absl::Status GrpcRankHead::Regroup(kernels::Device& device) {
  std::unique_lock lock(mutex_);
  if (!ended_.ok()) {
    constexpr double kRestartSeconds = 10;  // the processes are started again, and load
    return WithRetryAfter(
        absl::AbortedError("A part of this server is lost; the server is started again."),
        kRestartSeconds);
  }
  switch (roster_.phase()) {
    case RankRoster::Phase::kLost: {
      if (!roster_.ranks().empty()) break;  // their calls are about to end
      HEDDLE_ASSIGN_OR_RETURN(mesh_, NewMesh());
      local_ = nullptr;
      roster_.Regather(Clock::now());
      is_spread_ = false;
      has_done_step_ = false;
      log_->Info("waiting for ranks to join again",
                 {{"epoch", int64_t{roster_.epoch()}}, {"ranks", int64_t{world() - 1}}});
      break;
    }
    case RankRoster::Phase::kGathering:
      if (roster_.has_all_offers()) HEDDLE_RETURN_IF_ERROR(BeginEpoch(device, &lock));
      break;
    case RankRoster::Phase::kLoading:
      break;
    case RankRoster::Phase::kRunning: {
      const std::chrono::duration<double> lost_for = Clock::now() - *lost_since_;
      lost_since_.reset();
      log_->Info("the ranks go on",
                 {{"epoch", int64_t{roster_.epoch()}}, {"lost_seconds", lost_for.count()}});
      return absl::OkStatus();
    }
  }
  return ForClients();
}

// All ranks are there: connects them, and has those that are new load.
absl::Status GrpcRankHead::BeginEpoch(kernels::Device& device, std::unique_lock<std::mutex>* lock) {
  HEDDLE_ASSIGN_OR_RETURN(const engine::ExecutorLimits limits, roster_.Start(own_));
  const std::vector<RankMesh::Peer> peers = Peers();
  lock->unlock();
  HEDDLE_RETURN_IF_ERROR(mesh_->Connect(peers, 0, mesh_key_));
  SendToAll(StartMessage(limits, peers));
  const absl::Status joined = JoinGroups(device);
  lock->lock();
  if (joined.ok()) return absl::OkStatus();
  Fail(joined);
  return ForClients();
}

// No addresses: clients need not know the machines.
absl::Status GrpcRankHead::ForClients() const {
  const int32_t rank = roster_.culprit();
  const std::string who = rank > 0 ? base::StrCat("Rank ", rank) : "A rank";
  return WithRetryAfter(
      absl::UnavailableError(base::StrCat(who, " of this server is lost; ",
                                          may_regroup() ? "answers go on when it has joined again."
                                                        : "the server is started again.")),
      kRecoverySeconds);
}

absl::Status GrpcRankHead::StatusForClients() const {
  const std::lock_guard lock(mutex_);
  return roster_.failure().ok() && mesh_->status().ok() ? absl::OkStatus() : ForClients();
}

absl::Status GrpcRankHead::WaitForHalves(uint64_t layers, uint64_t logits) {
  std::unique_lock lock(mutex_);
  const auto is_lost = [this] { return !roster_.failure().ok(); };
  while (!is_lost() && !roster_.AreDone(layers, logits)) {
    waits_for_halves_ = true;
    changed_.wait_for(lock, kLook);
    if (is_lost() || mesh_->status().ok()) continue;
    changed_.wait_for(lock, kPatienceForCulprit, is_lost);
    Fail(mesh_->status());
  }
  waits_for_halves_ = false;
  has_done_step_ |= !is_lost();
  return is_lost() ? ForClients() : absl::OkStatus();
}

absl::Status GrpcRankHead::Abort(const absl::Status& why) {
  std::unique_lock lock(mutex_);
  const bool is_link = !mesh_->status().ok();
  if (is_link) {
    changed_.wait_for(lock, kPatienceForCulprit, [this] { return !roster_.failure().ok(); });
  }
  Fail(is_link ? mesh_->status() : why);
  return ForClients();
}

}  // namespace heddle::server
