#include "kernels/cuda/ranks/apart_communicator.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/ranks/peer_params.h"

namespace heddle::kernels::cuda {
namespace {

struct Caller {
  int32_t ordinal = 0;
  const void* letters = nullptr;  // of rank 0: its shared pointer
};

}  // namespace

uint64_t ApartCommunicator::Letters::Keep(const void* data, int64_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(data);
  std::vector<uint8_t> copy(begin, begin + bytes);
  const std::lock_guard lock(mutex_);
  undelivered_.emplace(next_, std::move(copy));
  return next_++;
}

void ApartCommunicator::Letters::Take(uint64_t number, void* data, int64_t bytes) {
  std::vector<uint8_t> letter;
  {
    const std::lock_guard lock(mutex_);
    const auto found = undelivered_.find(number);
    HEDDLE_CHECK(found != undelivered_.end(), "a message is received once");
    letter = std::move(found->second);
    undelivered_.erase(found);
  }
  HEDDLE_CHECK(static_cast<int64_t>(letter.size()) == bytes,
               "ranks disagree about the size of a message");
  std::memcpy(data, letter.data(), letter.size());
}

ApartCommunicator::ApartCommunicator(std::shared_ptr<Communicator> group,
                                     std::shared_ptr<Letters> letters)
    : group_(std::move(group)),
      letters_(std::move(letters)),
      sent_(static_cast<size_t>(group_->world())) {
  HEDDLE_CHECK(kPlaces > 2 * static_cast<size_t>(group_->world() + 2), "too few places");
}

bool ApartCommunicator::Post(const void* data, int64_t bytes, int32_t to) {
  Numbers& numbers = sent_[static_cast<size_t>(to)];
  uint64_t& place = numbers.places[numbers.next++ % kPlaces];
  place = letters_->Keep(data, bytes);
  return group_->Post(&place, sizeof(place), to);
}

bool ApartCommunicator::Recv(void* data, int64_t bytes, int32_t from) {
  uint64_t number = 0;
  if (!group_->Recv(&number, sizeof(number), from)) return false;
  letters_->Take(number, data, bytes);
  return true;
}

absl::StatusOr<std::shared_ptr<Communicator>> MeetWithinReach(int32_t ordinal,
                                                              std::shared_ptr<Communicator> group) {
  if (!group->shares_memory() || group->world() > kMaxPeers) return group;
  std::shared_ptr<ApartCommunicator::Letters> letters;
  if (group->rank() == 0) letters = std::make_shared<ApartCommunicator::Letters>();
  const Caller own = {.ordinal = ordinal, .letters = &letters};
  std::array<const void*, kMaxRanks> parts{};
  if (!group->Exchange(&own, sizeof(own), sizeof(own), parts)) return WhyAborted(*group);
  const auto world = static_cast<size_t>(group->world());
  const auto said = [&](size_t r) { return *static_cast<const Caller*>(parts[r]); };
  if (group->rank() != 0) {
    letters = *static_cast<const std::shared_ptr<ApartCommunicator::Letters>*>(said(0).letters);
  }
  bool reach = true;
  for (size_t from = 0; from < world; ++from) {
    for (size_t to = 0; to < world; ++to) {
      const int32_t a = said(from).ordinal, b = said(to).ordinal;
      reach = reach && (a == b || CanReach(a, b));
    }
  }
  if (!group->Barrier()) return WhyAborted(*group);  // the introductions were read
  if (reach) return group;
  return std::make_shared<ApartCommunicator>(std::move(group), std::move(letters));
}

}  // namespace heddle::kernels::cuda
