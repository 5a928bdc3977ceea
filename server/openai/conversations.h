// The routes of /v1/conversations, by their bodies and the store.
// Source: OpenAI's API reference, "Conversations".
// Thread-safety: any thread; the stores have locks of their own. Errors are the API's: NOT_FOUND
// for another owner's ids, INVALID_ARGUMENT names the field.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/conversation_store.h"
#include "server/openai/request_context.h"
#include "server/request/query_fields.h"

namespace heddle::server {

// Stores, owner and ids that all of these functions need.
struct ConversationAccess {
  ConversationStore* store = nullptr;
  ResponseStore* responses = nullptr;  // where items are that others refer to
  uint64_t tenant = 0;
  std::string unique;   // makes new ids unique
  int64_t created = 0;  // now; seconds since 1970
};

// Each returns the answer's body. NOT_FOUND: there is no such conversation of that owner, or no
// such item; INVALID_ARGUMENT names the field at fault.
absl::StatusOr<std::string> CreateConversation(std::string_view body, const RequestContext& context,
                                               const ConversationAccess& access);
absl::StatusOr<std::string> DescribeConversation(std::string_view id,
                                                 const ConversationAccess& access);
absl::StatusOr<std::string> UpdateConversation(std::string_view id, std::string_view body,
                                               const RequestContext& context,
                                               const ConversationAccess& access);
absl::StatusOr<std::string> DeleteConversation(std::string_view id,
                                               const ConversationAccess& access);
absl::StatusOr<std::string> ListConversationItems(std::string_view id,
                                                  std::span<const QueryParameter> query,
                                                  const ConversationAccess& access);
absl::StatusOr<std::string> AddConversationItems(std::string_view id, std::string_view body,
                                                 const RequestContext& context,
                                                 const ConversationAccess& access);
absl::StatusOr<std::string> DescribeConversationItem(std::string_view id, std::string_view item,
                                                     const ConversationAccess& access);
absl::StatusOr<std::string> DeleteConversationItem(std::string_view id, std::string_view item,
                                                   const ConversationAccess& access);

}  // namespace heddle::server
