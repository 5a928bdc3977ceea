// The routes of /v1/conversations. Private to server/http/.
// Thread-safety: any thread; the store has a lock of its own.
#pragma once

#include "server/http/preparation.h"

namespace heddle::server {

bool IsConversationRoute(RouteId id);

// The function that answers such a request. REQUIRES: IsConversationRoute(parts.route);
// parts.server outlives the result.
MakeBody ConversationMaker(const PreparationParts& parts);

}  // namespace heddle::server
