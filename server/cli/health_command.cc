// `heddle health`: reports by its exit code whether a running server makes progress.
#include "base/message.h"
#include "base/status.h"
#include "server/cli/command.h"
#include "server/cli/http_get.h"
#include "server/cli/standard_io.h"
#include "server/cli/trace_view.h"

namespace heddle::server {
namespace {

constexpr std::chrono::seconds kTimeout{5};

}  // namespace

absl::Status RunHealth(const config::Config& config) {
  HEDDLE_ASSIGN_OR_RETURN(const HttpAddress address, ParseHttpAddress(config.url));
  HEDDLE_ASSIGN_OR_RETURN(const HttpAnswer answer, HttpGet(address, "/health", "", kTimeout));
  if (answer.status != 200) {
    return absl::UnavailableError(
        base::StrCat(config.url, " answers ", answer.status, ": ", ErrorMessage(answer.body)));
  }
  HEDDLE_RETURN_IF_ERROR(WriteOut("ok\n"));
  return FlushOut();
}

}  // namespace heddle::server
