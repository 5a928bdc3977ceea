// Bytes as a request of the HTTP API: which route, which of its fields, and a value for each that
// its type allows, nearly allows, or does not. The same bytes are always the same request; bytes
// that are no use as choices are text.
#pragma once

#include <string>
#include <string_view>

namespace heddle::test {

struct FuzzedRequest {
  std::string method;
  std::string path;
  std::string query;
  std::string body;
};

FuzzedRequest MakeRequest(std::string_view bytes);

}  // namespace heddle::test
