#include "config/values.h"

#include "catch2/catch.hpp"

namespace heddle::config {
namespace {

TEST_CASE("Sizes have binary and decimal units, with or without a space", "[config][unit]") {
  CHECK(ParseBytes("4096")->value == 4096);
  CHECK(ParseBytes("8MiB")->value == 8u * 1024 * 1024);
  CHECK(ParseBytes(" 1.5 GiB ")->value == 1610612736);
  CHECK(ParseBytes("500MB")->value == 500000000);
  CHECK(ParseBytes("2gib")->value == 2147483648);
}

TEST_CASE("A size that is none names the units", "[config][unit]") {
  for (const char* text : {"", "MiB", "8 parsecs", "-1", "1e3", "8G", "nan", "99999999TiB"}) {
    INFO(text);
    CHECK_FALSE(ParseBytes(text).ok());
  }
  CHECK(std::string(ParseBytes("8G").status().message()).find("GiB") != std::string::npos);
}

TEST_CASE("KV memory is automatic, a size, or a share of the free memory", "[config][unit]") {
  CHECK(ParseMemorySize("auto")->Resolve(1000, 0.5) == 500);
  CHECK(ParseMemorySize("60%")->Resolve(1000, 0.5) == 600);
  CHECK(ParseMemorySize("100 %")->Resolve(1000, 0.5) == 1000);
  CHECK(ParseMemorySize("4GiB")->Resolve(1000, 0.5) == uint64_t{4} << 30);
  for (const char* text : {"0", "0%", "101%", "-5%", "%", "half"}) {
    INFO(text);
    CHECK_FALSE(ParseMemorySize(text).ok());
  }
}

TEST_CASE("Times are seconds or carry a unit", "[config][unit]") {
  CHECK(ParseSeconds("30")->value == 30);
  CHECK(ParseSeconds("500ms")->value == Approx(0.5));
  CHECK(ParseSeconds("2m")->value == 120);
  CHECK(ParseSeconds("1 h")->value == 3600);
  CHECK_FALSE(ParseSeconds("-1").ok());
  CHECK_FALSE(ParseSeconds("1 fortnight").ok());
}

TEST_CASE("Whole numbers take no fractions, units or overflow", "[config][unit]") {
  CHECK(*ParseInteger("-12") == -12);
  CHECK(*ParseInteger("9223372036854775807") == INT64_MAX);
  for (const char* text : {"", "1.5", "12x", "0x10", "9223372036854775808"}) {
    INFO(text);
    CHECK_FALSE(ParseInteger(text).ok());
  }
}

TEST_CASE("Round sizes print with a unit, others as bytes", "[config][unit]") {
  CHECK(FormatBytes(8 << 20) == "8 MiB");
  CHECK(FormatBytes(1024) == "1 KiB");
  CHECK(FormatBytes(1000) == "1000 bytes");
}

}  // namespace
}  // namespace heddle::config
