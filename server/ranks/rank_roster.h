// The head's book of the ranks that are processes of their own: who has called, who was let in, how
// far each is, and who is lost. It takes messages and times, and knows no connection.
//
// Life: calls begin and end at any time. While the group gathers, ranks come and go. Start fixes
// them; from then on, one that ends, fails, is silent for the timeout or says what has no place
// where it stands is lost, and with it the group: failure() names it. So is one that beats, but
// does not get on with a step for as long (rank_progress.h). Regather begins a new epoch, in which
// ranks that still have their weights get their places back, and another process may take the place
// of the one that was lost.
//
// Everything that callers say is untrusted: sizes are checked before anything is kept, and a
// message that does not follow those before it ends its call.
// Thread-safety: none; the head has one mutex for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/rank_meeting.h"
#include "proto/heddle/ranks/v1/ranks.pb.h"
#include "server/ranks/rank_identity.h"
#include "server/ranks/rank_progress.h"
#include "server/ranks/rank_settings.h"

namespace heddle::server {

class RankRoster {
 public:
  using CallId = uint64_t;
  using Time = std::chrono::steady_clock::time_point;

  // Between a call's begin and its first message.
  static constexpr std::chrono::milliseconds kHelloLimit{3000};
  // Calls at a time that have not said who they are: a few per rank that starts, and strangers.
  static constexpr int kMaxStrangers = 32;
  static constexpr size_t kMaxAddressBytes = 4096;  // UCX's addresses have some hundred

  enum class Phase : uint8_t {
    kGathering,  // ranks join and offer
    kLoading,    // all are there, and load
    kRunning,    // all are ready for steps
    kLost,       // failure() says why
  };
  struct Member {
    int32_t rank = 0;  // 0: it has not said Hello
    std::string host;
    std::string mesh_address;
    engine::RankMeans means;
    uint64_t process = 0;  // its random number
    // Hello's, checked: which of how many ranks of its process it is.
    uint64_t family = 0;
    int32_t family_rank = 0;
    int32_t family_ranks = 1;
    bool has_offered = false;
    ranks::v1::Offer offer;
    bool is_ready = false;
    uint64_t halves = 0;  // of steps, done
    uint64_t step = 0;    // as it last reported
    RankProgress progress;
    Time heard{};

    std::string name() const;  // for logs: it has the address
    // Ranks [first, first + family_ranks) are its process's.
    int32_t first() const { return rank - family_rank; }
  };

  RankRoster(RankIdentity identity, const RankSettings& settings)
      : identity_(std::move(identity)), settings_(settings) {}

  // A call from `host` has begun. RESOURCE_EXHAUSTED: there are too many that say nothing; the call
  // is not in the book.
  absl::StatusOr<CallId> Begin(const std::string& host, Time now);
  // An error: the call is to be ended with it. A first message that is OK has let the rank in.
  absl::Status Take(CallId call, const ranks::v1::FromRank& message, Time now);
  // The call has ended; unknown ones are ignored.
  void End(CallId call);
  // The calls that have been silent for too long, which are to be ended. Call it several times a
  // second; if the head itself stood still, that time does not count.
  std::vector<CallId> Tick(Time now);

  // Whether each rank beside the head is there; and has offered.
  bool has_all() const {
    return HasAll([](const Member&) { return true; });
  }
  bool has_all_offers() const;
  // Fixes the group and returns its limits, the least of all, which later epochs keep.
  // FAILED_PRECONDITION names the rank whose offer does not fit, and nothing has changed.
  // REQUIRES: has_all_offers(), gathering.
  absl::StatusOr<engine::ExecutorLimits> Start(const engine::RankOffer& own);
  // The head is in `step`, for messages; and it has begun one more half of a step.
  void set_step(uint64_t step) { step_ = step; }
  void CountHalf() { ++begun_halves_; }
  // How far the head itself is: collectives that it has begun, and whether it waits for a rank.
  void SetOwn(int64_t op, bool waits, Time now) { own_.Report({.op = op, .waits = waits}, now); }
  // Whether each rank has done so many halves: `logits` in stage 0, `layers` behind it.
  bool AreDone(uint64_t layers, uint64_t logits) const;

  // The group cannot go on. The first reason stays until Regather.
  void Fail(const absl::Status& why);
  // Begins a new epoch: all ranks are to join again. REQUIRES: lost, and the calls of all ranks
  // have ended.
  void Regather(Time now);

  Phase phase() const { return phase_; }
  const absl::Status& failure() const { return failure_; }
  int32_t culprit() const { return culprit_; }  // the rank that was lost last; 0: nobody knows
  int epoch() const { return epoch_; }          // the first is 1
  uint64_t begun_halves() const { return begun_halves_; }
  const Member* Find(CallId call) const;                             // null: not in the book
  const std::map<int32_t, CallId>& ranks() const { return ranks_; }  // those let in, without 0
  int32_t world() const { return settings_.layout.world(); }
  int32_t tp() const { return settings_.layout.tp; }
  size_t num_calls() const { return calls_.size(); }

 private:
  using FromRank = ranks::v1::FromRank;

  absl::Status LetIn(CallId call, Member* member, const FromRank& message, Time now);
  absl::StatusOr<int32_t> PlaceFor(const Member& member, const ranks::v1::Hello& hello,
                                   Time now) const;
  absl::Status CheckFamily(const ranks::v1::Hello& hello) const;
  // The option that gives processes of this group their ranks, for messages.
  const char* FamilyOption() const;
  const Member* FindFamily(uint64_t family) const;
  bool IsClaimed(int32_t rank) const;
  absl::Status TakeOffer(Member* member, const ranks::v1::Offer& offer);
  absl::Status TakeDone(Member* member, uint64_t halves);
  absl::Status Understand(Member* member, const FromRank& message);
  void Lose(const Member& member, const std::string& why);
  void CheckProgress(Time now);
  bool IsFixed() const { return phase_ == Phase::kLoading || phase_ == Phase::kRunning; }
  bool HasAll(const std::function<bool(const Member&)>& has) const;

  const RankIdentity identity_;
  const RankSettings settings_;
  Phase phase_ = Phase::kGathering;
  absl::Status failure_;
  int32_t culprit_ = 0;
  int32_t lost_end_ = 0;  // ranks [culprit_, lost_end_) are lost, those of a process
  int epoch_ = 1;
  Time gathering_since_{};
  std::optional<engine::RankOffer> agreed_;  // what the first epoch's ranks have in common
  std::map<CallId, Member> calls_;
  std::map<int32_t, CallId> ranks_;
  CallId last_call_ = 0;
  uint64_t step_ = 0;
  uint64_t begun_halves_ = 0;
  RankProgress own_;
  Time last_tick_{};
};

}  // namespace heddle::server
