#include "config/suggest.h"

#include "catch2/catch.hpp"

namespace heddle::config {
namespace {

TEST_CASE("A mistyped name finds the nearest, a foreign one nothing", "[config][unit]") {
  constexpr std::string_view names[] = {"port", "host", "max-queue", "max-context"};
  CHECK(Nearest("prot", names) == "port");
  CHECK(Nearest("max-quue", names) == "max-queue");
  CHECK(Nearest("maxcontext", names) == "max-context");
  CHECK(Nearest("temperature", names).empty());
  CHECK(Nearest("x", names).empty());
  CHECK(Nearest(std::string(100000, 'p'), names).empty());
}

}  // namespace
}  // namespace heddle::config
