#include "server/http/conversation_routes.h"

#include <string>
#include <utility>
#include <vector>

#include "server/http/response_routes.h"
#include "server/openai/conversations.h"

namespace heddle::server {

bool IsConversationRoute(RouteId id) {
  switch (id) {
    case RouteId::kCreateConversation:
    case RouteId::kConversation:
    case RouteId::kUpdateConversation:
    case RouteId::kDeleteConversation:
    case RouteId::kConversationItems:
    case RouteId::kAddConversationItems:
    case RouteId::kConversationItem:
    case RouteId::kDeleteConversationItem:
      return true;
    default:
      return false;
  }
}

MakeBody ConversationMaker(const PreparationParts& parts) {
  const RouteMatch match = MatchRoute(parts.request.method, parts.request.path);
  const ConversationAccess access{&parts.server->conversations, &parts.server->responses,
                                  parts.context.tenant, parts.identity.unique,
                                  parts.identity.created};
  return [access, route = parts.route, id = std::string(match.parameter),
          item = std::string(match.second_parameter), query = parts.request.query](
             std::string_view body, const RequestContext& context) -> absl::StatusOr<std::string> {
    switch (route) {
      case RouteId::kCreateConversation:
        return CreateConversation(body, context, access);
      case RouteId::kUpdateConversation:
        return UpdateConversation(id, body, context, access);
      case RouteId::kDeleteConversation:
        return DeleteConversation(id, access);
      case RouteId::kAddConversationItems:
        return AddConversationItems(id, body, context, access);
      case RouteId::kConversationItem:
        return DescribeConversationItem(id, item, access);
      case RouteId::kDeleteConversationItem:
        return DeleteConversationItem(id, item, access);
      case RouteId::kConversationItems: {
        std::vector<QueryParameter> parameters;
        if (!ParseQuery(query, &parameters)) return BrokenQuery();
        return ListConversationItems(id, parameters, access);
      }
      default:
        return DescribeConversation(id, access);
    }
  };
}

}  // namespace heddle::server
