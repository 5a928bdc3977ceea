#include "server/http/request_guard.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <typeinfo>

namespace heddle::server {
namespace {

std::string CurrentType() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "unknown";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return name == nullptr ? type->name() : name.get();
}

bool MemoryEnded() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

absl::Status CaughtException(const HttpDependencies& server, std::string_view place,
                             std::string_view request_id) noexcept {
  const bool memory_ended = MemoryEnded();
  server.metrics->CountRequestException();
  try {
    server.log->Error("an exception ended a request",
                      {{"place", place}, {"type", CurrentType()}, {"request_id", request_id}});
    if (memory_ended) {
      return absl::UnavailableError(
          "the server has no memory for this request now; send it again later, or a smaller one");
    }
    return absl::InternalError("the server failed at this request; its log has a line about it");
  } catch (...) {  // no memory for a message: a status without one needs none
    return {memory_ended ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal, ""};
  }
}

}  // namespace heddle::server
