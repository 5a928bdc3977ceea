#include "engine/grammar/code_points.h"
#include "catch2/catch.hpp"

namespace heddle::engine::grammar {
namespace {

TEST_CASE("Ranges that touch or overlap become one", "[grammar][unit]") {
  const CodePointSet set{{U'a', U'c'}, {U'x', U'z'}, {U'd', U'f'}, {U'e', U'x'}};
  REQUIRE(set.ranges().size() == 1);
  CHECK(set.ranges()[0] == CodePointRange{U'a', U'z'});
}

TEST_CASE("A set and its complement share nothing and leave out only surrogates",
          "[grammar][unit]") {
  const CodePointSet set{{U'0', U'9'}, {0x3B1, 0x3C9}, {0xE000, kMaxCodePoint}};
  const CodePointSet rest = set.Complement();
  for (char32_t c = 0; c <= kMaxCodePoint; c += c < 0x400 ? 1 : 97) {
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    CHECK(int{set.Contains(c)} + int{rest.Contains(c)} == (surrogate ? 0 : 1));
  }
  CHECK(rest.Complement() == set);
}

TEST_CASE("Letters of one case bring those of the other", "[grammar][unit]") {
  const CodePointSet set = CodePointSet{{U'a', U'c'}, {U'Z', U'Z'}}.WithBothAsciiCases();
  CHECK(set == CodePointSet{{U'a', U'c'}, {U'A', U'C'}, {U'z', U'z'}, {U'Z', U'Z'}});
}

}  // namespace
}  // namespace heddle::engine::grammar
