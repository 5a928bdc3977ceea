#include "server/http/exchange.h"

namespace heddle::server {

Outcome OutcomeOf(const RequestRecord& record, bool cancelled) {
  if (cancelled) return Outcome::kCancelled;
  if (record.failed_midway) return Outcome::kServerError;
  if (record.status == 429 || record.status == 503) return Outcome::kRejected;
  if (record.status >= 500) return Outcome::kServerError;
  return record.status >= 400 ? Outcome::kClientError : Outcome::kSuccess;
}

}  // namespace heddle::server
