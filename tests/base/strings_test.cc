#include "base/strings.h"

#include "catch2/catch.hpp"

namespace heddle {
namespace {

TEST_CASE("The edit distance counts swaps of neighbours once", "[unit]") {
  CHECK(base::EditDistance("", "abc") == 3);
  CHECK(base::EditDistance("kitten", "sitting") == 3);
  CHECK(base::EditDistance("prot", "port") == 1);
  CHECK(base::EditDistance("port", "port") == 0);
}

TEST_CASE("Sizes print for reading, or exactly", "[unit]") {
  CHECK(base::ShowBytes(0) == "0 B");
  CHECK(base::ShowBytes(1023) == "1023 B");
  CHECK(base::ShowBytes(1536) == "1.5 KiB");
  CHECK(base::ShowBytes(int64_t{3} << 40) == "3.0 TiB");
  CHECK(base::ShowBytes(int64_t{5} << 50) == "5120.0 TiB");
  CHECK(base::ExactBytes(8 << 20) == "8 MiB");
  CHECK(base::ExactBytes(1024) == "1 KiB");
  CHECK(base::ExactBytes(1000) == "1000 bytes");
  CHECK(base::ExactBytes(0) == "0 bytes");
}

TEST_CASE("Every copy of a text is replaced once, from the left", "[unit]") {
  CHECK(base::ReplaceAll("aaa", "aa", "b") == "ba");
  CHECK(base::ReplaceAll("a.b.c", ".", "..") == "a..b..c");
  CHECK(base::ReplaceAll("", "x", "y").empty());
  CHECK(base::ReplaceAll("abc", "x", "y") == "abc");
}

}  // namespace
}  // namespace heddle
