#include "server/http/response_routes.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/http/background_responses.h"
#include "server/http/http_message.h"
#include "server/http/server_context.h"
#include "server/json_writer.h"
#include "server/openai/input_items.h"
#include "server/request/api_error.h"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

absl::Status NoSuchResponse(std::string_view id) {
  return WithCode(absl::NotFoundError(base::StrCat("there is no response ", base::Quote(id))),
                  "response_not_found");
}

absl::StatusOr<std::string> Forget(std::string_view id, uint64_t tenant, ServerContext* server) {
  const std::shared_ptr<ResponseLog> log = server->background->Find(id, tenant);
  if (log != nullptr) server->background->Erase(log);
  if (!server->responses.Erase(id, tenant) && log == nullptr) return NoSuchResponse(id);
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

// A response that runs is cancelled; one that was cancelled stays so.
absl::StatusOr<std::string> Cancel(std::string_view id, uint64_t tenant, ServerContext* server) {
  const std::shared_ptr<ResponseLog> log = server->background->Find(id, tenant);
  if (log == nullptr && server->responses.Get(id, tenant) == nullptr) return NoSuchResponse(id);
  if (log != nullptr) {
    server->background->Cancel(log);
    std::string body = log->body();
    if (TextOr(Json::parse(body), "status", "") == "cancelled") return body;  // our own text
  }
  return absl::InvalidArgumentError(base::StrCat(
      "the response ", base::Quote(id),
      " has ended: only one made with 'background' can be cancelled, while it runs. Closing the "
      "connection cancels a request that is in progress"));
}

absl::Status StillRuns(std::string_view id) {
  return absl::InvalidArgumentError(
      base::StrCat("the response ", base::Quote(id), " has not ended, or did not succeed"));
}

}  // namespace

absl::Status BrokenQuery() {
  return FieldError("", "the query has a '%' that two hexadecimal digits do not follow");
}

absl::StatusOr<std::string> AnswerAboutResponse(RouteId id, std::string_view response_id,
                                                uint64_t tenant, std::string_view query,
                                                ServerContext* server) {
  if (id == RouteId::kDeleteResponse) return Forget(response_id, tenant, server);
  if (id == RouteId::kCancelResponse) return Cancel(response_id, tenant, server);
  const std::shared_ptr<const ResponseStore::Entry> entry =
      server->responses.Get(response_id, tenant);
  if (entry == nullptr) {
    const bool runs = server->background->Find(response_id, tenant) != nullptr;
    return runs ? StillRuns(response_id) : NoSuchResponse(response_id);
  }
  if (id == RouteId::kInputItems) return ListInputItems(*entry, query);
  return entry->body;
}

}  // namespace heddle::server
