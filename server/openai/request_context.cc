#include "server/openai/request_context.h"

#include "absl/strings/cord.h"

namespace heddle::server {
namespace {

constexpr char kMark[] = "heddle/takes-long";  // type of a payload that no other status has

}  // namespace

absl::Status TakesLong() {
  absl::Status status = absl::CancelledError("this request takes long to read");
  status.SetPayload(kMark, absl::Cord());
  return status;
}

bool IsTakesLong(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

}  // namespace heddle::server
