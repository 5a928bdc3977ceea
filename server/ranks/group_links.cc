#include "server/ranks/group_links.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/status.h"

namespace heddle::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRoundTrips = 21;
constexpr int64_t kBulkBytes = 1 << 20;
constexpr int kBulks = 3;
// They come when the head has all offers, and have nothing to load before; on GPUs that lock memory
// of the host, or connect over NCCL, some may take half a minute. Who is lost the head sees sooner.
constexpr std::chrono::milliseconds kPatience{60'000};

// Microseconds of the middle one of `count` calls that all ranks make; nullopt: one has failed.
template <typename Call>
std::optional<double> MedianUs(int count, const Call& call) {
  std::vector<double> us;
  for (int i = 0; i < count; ++i) {
    const Clock::time_point begin = Clock::now();
    if (!call()) return std::nullopt;
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::nth_element(us.begin(), us.begin() + count / 2, us.end());
  return us[static_cast<size_t>(count / 2)];
}

absl::StatusOr<LinkSpeed> Measure(kernels::Communicator& group) {
  const std::optional<double> empty_us = MedianUs(kRoundTrips, [&] { return group.Barrier(); });
  if (!empty_us.has_value()) return group.status();
  const std::vector<char> part(kBulkBytes);
  std::vector<const void*> parts(static_cast<size_t>(group.world()));
  const std::optional<double> bulk_us =
      MedianUs(kBulks, [&] { return group.Exchange(part.data(), kBulkBytes, kBulkBytes, parts); });
  if (!bulk_us.has_value()) return group.status();
  const double bits = 8.0 * kBulkBytes * (group.world() - 1);
  return LinkSpeed{.latency_us = *empty_us,
                   .gbit_s = bits / 1000 / std::max(*bulk_us - *empty_us, 1.0)};
}

// Whether the ranks from `first` on are all of this process.
bool IsFamily(const GroupPlace& place, int32_t first, int32_t count) {
  if (place.local == nullptr) return false;
  const std::span<const uint64_t> group =
      place.families.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  return group.front() != 0 && std::all_of(group.begin(), group.end(), [&](uint64_t family) {
           return family == group.front();
         });
}

}  // namespace

absl::StatusOr<JoinedGroups> JoinGroups(RankMesh& mesh, const RankSettings& settings,
                                        const GroupPlace& place, kernels::Device& device) {
  const engine::Layout& layout = settings.layout;
  const int32_t rank = place.rank;
  JoinedGroups joined;
  LinkSpeeds& speeds = joined.speeds;
  mesh.set_timeout(kPatience);
  const auto join = [&](int32_t first, int32_t step, int32_t count, std::optional<LinkSpeed>* speed)
      -> absl::StatusOr<std::shared_ptr<kernels::Communicator>> {
    std::vector<int32_t> members;
    members.reserve(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) members.push_back(first + i * step);
    std::shared_ptr<kernels::Communicator> group = mesh.Join(members, settings.wire);
    HEDDLE_ASSIGN_OR_RETURN(*speed, Measure(*group));
    return group;
  };
  const int32_t first = rank / layout.tp * layout.tp;  // of the stage
  if (layout.tp > 1 && IsFamily(place, first, layout.tp)) {
    joined.local = place.local->Join(place.key, first, layout.tp, rank - first, place.progress);
    HEDDLE_RETURN_IF_ERROR(device.JoinGroup(joined.local));
  } else if (layout.tp > 1) {
    HEDDLE_ASSIGN_OR_RETURN(auto group, join(first, 1, layout.tp, &speeds.group));
    HEDDLE_RETURN_IF_ERROR(device.JoinGroup(std::move(group)));
  }
  if (layout.pp > 1) {
    HEDDLE_ASSIGN_OR_RETURN(auto stages,
                            join(rank % layout.tp, layout.tp, layout.pp, &speeds.stages));
    HEDDLE_RETURN_IF_ERROR(device.JoinStages(std::move(stages)));
  }
  mesh.set_timeout(std::chrono::milliseconds(0));
  return joined;
}

}  // namespace heddle::server
