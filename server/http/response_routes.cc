#include "server/http/response_routes.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "server/http/http_message.h"
#include "server/json_writer.h"
#include "server/openai/input_items.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

absl::Status NoSuchResponse(std::string_view id) {
  return WithCode(absl::NotFoundError(base::StrCat("there is no response ", base::Quote(id))),
                  "response_not_found");
}

absl::StatusOr<std::string> Forget(std::string_view id, uint64_t tenant, ResponseStore* store) {
  if (!store->Erase(id, tenant)) return NoSuchResponse(id);
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("id", id).Member("object", "response");
  json.Key("deleted").Bool(true).EndObject();
  return out;
}

absl::StatusOr<std::string> ListInputItems(const ResponseStore::Entry& entry,
                                           std::string_view query) {
  std::vector<QueryParameter> parameters;
  if (!ParseQuery(query, &parameters)) {
    return BrokenQuery();
  }
  return ListItems(entry.items, parameters);
}

// Stored responses have already ended.
absl::Status CannotCancel(std::string_view id) {
  return absl::InvalidArgumentError(base::StrCat(
      "the response ", base::Quote(id),
      " has ended: only one made with 'background' could be cancelled, and this server makes none. "
      "Closing the connection cancels a request that is in progress"));
}

}  // namespace

absl::Status BrokenQuery() {
  return FieldError("", "the query has a '%' that two hexadecimal digits do not follow");
}

absl::StatusOr<std::string> AnswerAboutResponse(RouteId id, std::string_view response_id,
                                                uint64_t tenant, std::string_view query,
                                                ResponseStore* store) {
  if (id == RouteId::kDeleteResponse) return Forget(response_id, tenant, store);
  const std::shared_ptr<const ResponseStore::Entry> entry = store->Get(response_id, tenant);
  if (entry == nullptr) return NoSuchResponse(response_id);
  if (id == RouteId::kCancelResponse) return CannotCancel(response_id);
  if (id == RouteId::kInputItems) return ListInputItems(*entry, query);
  return entry->body;
}

}  // namespace heddle::server
