// Any bytes on a connection, in pieces whose size is the first byte: the parser never keeps more
// than its limits, and what it accepts does not depend on the pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http/request_parser.h"

namespace heddle::test {
namespace {

using server::HttpRequest;
using server::RequestParser;

// The state at the end and, of a whole request, its body.
std::string Parse(std::string_view input, size_t piece) {
  RequestParser parser({/*max_header_bytes=*/2048, /*max_body_bytes=*/4096});
  std::string buffer;
  while (!input.empty() && parser.state() != RequestParser::State::kDone &&
         parser.state() != RequestParser::State::kFailed) {
    size_t length = std::min(piece, input.size());
    buffer.append(input.substr(0, length));
    input.remove_prefix(length);
    buffer.erase(0, parser.Feed(buffer));
  }
  if (parser.state() == RequestParser::State::kFailed) {
    HEDDLE_CHECK(parser.error_status() >= 400, "a failed parse has a status");
    return "failed";
  }
  if (parser.state() != RequestParser::State::kDone) return "unfinished";
  HttpRequest request = parser.TakeRequest();
  HEDDLE_CHECK(request.body.size() <= 4096, "the body's limit holds");
  return "done " + request.method + " " + request.path + " " + request.body;
}

}  // namespace
}  // namespace heddle::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string pieces = heddle::test::Parse(input, 1 + data[0]);
  std::string whole = heddle::test::Parse(input, input.size());
  // A limit may be met earlier or later; a request that is accepted must be the same.
  if (pieces.starts_with("done") && whole.starts_with("done")) {
    HEDDLE_CHECK(pieces == whole, "a request does not depend on how it is cut");
  }
  return 0;
}
