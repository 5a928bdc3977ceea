#include "server/ranks/rank_roster.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/check.h"
#include "base/message.h"
#include "base/status.h"

namespace heddle::server {
namespace {

using std::chrono::milliseconds;

// A pause between two ticks beyond which the head itself was stopped.
constexpr milliseconds kLongestTick{500};
constexpr size_t kMostSaid = 400;  // of a rank's own words

// The pages that are left of an offer beside the hidden states that the drafter reads.
int32_t PagesOf(const ranks::v1::Offer& offer, const engine::RankOffer& group) {
  const auto features = static_cast<int64_t>(group.limits.drafter_features.size());
  return static_cast<int32_t>(
      std::max<int64_t>(offer.num_pages() - features * offer.feature_pages(), 0));
}

// A rank's offer must suit the group.
absl::Status CheckOffer(const RankRoster::Member& member, const ranks::v1::Offer& offer,
                        const engine::RankOffer& group) {
  const auto differs = [&member](const auto&... what) {
    return absl::FailedPreconditionError(base::StrCat(member.name(), what...));
  };
  if (offer.kv_type() != group.kv_type) {
    return differs(" would keep keys and values as ", base::Quote(offer.kv_type()),
                   ", the head as ", base::Quote(group.kv_type), "; --kv-type decides");
  }
  if (offer.page_tokens() != group.limits.page_tokens) {
    return differs(" has pages of ", offer.page_tokens(), " positions, the head of ",
                   group.limits.page_tokens, "; --page-tokens decides");
  }
  if (offer.logit_rows() != group.logit_rows) {
    return differs(" computes ", offer.logit_rows(), " rows of logits at a time, the head ",
                   group.logit_rows);
  }
  if (PagesOf(offer, group) < std::max(group.limits.num_pages, 1) ||
      offer.num_host_pages() < group.limits.num_host_pages ||
      offer.max_context() < group.limits.max_context) {
    return differs(" has room for ", PagesOf(offer, group), " pages, ", offer.num_host_pages(),
                   " in the host's tier and contexts of ", offer.max_context(),
                   "; the group that it joins has ", group.limits.num_pages, ", ",
                   group.limits.num_host_pages, " and ", group.limits.max_context);
  }
  return absl::OkStatus();
}

absl::Status NoPlace(std::string_view what) {
  return absl::InvalidArgumentError(base::StrCat("it said ", what, " where that has no place"));
}

}  // namespace

std::string RankRoster::Member::name() const {
  return base::StrCat("rank ", rank, " (", host, ")");
}

const RankRoster::Member* RankRoster::Find(CallId call) const {
  const auto found = calls_.find(call);
  return found == calls_.end() ? nullptr : &found->second;
}

absl::StatusOr<RankRoster::CallId> RankRoster::Begin(const std::string& host, Time now) {
  const size_t strangers = calls_.size() - ranks_.size();
  if (strangers >= static_cast<size_t>(kMaxStrangers)) {
    return absl::ResourceExhaustedError("too many calls have not said who they are");
  }
  const CallId call = ++last_call_;
  Member& member = calls_[call];
  member.host = host;
  member.heard = now;
  return call;
}

absl::Status RankRoster::Take(CallId call, const FromRank& message, Time now) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return absl::CancelledError("the call has ended");
  Member& member = found->second;
  if (member.rank == 0) {
    absl::Status status = LetIn(call, &member, message, now);
    if (status.ok()) member.heard = now;  // else silence begins with the call
    return status;
  }
  member.heard = now;
  if (phase_ == Phase::kLost) return absl::UnavailableError("the group of ranks has ended");
  absl::Status status = Understand(&member, message);
  if (!status.ok() && IsFixed()) Lose(member, std::string(status.message()));
  return status;
}

