#include "kernels/communicator.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "kernels/await.h"

namespace heddle::kernels {
namespace {

using Parts = std::array<const void*, kMaxRanks>;

// A thread that yields gives its processor to another rank, which may be the one it waits for. A
// waiter sleeps after some hundred turns of others.
constexpr int kYields = 200;

// State that the ranks of a group share. A counter's lowest bit is set for good by Abort; events
// count in steps of two.
class LocalGroup {
 public:
  static constexpr uint32_t kAborted = 1;
  static constexpr uint32_t kEvent = 2;

  explicit LocalGroup(int32_t world) : world_(world), ranks_(static_cast<size_t>(world)) {
    for (Rank& rank : ranks_) {
      rank.mail = std::vector<Mail>(static_cast<size_t>(world));
      for (Mail& mail : rank.mail) mail.letters.resize(std::bit_ceil<size_t>(world + 2));
    }
  }

  int32_t world() const { return world_; }

  // A rank's meetings are of two kinds, each with places for parts in turn. One that ends when it
  // begins: a rank writes a place again in the one after the next, which begins when all have come
  // to the next one. One that ends later: a rank begins the fourth behind it when it has ended the
  // second, which all have begun, and before that ended this one.
  enum class Kind : uint8_t { kAtOnce, kBegun };
  static constexpr uint32_t kPlaces[] = {2, 4};
  struct Meeting {
    uint32_t round = 0;  // of all meetings of the rank
    Kind kind = Kind::kAtOnce;
    uint32_t place = 0;
  };

  // Publishes the rank's part of a meeting.
  void Come(int32_t rank, const Meeting& meeting, const void* part) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    own.PlaceOf(meeting) = part;
    own.arrived.fetch_add(kEvent, std::memory_order_acq_rel);
    own.arrived.notify_all();
  }
  // Waits for the parts of the others.
  bool WaitForAll(int32_t rank, const Meeting& meeting, int* spins, std::span<const void*> parts) {
    for (int32_t r = 0; r < world_; ++r) {
      Rank& other = ranks_[static_cast<size_t>(r)];
      if (r != rank && !Reach(other.arrived, (meeting.round + 1) * kEvent, spins)) return false;
      if (!parts.empty()) parts[static_cast<size_t>(r)] = other.PlaceOf(meeting);
    }
    const Rank& own = ranks_[static_cast<size_t>(rank)];
    return (own.arrived.load(std::memory_order_relaxed) & kAborted) == 0;
  }

  // The messages of a pair: each is offered, then taken.
  struct Letter {
    const void* data = nullptr;
    int64_t bytes = 0;
  };
  struct Mail {
    std::vector<Letter> letters;  // a ring: message i is at i % size, a power of two
    std::atomic<uint32_t> offered{0};
    std::atomic<uint32_t> taken{0};
  };
  Mail& MailOf(int32_t from, int32_t to) {
    return ranks_[static_cast<size_t>(from)].mail[static_cast<size_t>(to)];
  }

  // Waits until the counter is at `target` or beyond; false if the group is aborted before.
  static bool Reach(const std::atomic<uint32_t>& counter, uint32_t target, int* spins) {
    const auto is_there = [target](uint32_t now) {
      return static_cast<int32_t>((now & ~kAborted) - target) >= 0;
    };
    const uint32_t now = Await(counter, kYields, spins, [&](uint32_t value) {
      return (value & kAborted) != 0 || is_there(value);
    });
    return is_there(now);
  }

