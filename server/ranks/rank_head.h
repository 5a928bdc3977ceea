// The head's end of ranks that are processes of their own: takes them in over gRPC, gives them
// plans, and notices which of them is lost.
//
// Life: Start listens; RankMeeting's calls form the group and load it; then plans go out until
// End, or until a rank is lost. A lost rank ends the group for good: Failure says which one it was,
// and everybody who waits for it returns. Before the group has begun, ranks may come and go.
// Thread-safety: Failure and port from any thread; the rest as RankMeeting.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/rank_meeting.h"
#include "server/log.h"
#include "server/ranks/rank_identity.h"
#include "server/ranks/rank_settings.h"

namespace heddle::server {

struct RankHeadOptions {
  std::string host;
  uint16_t port = 0;  // 0: any
  RankIdentity identity;
  RankSettings settings;
};

class RankHead : public engine::RankMeeting {
 public:
  // Listens. `log` must outlive the result.
  static absl::StatusOr<std::shared_ptr<RankHead>> Start(const RankHeadOptions& options,
                                                         const Logger* log);
  virtual uint16_t port() const = 0;
  // OK until a rank is lost: UNAVAILABLE, with rank, address, step and op.
  virtual absl::Status Failure() const = 0;
};

}  // namespace heddle::server