absl::Status RankRoster::LetIn(CallId call, Member* member, const FromRank& message, Time now) {
  if (!message.has_hello()) return absl::InvalidArgumentError("a rank says Hello first");
  const ranks::v1::Hello& hello = message.hello();
  HEDDLE_RETURN_IF_ERROR(CheckIdentity(identity_, {.token = hello.token(),
                                                   .build = hello.build(),
                                                   .model_digest = hello.model_digest(),
                                                   .isa = hello.isa(),
                                                   .ucx = hello.ucx()}));
  if (hello.mesh_address().empty() || hello.mesh_address().size() > kMaxAddressBytes) {
    return absl::InvalidArgumentError(base::StrCat("an address of ", hello.mesh_address().size(),
                                                   " bytes; it has 1 to ", kMaxAddressBytes));
  }
  if (phase_ == Phase::kLost) return absl::UnavailableError("the group of ranks has ended");
  // A process calls again when its last call has ended, which a head that stood still, or a broken
  // link, may be late to notice.
  const bool has_call = std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    return calls_.at(entry.second).process == hello.process();
  });
  if (hello.process() != 0 && has_call) {
    return absl::UnavailableError("an earlier call of the same process has not ended yet");
  }
  HEDDLE_RETURN_IF_ERROR(CheckFamily(hello));
  member->family = hello.family();
  member->family_rank = hello.family_rank();
  member->family_ranks = std::max(hello.family_ranks(), 1);
  HEDDLE_ASSIGN_OR_RETURN(member->rank, PlaceFor(*member, hello, now));
  member->mesh_address = hello.mesh_address();
  if (std::isfinite(hello.read_gb_s())) member->means.read_gb_s = std::max(hello.read_gb_s(), 0.0);
  member->means.memory_bytes = std::max<int64_t>(hello.memory_bytes(), 0);
  member->process = hello.process();
  ranks_[member->rank] = call;
  return absl::OkStatus();
}

const char* RankRoster::FamilyOption() const {
  return identity_.isa == "cuda" ? "--rank-devices" : "--rank-cpus";
}

// The ranks of a process share layers: tensor parallelism is for its memory, the pipeline for
// links.
absl::Status RankRoster::CheckFamily(const ranks::v1::Hello& hello) const {
  const int32_t ranks = std::max(hello.family_ranks(), 1);
  const bool is_one = hello.family() == 0 ? ranks == 1 : ranks > 1;
  if (!is_one || hello.family_rank() < 0 || hello.family_rank() >= ranks) {
    return absl::InvalidArgumentError(base::StrCat("it is rank ", hello.family_rank(), " of ",
                                                   hello.family_ranks(), " of its process"));
  }
  if (ranks <= settings_.layout.tp) return absl::OkStatus();
  return absl::OutOfRangeError(base::StrCat("the process has ", ranks, " ranks (", FamilyOption(),
                                            "), and ", settings_.layout.tp,
                                            " share layers (--tp)"));
}

const RankRoster::Member* RankRoster::FindFamily(uint64_t family) const {
  for (const auto& [rank, call] : ranks_) {
    const Member& member = calls_.at(call);
    if (family != 0 && member.family == family) return &member;
  }
  return nullptr;
}

// Whether a process has the place, though not each of its ranks may have called yet.
bool RankRoster::IsClaimed(int32_t rank) const {
  if (rank < settings_.head_ranks) return true;
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    const Member& member = calls_.at(entry.second);
    return rank >= member.first() && rank < member.first() + member.family_ranks;
  });
}

// Ranks that have their weights come back to their own places. For a while, nobody else gets these.
// Ranks of one process get places one behind the other.
absl::StatusOr<int32_t> RankRoster::PlaceFor(const Member& member, const ranks::v1::Hello& hello,
                                             Time now) const {
  const bool gathers = phase_ == Phase::kGathering;
  const int32_t wanted = hello.wanted_rank();
  if (wanted < 0 || wanted >= world()) {
    return absl::OutOfRangeError(
        base::StrCat("--rank is ", wanted, "; the ranks beside the head are 1 to ", world() - 1));
  }
  const int32_t count = member.family_ranks;
  // Whether the ranks from `first` on are there, and of one stage.
  const auto is_run = [&](int32_t first) {
    return first >= 0 && first + count <= world() &&
           first % settings_.layout.tp + count <= settings_.layout.tp;
  };
  if (gathers && hello.held_rank() > 0 && hello.held_session() == settings_.session) {
    if (hello.held_rank() < world() && !ranks_.contains(hello.held_rank()) &&
        is_run(hello.held_rank() - member.family_rank)) {
      return hello.held_rank();
    }
    return absl::ResourceExhaustedError(base::StrCat(
        "there is no place of rank ", hello.held_rank(), " any more: another one has it"));
  }
  const bool is_of_head = hello.family() != 0 && hello.family() == settings_.head_family;
  const Member* other = FindFamily(hello.family());
  if (gathers && (is_of_head || other != nullptr)) {
    const int32_t rank = (is_of_head ? 0 : other->first()) + member.family_rank;
    const bool agree = count == (is_of_head ? settings_.head_ranks : other->family_ranks);
    if (agree && rank > 0 && !ranks_.contains(rank)) return rank;
    return absl::ResourceExhaustedError(
        base::StrCat("there is no place of rank ", rank, " for another rank of the same process"));
  }
  const bool are_kept = epoch_ > 1 && now - gathering_since_ <= settings_.timeout;
  bool has_room = false;
  for (int32_t first = 1; gathers && first + count <= world(); ++first) {
    if ((wanted > 0 && first != wanted) || !is_run(first)) continue;
    bool is_free = true;
    bool are_lost = true;
    for (int32_t rank = first; rank < first + count; ++rank) {
      is_free = is_free && !IsClaimed(rank);
      are_lost = are_lost && rank >= culprit_ && rank < lost_end_;
    }
    if (!is_free) continue;
    if (!are_kept || are_lost) return first + member.family_rank;
    has_room = true;
  }
  if (has_room) return absl::UnavailableError("ranks that have their weights come first");
  if (gathers && count > 1) {
    return absl::ResourceExhaustedError(
        base::StrCat("there are no ", count, " places of one stage for the ranks of a process (",
                     FamilyOption(), ")"));
  }
  if (gathers && wanted > 0) {
    return absl::ResourceExhaustedError(
        base::StrCat("another process is rank ", wanted, " (--rank)"));
  }
  return absl::ResourceExhaustedError(
      base::StrCat("all ", world() - 1, " ranks beside the head are there"));
}

