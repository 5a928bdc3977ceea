// The names of adapters, and the entries of --lora.
#include "server/adapters/adapter_names.h"

#include "catch2/catch.hpp"

namespace heddle::server {
namespace {

TEST_CASE("A name that could leave a folder is none of the folder's", "[server][unit]") {
  CHECK(IsFolderAdapterName("sql-expert_v2.1"));
  CHECK(IsFolderAdapterName("a:b@c"));
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "../x", "/etc", "a b", "a,b", "a=b",
                           "a\nb", "a\"b", "caf\xc3\xa9", "a\\b"}) {
    INFO(name);
    CHECK_FALSE(IsFolderAdapterName(name));
  }
  CHECK(IsAdapterName("org/adapter"));
  CHECK(IsAdapterName(std::string(200, 'x')));
  CHECK_FALSE(IsAdapterName(std::string(201, 'x')));
}

TEST_CASE("A number behind the last @ of --lora is a scale", "[server][unit]") {
  const std::vector<std::string> entries = {"a=/x@0.5", "b=/y", "c=/u@host/z", "d=/v@2/",
                                            "e=x@-1e1"};
  const auto parsed = ParseAdapterOptions(entries);
  REQUIRE(parsed.ok());
  CHECK((*parsed)[0].path == "/x");
  CHECK((*parsed)[0].scale == 0.5f);
  CHECK_FALSE((*parsed)[1].scale.has_value());
  CHECK((*parsed)[2].path == "/u@host/z");
  CHECK((*parsed)[3].path == "/v@2/");
  CHECK((*parsed)[4].scale == -10.0f);
  for (const char* wrong : {"a=/x@1e9", "a=/x@nan", "a=/x@-inf"}) {
    const std::vector<std::string> one = {wrong};
    INFO(wrong);
    CHECK(absl::IsInvalidArgument(ParseAdapterOptions(one).status()));
  }
}

TEST_CASE("--lora takes pairs of a name and a path, and no name twice", "[server][unit]") {
  const std::vector<std::string> two = {"a=/x/y", "b=rel=ative"};
  const auto parsed = ParseAdapterOptions(two);
  REQUIRE(parsed.ok());
  REQUIRE(parsed->size() == 2);
  CHECK((*parsed)[0].name == "a");
  CHECK((*parsed)[1].path == "rel=ative");
  for (const char* wrong : {"a", "=x", "a=", "a b=x"}) {
    const std::vector<std::string> one = {wrong};
    INFO(wrong);
    CHECK(absl::IsInvalidArgument(ParseAdapterOptions(one).status()));
  }
  const std::vector<std::string> same = {"a=/x", "a=/y"};
  CHECK(ParseAdapterOptions(same).status().message() == "--lora: the name \"a\" stands twice");
}

}  // namespace
}  // namespace heddle::server