  void Abort(const absl::Status& why) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = why.ok() ? absl::AbortedError("the group of ranks was aborted") : why;
    for (Rank& rank : ranks_) {
      Poison(rank.arrived);
      for (Mail& mail : rank.mail) {
        Poison(mail.offered);
        Poison(mail.taken);
      }
    }
    for (const std::function<void()>& call : at_abort_) call();
  }
  void AtAbort(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) call();
    at_abort_.push_back(std::move(call));
  }
  absl::Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  struct alignas(64) Rank {
    std::atomic<uint32_t> arrived{0};
    const void* parts[2] = {nullptr, nullptr};
    std::vector<Mail> mail;  // to each rank
    const void* begun_parts[4] = {};

    const void*& PlaceOf(const Meeting& meeting) {
      return meeting.kind == Kind::kAtOnce ? parts[meeting.place] : begun_parts[meeting.place];
    }
  };

  static void Poison(std::atomic<uint32_t>& counter) {
    counter.fetch_or(kAborted, std::memory_order_acq_rel);
    counter.notify_all();
  }

  const int32_t world_;
  std::vector<Rank> ranks_;
  mutable std::mutex mutex_;
  absl::Status status_;                          // GUARDED_BY(mutex_)
  std::vector<std::function<void()>> at_abort_;  // GUARDED_BY(mutex_)
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int32_t rank)
      : group_(std::move(group)),
        rank_(rank),
        sent_(static_cast<size_t>(group_->world())),
        received_(static_cast<size_t>(group_->world())) {}

  int32_t rank() const override { return rank_; }
  int32_t world() const override { return group_->world(); }

  bool Exchange(const void* part, int64_t /*bytes*/, int64_t /*most_bytes*/,
                std::span<const void*> parts) override {
    HEDDLE_CHECK(static_cast<int32_t>(parts.size()) >= world(), "a place for each rank's part");
    return Meet(part, parts);
  }

  bool BeginExchange(const void* part, int64_t /*bytes*/, int64_t /*most_bytes*/) override {
    HEDDLE_CHECK(n_begun_ - n_ended_ < 2, "two exchanges at most have begun");
    LocalGroup::Meeting& meeting = begun_[n_begun_++ % 2];
    meeting = Next(LocalGroup::Kind::kBegun);
    group_->Come(rank_, meeting, part);
    return true;
  }

  bool EndExchange(std::span<const void*> parts) override {
    HEDDLE_CHECK(n_begun_ != n_ended_, "an exchange that ends has begun");
    HEDDLE_CHECK(static_cast<int32_t>(parts.size()) >= world(), "a place for each rank's part");
    return group_->WaitForAll(rank_, begun_[n_ended_++ % 2], &spins_, parts);
  }

  bool Barrier() override { return Meet(nullptr, {}); }

  bool Send(const void* data, int64_t bytes, int32_t to) override {
    if (!Post(data, bytes, to)) return false;
    return LocalGroup::Reach(group_->MailOf(rank_, to).taken,
                             sent_[static_cast<size_t>(to)] * LocalGroup::kEvent, &spins_);
  }

  bool Post(const void* data, int64_t bytes, int32_t to) override {
    LocalGroup::Mail& mail = group_->MailOf(rank_, to);
    const uint32_t message = sent_[static_cast<size_t>(to)]++;
    const auto places = static_cast<uint32_t>(mail.letters.size());
    // The message that had this place is taken when all but the last `places` - 1 are.
    if (!LocalGroup::Reach(mail.taken, (message + 1 - places) * LocalGroup::kEvent, &spins_)) {
      return false;
    }
    mail.letters[message % places] = {data, bytes};
    mail.offered.fetch_add(LocalGroup::kEvent, std::memory_order_acq_rel);
    mail.offered.notify_all();
    return true;
  }

  bool Recv(void* data, int64_t bytes, int32_t from) override {
    LocalGroup::Mail& mail = group_->MailOf(from, rank_);
    const uint32_t message = received_[static_cast<size_t>(from)]++;
    if (!LocalGroup::Reach(mail.offered, (message + 1) * LocalGroup::kEvent, &spins_)) return false;
    const LocalGroup::Letter letter = mail.letters[message % mail.letters.size()];
    HEDDLE_CHECK(letter.bytes == bytes, "ranks disagree about the size of a message");
    std::memcpy(data, letter.data, static_cast<size_t>(bytes));
    mail.taken.fetch_add(LocalGroup::kEvent, std::memory_order_acq_rel);
    mail.taken.notify_all();
    return true;
  }

  void Abort(const absl::Status& why) override { group_->Abort(why); }
  absl::Status status() const override { return group_->status(); }
  void AtAbort(std::function<void()> call) override { group_->AtAbort(std::move(call)); }

 private:
  LocalGroup::Meeting Next(LocalGroup::Kind kind) {
    const auto of_kind = static_cast<size_t>(kind);
    return {round_++, kind, meetings_[of_kind]++ % LocalGroup::kPlaces[of_kind]};
  }
  bool Meet(const void* part, std::span<const void*> parts) {
    const LocalGroup::Meeting meeting = Next(LocalGroup::Kind::kAtOnce);
    group_->Come(rank_, meeting, part);
    return group_->WaitForAll(rank_, meeting, &spins_, parts);
  }

  const std::shared_ptr<LocalGroup> group_;
  const int32_t rank_;
  uint32_t round_ = 0;             // meetings so far; wraps around
  uint32_t meetings_[2] = {0, 0};  // the same, of each kind
  LocalGroup::Meeting begun_[2];   // that have not ended, in turn
  uint32_t n_begun_ = 0;
  uint32_t n_ended_ = 0;
  std::vector<uint32_t> sent_;      // messages to each rank
  std::vector<uint32_t> received_;  // messages from each rank
  int spins_ = kMaxSpins;
};

}  // namespace

bool Communicator::AllGather(const void* part, void* whole, int64_t bytes) {
  Parts parts;
  if (!Exchange(part, bytes, bytes, parts)) return false;
  for (int32_t r = 0; r < world(); ++r) {
    std::memcpy(static_cast<char*>(whole) + r * bytes, parts[static_cast<size_t>(r)],
                static_cast<size_t>(bytes));
  }
  return Barrier();
}

bool Communicator::AllToAll(const void* parts, void* received, int64_t bytes) {
  Parts all;
  if (!Exchange(parts, bytes * world(), bytes * world(), all)) return false;
  for (int32_t r = 0; r < world(); ++r) {
    const char* from = static_cast<const char*>(all[static_cast<size_t>(r)]) + rank() * bytes;
    std::memcpy(static_cast<char*>(received) + r * bytes, from, static_cast<size_t>(bytes));
  }
  return Barrier();
}

bool Communicator::Broadcast(void* data, int64_t bytes, int32_t root) {
  Parts parts;
  if (!Exchange(rank() == root ? data : nullptr, bytes, bytes, parts)) return false;
  if (rank() != root) {
    std::memcpy(data, parts[static_cast<size_t>(root)], static_cast<size_t>(bytes));
  }
  return Barrier();
}

absl::Status WhyAborted(const Communicator& group) {
  const absl::Status why = group.status();
  return why.ok() ? absl::AbortedError("the group of ranks was given up") : why;
}

std::vector<std::unique_ptr<Communicator>> MakeLocalCommunicators(int32_t world) {
  HEDDLE_CHECK(world >= 1 && world <= kMaxRanks, "a group has from 1 to kMaxRanks ranks");
  auto group = std::make_shared<LocalGroup>(world);
  std::vector<std::unique_ptr<Communicator>> all;
  all.reserve(static_cast<size_t>(world));
  for (int32_t rank = 0; rank < world; ++rank) {
    all.push_back(std::make_unique<LocalCommunicator>(group, rank));
  }
  return all;
}

}  // namespace heddle::kernels
