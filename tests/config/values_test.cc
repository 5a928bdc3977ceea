#include "config/values.h"

#include <span>
#include <string>

#include "catch2/catch.hpp"
#include "config/option.h"

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

TEST_CASE("Each name of an enumeration sets the value of that name", "[config][unit]") {
  const auto set = [](const char* name, const std::string& text) {
    Config config;
    const absl::Status status = SetOption(*FindOption(name), std::span(&text, 1), name, &config);
    INFO(status.message());
    REQUIRE(status.ok());
    CHECK(ValueText(name, config) == text);
    return config;
  };
  CHECK_FALSE(set("prefix-cache", "off").prefix_cache);
  CHECK(set("prefix-cache", "on").prefix_cache);
  CHECK(set("prefix-cache-scope", "auto").prefix_cache_scope == PrefixCacheScope::kAuto);
  CHECK(set("prefix-cache-scope", "key").prefix_cache_scope == PrefixCacheScope::kKey);
  CHECK(set("prefix-cache-scope", "all").prefix_cache_scope == PrefixCacheScope::kAll);
  CHECK(set("pooling", "auto").pooling == Pooling::kAuto);
  CHECK(set("pooling", "last").pooling == Pooling::kLast);
  CHECK(set("pooling", "mean").pooling == Pooling::kMean);
  CHECK(set("pooling", "first").pooling == Pooling::kFirst);
  CHECK(set("reasoning-field", "reasoning_content").reasoning_field ==
        ReasoningField::kReasoningContent);
  CHECK(set("reasoning-field", "reasoning").reasoning_field == ReasoningField::kReasoning);
  CHECK(set("reasoning-field", "both").reasoning_field == ReasoningField::kBoth);
  CHECK(set("reasoning-field", "none").reasoning_field == ReasoningField::kNone);
  CHECK(set("max-tokens-overflow", "clamp").max_tokens_overflow == MaxTokensOverflow::kClamp);
  CHECK(set("max-tokens-overflow", "error").max_tokens_overflow == MaxTokensOverflow::kError);
  CHECK(set("unknown-fields", "ignore").unknown_fields == UnknownFields::kIgnore);
  CHECK(set("unknown-fields", "error").unknown_fields == UnknownFields::kError);
  CHECK(set("schema-unsupported", "warn").schema_unsupported == SchemaUnsupported::kWarn);
  CHECK(set("schema-unsupported", "refuse").schema_unsupported == SchemaUnsupported::kRefuse);
  CHECK(set("log-level", "debug").log_level == LogLevel::kDebug);
  CHECK(set("log-level", "info").log_level == LogLevel::kInfo);
  CHECK(set("log-level", "warning").log_level == LogLevel::kWarning);
  CHECK(set("log-level", "error").log_level == LogLevel::kError);
  CHECK(set("log-level", "off").log_level == LogLevel::kOff);
  CHECK(set("log-format", "text").log_format == LogFormat::kText);
  CHECK(set("log-format", "json").log_format == LogFormat::kJson);
  CHECK(set("metric-names", "heddle").metric_names == MetricNames::kHeddle);
  CHECK(set("metric-names", "vllm").metric_names == MetricNames::kVllm);
  CHECK(set("lengths", "fixed").lengths == LengthShape::kFixed);
  CHECK(set("lengths", "uniform").lengths == LengthShape::kUniform);
  CHECK(set("lengths", "exponential").lengths == LengthShape::kExponential);
  CHECK(set("lengths", "lognormal").lengths == LengthShape::kLognormal);
}

}  // namespace
}  // namespace heddle::config
