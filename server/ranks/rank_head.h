// The head's end of ranks that are processes of their own: takes them in over gRPC, gives them
// plans, and notices which of them is lost.
//
// Life: Start listens; RankMeeting's calls form the group and load it; then plans go out until
// End, or until a rank is lost: everybody who waits for it returns. Then OtherRanks::Regroup, which
// is called again and again, forms the group anew (an epoch) from the ranks that join again: those
// that are left keep their weights. If the lost rank has not come when RankSettings::rejoin is
// over, Failure says which one it was, and the group has ended for good. Before the group has
// begun, ranks may come and go. Thread-safety: End, Failure and port from any thread; the rest as
// RankMeeting.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/rank_meeting.h"
#include "server/log.h"
#include "server/ranks/local_groups.h"
#include "server/ranks/rank_identity.h"
#include "server/ranks/rank_settings.h"
#include "server/ranks/rank_tls.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace heddle::server {

struct RankHeadOptions {
  std::string host;
  uint16_t port = 0;  // 0: any
  RankTls tls;
  RankIdentity identity;
  RankSettings settings;
  std::vector<int> own_cpus;  // that rank 0 computes on; empty: all
  engine::RankMeans own_means;
  // With settings.head_ranks above 1: where rank 0 meets the other ranks of this process.
  std::shared_ptr<LocalGroups> local_groups;
};

class RankHead : public engine::RankMeeting {
 public:
  // Listens. `log` must outlive the result.
  static absl::StatusOr<std::shared_ptr<RankHead>> Start(const RankHeadOptions& options,
                                                         const Logger* log);
  virtual uint16_t port() const = 0;
  // To this head without a socket: for ranks of this process.
  virtual std::shared_ptr<grpc::Channel> OwnChannel() = 0;
  // A rank of this process has ended, and nobody can take its place: the group ends for good.
  virtual void End(const absl::Status& why) = 0;
  // Whether a rank is lost and the group is not whole again.
  virtual bool is_lost() const = 0;
  // OK until the group has ended for good: UNAVAILABLE, with rank, address, step and op.
  virtual absl::Status Failure() const = 0;
};

}  // namespace heddle::server
