// The routes of /v1/conversations. Private to server/http/.
#pragma once

#include "server/http/preparation.h"

namespace heddle::server {

bool IsConversationRoute(RouteId id);

// What answers such a request. REQUIRES: IsConversationRoute(parts.route); parts.server outlives
// the result.
MakeBody ConversationMaker(const PreparationParts& parts);

}  // namespace heddle::server