void RankRoster::Regather(Time now) {
  HEDDLE_CHECK(phase_ == Phase::kLost && ranks_.empty(), "a group that is not over");
  phase_ = Phase::kGathering;
  failure_ = absl::OkStatus();
  gathering_since_ = now;
  begun_halves_ = 0;
  own_ = {};
  ++epoch_;
}

// Takes a message of a rank that has been let in.
absl::Status RankRoster::Understand(Member* member, const FromRank& message) {
  switch (message.message_case()) {
    case FromRank::kHello:
      return NoPlace("Hello");
    case FromRank::kOffer:
      return TakeOffer(member, message.offer());
    case FromRank::kReady:
      if (phase_ != Phase::kLoading || member->is_ready) return NoPlace("Ready");
      member->is_ready = true;
      if (HasAll([](const Member& each) { return each.is_ready; })) phase_ = Phase::kRunning;
      return absl::OkStatus();
    case FromRank::kDone:
      return TakeDone(member, message.done().halves());
    case FromRank::kBeat:
      member->step = message.beat().step();
      member->progress.Report({.op = message.beat().op(),
                               .busy_ms = message.beat().busy_ms(),
                               .waits = message.beat().waits()},
                              member->heard);
      return absl::OkStatus();
    case FromRank::kFailed:
      return absl::AbortedError(
          absl::Utf8SafeCHexEscape(message.failed().why().substr(0, kMostSaid)));
    case FromRank::MESSAGE_NOT_SET:
      break;
  }
  return NoPlace("something unknown");
}

absl::Status RankRoster::TakeOffer(Member* member, const ranks::v1::Offer& offer) {
  if (phase_ != Phase::kGathering || member->has_offered) return NoPlace("Offer");
  if (offer.num_pages() < 1 || offer.max_context() < 1 || offer.num_host_pages() < 0 ||
      offer.feature_pages() < 0) {
    return absl::InvalidArgumentError("it has room for no page");
  }
  if (agreed_.has_value()) HEDDLE_RETURN_IF_ERROR(CheckOffer(*member, offer, *agreed_));
  member->offer = offer;
  member->has_offered = true;
  return absl::OkStatus();
}

// Halves are reported one by one. A repeated report is none of the next.
absl::Status RankRoster::TakeDone(Member* member, uint64_t halves) {
  if (phase_ != Phase::kRunning || halves != member->halves + 1 || halves > begun_halves_) {
    return NoPlace("Done");
  }
  member->halves = halves;
  member->progress.Restart(member->heard);
  return absl::OkStatus();
}

void RankRoster::End(CallId call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const Member member = std::move(found->second);
  calls_.erase(found);
  if (member.rank == 0) return;
  if (IsFixed()) Lose(member, "its connection has ended");
  ranks_.erase(member.rank);
}

