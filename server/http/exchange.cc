#include "server/http/exchange.h"

#include <chrono>

#include "absl/strings/str_format.h"
#include "server/request/api_error.h"

namespace heddle::server {

std::string_view OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kSuccess:
      return "success";
    case Outcome::kClientError:
      return "client_error";
    case Outcome::kServerError:
      return "server_error";
    case Outcome::kRejected:
      return "rejected";
    case Outcome::kCancelled:
      return "cancelled";
  }
  return "server_error";
}

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kConnection:
      return "connection";
    case Refusal::kIdle:
      return "idle";
    case Refusal::kSlowHeader:
      return "slow_header";
    case Refusal::kSlowBody:
      return "slow_body";
    case Refusal::kBodyMemory:
      return "body_memory";
    case Refusal::kOutOfMemory:
      return "out_of_memory";
    case Refusal::kGrpcResets:
      return "grpc_resets";
    case Refusal::kGrpcFlood:
      return "grpc_flood";
    case Refusal::kGrpcFrame:
      return "grpc_frame";
    case Refusal::kGrpcMemory:
      return "grpc_memory";
    case Refusal::kGrpcCalls:
      return "grpc_calls";
    case Refusal::kHttp2Resets:
      return "http2_resets";
    case Refusal::kHttp2Flood:
      return "http2_flood";
    case Refusal::kHttp2Frame:
      return "http2_frame";
  }
  return "other";
}

bool IsOverdue(Clock::duration age, Clock::duration limit) {
  return limit != Clock::duration::zero() && age >= limit;
}

absl::Status OverdueError(Clock::duration limit) {
  return WithCode(absl::DeadlineExceededError(absl::StrFormat(
                      "the request took longer than the %.3g s that this server allows",
                      std::chrono::duration<double>(limit).count())),
                  "request_timeout");
}

Outcome OutcomeOf(const RequestRecord& record, bool cancelled) {
  if (cancelled) return Outcome::kCancelled;
  if (record.failed_midway) return Outcome::kServerError;
  if (record.status == 429 || record.status == 503) return Outcome::kRejected;
  if (record.status >= 500) return Outcome::kServerError;
  return record.status >= 400 ? Outcome::kClientError : Outcome::kSuccess;
}

}  // namespace heddle::server
