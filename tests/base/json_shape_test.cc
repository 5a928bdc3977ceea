#include "base/json_shape.h"

#include <string>

#include "catch2/catch.hpp"

namespace heddle {
namespace {

using base::FindExcess;
using Excess = base::JsonShape::Excess;

TEST_CASE("Depth and members are counted outside strings", "[unit]") {
  CHECK(FindExcess(R"({"a":[1,{"b":2}]})", 3, 1).excess == Excess::kNone);
  const base::JsonShape deep = FindExcess(R"({"a":[1,{"b":2}]})", 2, 1);
  CHECK(deep.excess == Excess::kDepth);
  CHECK(deep.offset == 8);
  const base::JsonShape wide = FindExcess(R"({"a":1,"b":2,"c":3})", 3, 2);
  CHECK(wide.excess == Excess::kMembers);
  CHECK(wide.offset == 12);
  // Arrays may be long, and an object within one has its own count.
  CHECK(FindExcess(R"([1,2,3,4,{"a":1},{"b":2}])", 2, 1).excess == Excess::kNone);
  // Strings hide brackets and commas; an escaped quote does not end one.
  CHECK(FindExcess(R"({"a":"[[[{,,,\"[[["})", 1, 1).excess == Excess::kNone);
}

TEST_CASE("The shape of what is no JSON harms nothing", "[unit]") {
  for (const char* text : {"", "]]]]", "}{", "\"", "\"\\", "{,,", "[{]}"}) {
    INFO(text);
    CHECK(FindExcess(text, 4, 4).excess == Excess::kNone);
  }
  CHECK(FindExcess(std::string(1 << 20, '['), 64, 64).offset == 64);
}

}  // namespace
}  // namespace heddle
