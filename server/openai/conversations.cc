#include "server/openai/conversations.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/openai/api_fields.h"
#include "server/openai/input_items.h"
#include "server/openai/request_parts.h"
#include "server/openai/response_messages.h"
#include "server/openai/response_tools.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

std::string ConversationJson(const Conversation& conversation) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", conversation.id).Member("object", "conversation");
  json.Member("created_at", conversation.created).Key("metadata").Raw(conversation.metadata);
  json.EndObject();
  return out;
}

absl::StatusOr<ConversationStore::Kept> FindConversation(std::string_view id,
                                                         const ConversationAccess& access) {
  ConversationStore::Kept kept = access.store->Get(id, access.tenant);
  if (kept == nullptr) return NoSuchConversation(id);
  return kept;
}

// Items of a body with ids, as they are kept; `present` come before them.
absl::StatusOr<ResponseItems> NewItems(const Json& given, const ResponseItems& present,
                                       const ConversationAccess& access) {
  for (size_t i = 0; i < given.size(); ++i) {
    if (TextOr(given[i], "type", "") != "item_reference") continue;
    const std::string path = base::StrCat("items[", i, "]");
    return FieldError(path, base::StrCat("'", path, "' must be an item, not a reference to one"));
  }
  const ResponseTools tools;
  const ItemSources sources{&tools, access.responses, access.tenant};
  const absl::Status checked = ResponseMessages(given, Json::array(), sources).status();
  constexpr Renamed kNames[] = {{"input", "items"}};
  if (!checked.ok()) return RenameFields(checked, kNames);
  const ResponseStore::Entry before{.body = "{}", .items = present};
  ResponseItems items = InputItems(given, access.unique, &before);
  items.erase(items.begin(), items.begin() + static_cast<ptrdiff_t>(present.size()));
  return items;
}

const ResponseItem* ItemOf(const Conversation& conversation, std::string_view id) {
  const auto found = std::find_if(conversation.items.begin(), conversation.items.end(),
                                  [id](const ResponseItem& item) { return item.id == id; });
  return found == conversation.items.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<std::string> CreateConversation(std::string_view body, const RequestContext& context,
                                               const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body.empty() ? "{}" : body));
  HEDDLE_ASSIGN_OR_RETURN(const auto fields,
                          CheckBody<fields::kNewConversation>(json, {}, context));
  Conversation conversation{.id = base::StrCat("conv_", access.unique),
                            .tenant = access.tenant,
                            .created = access.created};
  if (const Json* metadata = fields.Value<"metadata">()) conversation.metadata = metadata->dump();
  if (const Json* items = fields.Value<"items">()) {
    HEDDLE_ASSIGN_OR_RETURN(conversation.items, NewItems(*items, {}, access));
  }
  const std::string answer = ConversationJson(conversation);
  HEDDLE_RETURN_IF_ERROR(access.store->Put(std::move(conversation)));
  return answer;
}

absl::StatusOr<std::string> DescribeConversation(std::string_view id,
                                                 const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const ConversationStore::Kept kept, FindConversation(id, access));
  return ConversationJson(*kept);
}

absl::StatusOr<std::string> UpdateConversation(std::string_view id, std::string_view body,
                                               const RequestContext& context,
                                               const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body));
  HEDDLE_ASSIGN_OR_RETURN(const auto fields,
                          CheckBody<fields::kConversationMetadata>(json, {}, context));
  HEDDLE_ASSIGN_OR_RETURN(
      const ConversationStore::Kept kept,
      access.store->SetMetadata(id, access.tenant, fields.Value<"metadata">()->dump()));
  return ConversationJson(*kept);
}

absl::StatusOr<std::string> DeleteConversation(std::string_view id,
                                               const ConversationAccess& access) {
  if (!access.store->Erase(id, access.tenant)) return NoSuchConversation(id);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", id).Member("object", "conversation.deleted");
  json.Key("deleted").Bool(true).EndObject();
  return out;
}

absl::StatusOr<std::string> ListConversationItems(std::string_view id,
                                                  std::span<const QueryParameter> query,
                                                  const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const ConversationStore::Kept kept, FindConversation(id, access));
  return ListItems(kept->items, query);
}

absl::StatusOr<std::string> AddConversationItems(std::string_view id, std::string_view body,
                                                 const RequestContext& context,
                                                 const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(body));
  HEDDLE_ASSIGN_OR_RETURN(const auto fields,
                          CheckBody<fields::kConversationItems>(json, {}, context));
  HEDDLE_ASSIGN_OR_RETURN(const ConversationStore::Kept kept, FindConversation(id, access));
  HEDDLE_ASSIGN_OR_RETURN(const ResponseItems items,
                          NewItems(*fields.Value<"items">(), kept->items, access));
  HEDDLE_RETURN_IF_ERROR(access.store->Append(id, access.tenant, items).status());
  const QueryParameter in_order[] = {{"order", "asc"}};
  return ListItems(items, in_order);
}

absl::StatusOr<std::string> DescribeConversationItem(std::string_view id, std::string_view item,
                                                     const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const ConversationStore::Kept kept, FindConversation(id, access));
  const ResponseItem* found = ItemOf(*kept, item);
  if (found != nullptr) return found->json;
  return WithCode(absl::NotFoundError(base::StrCat("there is no item ", base::Quote(item))),
                  "item_not_found");
}

absl::StatusOr<std::string> DeleteConversationItem(std::string_view id, std::string_view item,
                                                   const ConversationAccess& access) {
  HEDDLE_ASSIGN_OR_RETURN(const ConversationStore::Kept kept,
                          access.store->EraseItem(id, access.tenant, item));
  return ConversationJson(*kept);
}

}  // namespace heddle::server
