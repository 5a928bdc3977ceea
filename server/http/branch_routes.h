// The routes below /v1/branches. Private to server/http/.
#pragma once

#include <memory>

#include "server/http/preparation.h"

namespace heddle::server {

bool IsBranchRoute(RouteId id);

// UNIMPLEMENTED: the operator has turned branches off.
absl::Status NoBranches();

// REQUIRES: IsBranchRoute(parts.route).
std::unique_ptr<Preparation> MakeBranchPreparation(PreparationParts parts);

}  // namespace heddle::server
