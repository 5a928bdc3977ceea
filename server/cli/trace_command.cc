// `heddle trace`: asks a running server what happened to a request.
#include "base/message.h"
#include "base/status.h"
#include "server/cli/command.h"
#include "server/cli/http_get.h"
#include "server/cli/standard_io.h"
#include "server/cli/trace_view.h"

namespace heddle::server {
namespace {

using base::StrCat;

constexpr std::chrono::seconds kTimeout{10};

absl::Status WhyRefused(const HttpAnswer& answer, const config::Config& config) {
  std::string message =
      StrCat(config.url, " answers ", answer.status, ": ", ErrorMessage(answer.body));
  const bool needs_key = answer.status == 401 || answer.status == 403;
  if (needs_key) message += "; --admin-key gives the server's admin key";
  return absl::FailedPreconditionError(message);
}

}  // namespace

absl::Status RunTrace(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(const HttpAddress address, ParseHttpAddress(config.url));
  std::string path = "/debug/requests";
  const bool all = config.request_id.empty();
  if (!all) path += StrCat("/", PercentEncoded(config.request_id));
  const std::string key = config.admin_key.empty() ? std::string() : config.admin_key.front();
  HEDDLE_ASSIGN_OR_RETURN(const HttpAnswer answer, HttpGet(address, path, key, kTimeout));
  if (answer.status != 200) return WhyRefused(answer, config);
  std::string text = answer.body + "\n";
  if (!config.json) {
    HEDDLE_ASSIGN_OR_RETURN(text, all ? RequestListText(answer.body) : TimelineText(answer.body));
  }
  HEDDLE_RETURN_IF_ERROR(WriteOut(text));
  return FlushOut();
}

}  // namespace heddle::server
