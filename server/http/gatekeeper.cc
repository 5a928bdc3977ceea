#include "server/http/gatekeeper.h"

#include <memory>
#include <string_view>

#include "base/status.h"
#include "server/http/page_origin.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

absl::StatusOr<uint64_t> CheckKey(const ServerContext& server, const Route& route,
                                  const HttpRequest& request) {
  const std::shared_ptr<const AccessTable::Snapshot> keys = server.access.current();
  if (keys->empty()) return 0;
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view given = request.Header("Authorization");
  if (EqualsIgnoringCase(given.substr(0, kBearer.size()), kBearer)) {
    given.remove_prefix(kBearer.size());
  } else {
    given = request.Header("X-Api-Key");                   // of Anthropic's clients
    if (given.empty()) given = request.Header("api-key");  // of Azure's
  }
  const AccessTable::Entry* entry = keys->Find(given);
  // With admin keys only, every client may ask, except for what needs such a key.
  const bool open = !route.needs_admin && !keys->has_ordinary();
  if (entry == nullptr && !open) {
    return WithCode(
        absl::UnauthenticatedError(
            given.empty() ? "this server needs an API key: send 'Authorization: Bearer KEY'"
                          : "the API key that was sent is none of this server's"),
        "invalid_api_key");
  }
  if (route.needs_admin && !entry->key.admin) {
    return absl::PermissionDeniedError(
        "this shows more than one client's requests and needs an admin key (--admin-key, or "
        "`admin` in the key file)");
  }
  return entry == nullptr ? 0 : entry->tenant;
}

// The key may have been taken away since the client asked for what the server does now.
absl::StatusOr<uint64_t> CheckOwner(const ServerContext& server, uint64_t tenant) {
  const std::shared_ptr<const AccessTable::Snapshot> keys = server.access.current();
  const bool may =
      tenant == 0 ? keys->empty() || !keys->has_ordinary() : keys->OfTenant(tenant) != nullptr;
  if (may) return tenant;
  return WithCode(absl::UnauthenticatedError("the API key that this belongs to was taken away"),
                  "invalid_api_key");
}

}  // namespace

absl::StatusOr<uint64_t> CheckSender(const ServerContext& server, const Route& route,
                                     const HttpRequest& request) {
  if (request.sender.has_value()) return CheckOwner(server, *request.sender);
  uint64_t tenant = 0;
  if (route.needs_key) {
    HEDDLE_ASSIGN_OR_RETURN(tenant, CheckKey(server, route, request));
  }
  // A request with a key comes from a page that knows it: browsers add none by themselves.
  if (tenant == 0) {
    HEDDLE_RETURN_IF_ERROR(
        CheckPageOrigin(request, server.options.cors_origin, IsLoopback(server.options.host)));
  }
  return tenant;
}

absl::Status Admit(const ServerContext& server, uint64_t tenant, const HttpRequest& request,
                   RequestRecord* record) {
  const auto enter = [record, &request](const std::shared_ptr<KeyAccount>& account) {
    absl::Status status = account->Admit(request.received);
    if (status.ok()) record->accounts.push_back(account);
    account->AppendHeaders(request.received, &record->answer_headers);
    return status;
  };
  if (tenant > 0) {
    const std::shared_ptr<const AccessTable::Snapshot> keys = server.access.current();
    const AccessTable::Entry* entry = keys->OfTenant(tenant);
    if (entry == nullptr) return absl::UnauthenticatedError("this API key was just taken away");
    record->key_name = entry->key.name;
    record->weight = entry->key.weight;
    HEDDLE_RETURN_IF_ERROR(enter(entry->account));
  }
  // Requests in the background have a limit of their own, and take no places of clients.
  if (request.sender.has_value()) return absl::OkStatus();
  return enter(server.everyone);
}

}  // namespace heddle::server