std::vector<RankRoster::CallId> RankRoster::Tick(Time now) {
  const bool was_stopped = now - last_tick_ > kLongestTick;
  last_tick_ = now;
  std::vector<CallId> silent;
  for (auto& [call, member] : calls_) {
    if (was_stopped) member.heard = now;
    if (was_stopped || member.halves >= begun_halves_) member.progress.Restart(now);
    const milliseconds limit = member.rank == 0 ? kHelloLimit : settings_.timeout;
    if (now - member.heard <= limit) continue;
    silent.push_back(call);
    if (member.rank == 0 || !IsFixed()) continue;
    Lose(member,
         base::StrCat("nothing was heard of it for ", limit.count(), " ms (--rank-timeout)"));
  }
  if (was_stopped) own_.Restart(now);
  if (phase_ == Phase::kRunning) CheckProgress(now);
  return silent;
}

// A rank that has something to do, waits for nobody and does nothing hangs. Where all that have
// something to do wait for each other, the messages between them do not arrive.
void RankRoster::CheckProgress(Time now) {
  const auto is_still = [&](const RankProgress& progress) {
    return now - progress.moved() > settings_.timeout;
  };
  const Member* waiting = nullptr;  // the one that has come least far
  bool all_wait = own_.waits() && is_still(own_);
  for (const auto& [rank, call] : ranks_) {
    const Member& member = calls_.at(call);
    if (member.halves >= begun_halves_) continue;
    const RankProgress& progress = member.progress;
    if (!progress.waits() && is_still(progress)) {
      Lose(member, base::StrCat("it has computed nothing for ", settings_.timeout.count(),
                                " ms (--rank-timeout)"));
      return;
    }
    all_wait = all_wait && progress.waits() && is_still(progress);
    if (waiting == nullptr || progress.op() < waiting->progress.op()) waiting = &member;
  }
  if (!all_wait || waiting == nullptr) return;
  Lose(*waiting,
       base::StrCat("it and all others have waited for each other for ", settings_.timeout.count(),
                    " ms (--rank-timeout): its link carries no rows"));
}

bool RankRoster::HasAll(const std::function<bool(const Member&)>& has) const {
  return static_cast<int32_t>(ranks_.size()) == world() - 1 &&
         std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& entry) { return has(calls_.at(entry.second)); });
}

bool RankRoster::has_all_offers() const {
  return HasAll([](const Member& member) { return member.has_offered; });
}

bool RankRoster::AreDone(uint64_t layers, uint64_t logits) const {
  return HasAll([&](const Member& member) {
    return member.halves >= (member.rank < settings_.layout.tp ? logits : layers);
  });
}

absl::StatusOr<engine::ExecutorLimits> RankRoster::Start(const engine::RankOffer& own) {
  HEDDLE_CHECK(phase_ == Phase::kGathering && has_all_offers(), "a group of ranks is not there");
  if (!agreed_.has_value()) {
    engine::RankOffer agreed = own;
    engine::ExecutorLimits& limits = agreed.limits;
    for (const auto& [rank, call] : ranks_) {
      const ranks::v1::Offer& offer = calls_.at(call).offer;
      limits.num_pages = std::min(limits.num_pages, PagesOf(offer, own));
      limits.num_host_pages = std::min(limits.num_host_pages, offer.num_host_pages());
      limits.max_context = std::min(limits.max_context, offer.max_context());
    }
    for (const auto& [rank, call] : ranks_) {
      HEDDLE_RETURN_IF_ERROR(CheckOffer(calls_.at(call), calls_.at(call).offer, agreed));
    }
    agreed_ = agreed;
  }
  phase_ = Phase::kLoading;
  return agreed_->limits;
}

void RankRoster::Lose(const Member& member, const std::string& why) {
  if (phase_ == Phase::kLost) return;
  std::string others;
  for (int32_t rank = member.first(); rank < member.first() + member.family_ranks; ++rank) {
    if (rank == member.rank) continue;
    others += base::StrCat(others.empty() ? "; its process has rank " : ", ", rank);
  }
  Fail(absl::UnavailableError(base::StrCat(member.name(), " is lost in step ", step_,
                                           " (it last reported step ", member.step, ", op ",
                                           member.progress.op(), "): ", why, others)));
  culprit_ = member.first();
  lost_end_ = culprit_ + member.family_ranks;
}

void RankRoster::Fail(const absl::Status& why) {
  if (phase_ == Phase::kLost) return;
  culprit_ = lost_end_ = 0;
  failure_ = why.ok() ? absl::UnavailableError("the group of ranks was ended") : why;
  phase_ = Phase::kLost;
}

}  // namespace heddle::server
