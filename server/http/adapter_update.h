// The routes that load and unload adapters while the server runs. Private to server/http/.
//
// They are refused unless the operator allows them (--allow-lora-updates), and need an admin key
// where there are keys (router.h). A load goes on if its client leaves.
#pragma once

#include <memory>

#include "server/http/preparation.h"

namespace heddle::server {

bool IsAdapterUpdate(RouteId id);

// REQUIRES: IsAdapterUpdate(parts.route).
std::unique_ptr<Preparation> MakeAdapterUpdate(PreparationParts parts);

}  // namespace heddle::server
