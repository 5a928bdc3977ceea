#include "base/utf8.h"

#include "catch2/catch.hpp"

namespace heddle {
namespace {

TEST_CASE("Only well-formed UTF-8 is valid", "[unit]") {
  CHECK(base::IsValidUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8E\x89"));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xFF"}) {
    CHECK_FALSE(base::IsValidUtf8(bad));
  }
  CHECK(base::CountCodePoints("a\xC3\xA9\xF0\x9F\x8E\x89") == 3);
}

TEST_CASE("Ill-formed parts are told from unfinished ones", "[text][unit]") {
  // Unicode 15, table 3-8: E1 80 E2 F0 91 92 F1 BF 41 has four maximal subparts before 41.
  CHECK(base::ReplaceInvalidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") ==
        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41");
  CHECK(base::ClassifyUtf8("\xF0\x91\x92").kind == base::Utf8Kind::kIncomplete);
  CHECK(base::ClassifyUtf8("\xED\xA0\x80").kind == base::Utf8Kind::kInvalid);  // a surrogate
}

}  // namespace
}  // namespace heddle
