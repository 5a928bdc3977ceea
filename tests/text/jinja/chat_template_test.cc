// Cases that features.json cannot express: limits, lines of errors, time, key order, threads.
#include "engine/text/jinja/chat_template.h"

#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"

namespace heddle::engine::text {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> Render(const std::string& source, const Json& context = Json::object(),
                                   TemplateLimits limits = {}) {
  auto parsed = ChatTemplate::Parse(source, {.limits = limits, .now = nullptr});
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(context);
}

std::string ErrorOf(const std::string& source, const Json& context = Json::object()) {
  absl::StatusOr<std::string> text = Render(source, context);
  INFO(source.substr(0, 200));
  REQUIRE_FALSE(text.ok());
  return std::string(text.status().message());
}

std::string Repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST_CASE("Errors carry the line of the expression that failed", "[text][unit]") {
  CHECK(ErrorOf("one\n{{ 1 }}\n{% if true %}\n  {{ missing.x }}\n{% endif %}") ==
        "line 4: 'missing' is undefined");
  CHECK(ErrorOf("\n\n{{ 1 + }}") == "line 3: expected an expression, got '}}'");
  CHECK(ErrorOf("{#\n\n#}\n{{ 'a\nb' ~\n missing.x }}") == "line 6: 'missing' is undefined");
  // In a macro, the macro's line and not the caller's.
  CHECK(ErrorOf("{% macro f() %}\n{{ 1 / 0 }}{% endmacro %}\n\n{{ f() }}") ==
        "line 2: division by zero");
  CHECK(ErrorOf("a\n{% if x %}\nb") ==
        "line 3: expected the tag 'elif' or 'else' or 'endif', got the end of the template");
}

TEST_CASE("raise_exception refuses with the template's own words", "[text][unit]") {
  absl::StatusOr<std::string> text = Render("\n{{ raise_exception('roles must alternate') }}");
  CHECK(absl::IsInvalidArgument(text.status()));
  CHECK(text.status().message() == "line 2: roles must alternate");
}

TEST_CASE("Keys keep the order in which the request gave them", "[text][unit]") {
  Json context = Json::parse(R"({"tools": [{"z": 1, "a": {"y": 2, "b": 3}}]})");
  CHECK(*Render("{{ tools[0] | tojson }}", context) == R"({"z": 1, "a": {"y": 2, "b": 3}})");
}

TEST_CASE("strftime_now formats the time that the caller injects", "[text][unit]") {
  auto now = [] {
    std::tm time{};
    time.tm_year = 124;
    time.tm_mon = 6;
    time.tm_mday = 26;
    time.tm_hour = 9;
    time.tm_wday = 5;
    return time;
  };
  auto parsed = ChatTemplate::Parse(
      "{{ strftime_now('%d %b %Y, %A %H:%M') }}|"
      "{{ strftime_now('') }}",
      {.limits = {}, .now = now});
  REQUIRE(parsed.ok());
  CHECK(*(*parsed)->Render(Json::object()) == "26 Jul 2024, Friday 09:00|");
}

TEST_CASE("A template tells which variables it mentions", "[text][unit]") {
  auto parsed = ChatTemplate::Parse(
      "{% for m in messages %}{{ m.tools }}{% endfor %}"
      "{% if enable_thinking is defined %}x{% endif %}");
  REQUIRE(parsed.ok());
  CHECK((*parsed)->mentions("messages"));
  CHECK((*parsed)->mentions("enable_thinking"));
  CHECK_FALSE((*parsed)->mentions("tools"));  // an attribute of something else
  CHECK_FALSE((*parsed)->mentions("loop"));
}

TEST_CASE("A context that is no object is refused", "[text][unit]") {
  CHECK(absl::IsInvalidArgument(Render("x", Json::array()).status()));
  Json deep = 1;
  for (int i = 0; i < 200; ++i) deep = Json::array({deep});
  CHECK(absl::IsInvalidArgument(Render("{{ x }}", Json{{"x", deep}}).status()));
  CHECK(*Render("unused is not even converted", Json{{"x", deep}}) ==
        "unused is not even converted");
}

TEST_CASE("Text that is not UTF-8 breaks nothing", "[text][unit]") {
  CHECK_FALSE(ChatTemplate::Parse("a\xff").ok());
  Json context = {{"s", "a\xff\xc3z"}};
  CHECK(*Render("{{ s | length }} {{ s[0] }}{{ s[3] }}", context) == "4 az");
  CHECK(Render("{{ s | upper }}{{ s[::-1] }}{{ s.split() }}{{ s | tojson }}", context).ok());
}

TEST_CASE("Templates that nest too deep or are too large fail to parse", "[text][unit]") {
  CHECK(ErrorOf("{{ " + Repeat("(", 5000) + "1" + Repeat(")", 5000) + " }}").find("nests deeper") !=
        std::string::npos);
  CHECK(ErrorOf("{{ " + Repeat("[", 5000) + Repeat("]", 5000) + " }}").find("nests deeper") !=
        std::string::npos);
  CHECK(ErrorOf(Repeat("{% if 1 %}", 5000)).find("nests deeper") != std::string::npos);
  CHECK(ErrorOf("{{ " + Repeat("not ", 5000) + "1 }}").find("nests deeper") != std::string::npos);
  CHECK(ErrorOf("{{ " + Repeat("-", 5000) + "1 }}").find("nests deeper") != std::string::npos);
  CHECK(ErrorOf("{{ 1" + Repeat(" + 1", 5000) + " }}").find("levels of operators") !=
        std::string::npos);
  CHECK(ErrorOf("{{ x" + Repeat(".a", 5000) + " }}").find("levels of operators") !=
        std::string::npos);
  CHECK(ErrorOf("{{ x" + Repeat("|trim", 5000) + " }}").find("levels of operators") !=
        std::string::npos);
  CHECK(ErrorOf("{{ 1" + Repeat(" if 1 else 1", 5000) + " }}").find("deeper") != std::string::npos);
  CHECK(ErrorOf("{% set " + Repeat("(", 500) + "a" + Repeat(")", 500) + " = 1 %}")
            .find("nests deeper") != std::string::npos);
  CHECK(ErrorOf(Repeat("x", (1 << 20) + 1)).find("at most 1048576") != std::string::npos);
  CHECK(Render("{{ 1" + Repeat(" ~ 1", 5000) + " }}").ok());  // one flat node
}

TEST_CASE("An endless or exploding template ends in RESOURCE_EXHAUSTED", "[text][unit]") {
  const char* templates[] = {
      // Endless work.
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
      // Memory.
      "{{ 'x' * 10000000000 }}",
      "{{ [1] * 10000000000 }}",
      "{{ 'x' * 9223372036854775807 }}",
      "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}"
      "{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{{ 'x'.ljust(100000000000) }}",
      "{{ 'x' | indent(100000000000) }}",
      "{% set s = 'x' * 100000 %}{{ s.replace('x', s).replace('x', s) }}",
      "{% set s = 'x' * 1000000 %}{{ s.join(range(100000) | map('string')) }}",
      "{% set s = 'x' * 10000000 %}{{ s.split('x') | length }}",
      "{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}",
      "{% set s = '{0}' * 10000 %}{{ s.format('y' * 1000000) }}",
      // Values that nest without end.
      "{% set ns = namespace(l=[]) %}{% for i in range(50000) %}{% set ns.l = [ns.l] %}{% endfor %}"
      "{{ ns.l }}",
      "{% set ns = namespace(l=[], m=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}"
      "{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"
      "{{ ns.l | tojson }}",
      "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}",
      // Work hidden in operations.
      "{% set s = 'a' * 8000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% "
      "endfor %}",
      "{% set s = 'a' * 8000000 %}{% set t = 'a' * 8000000 %}{% for i in range(100000) %}"
      "{% if s == t %}{% endif %}{% endfor %}",
      "{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{{ s.rfind('b' * 2000000) }}{% "
      "endfor %}",
      "{% set s = 'a' * 8000000 %}{% for i in range(100000) %}{{ s | length }}{% endfor %}",
      "{% for i in range(100000) %}{{ range(100000) | sum }}{% endfor %}",
      "{% for i in range(100000) %}{{ range(100000) | list | length }}{% endfor %}",
  };
  TemplateLimits limits;  // a tenth of the default ones, to save the tests' time
  limits.max_steps /= 10;
  limits.max_built_bytes = 64u << 20;
  for (const char* source : templates) {
    INFO(source);
    absl::Status status = Render(source, Json::object(), limits).status();
    INFO(status.ToString());
    CHECK(absl::IsResourceExhausted(status));
    CHECK(std::string(status.message()).starts_with("line 1: "));
  }
}

TEST_CASE("Each limit is where its field says", "[text][unit]") {
  TemplateLimits limits;
  limits.max_output_bytes = 10;
  CHECK(Render("{{ 'x' * 10 }}", Json::object(), limits).ok());
  CHECK(absl::IsResourceExhausted(Render("{{ 'x' * 11 }}", Json::object(), limits).status()));
  limits = {};
  limits.max_source_bytes = 3;
  CHECK(Render("abc", Json::object(), limits).ok());
  CHECK_FALSE(Render("abcd", Json::object(), limits).ok());
  limits = {};
  limits.max_steps = 100;
  CHECK(Render("{% for i in range(20) %}x{% endfor %}", Json::object(), limits).ok());
  CHECK_FALSE(Render("{% for i in range(100) %}x{% endfor %}", Json::object(), limits).ok());
}

TEST_CASE("Many threads render one template at once", "[text][unit]") {
  auto parsed = ChatTemplate::Parse(
      "{% macro say(m) %}<{{ m.role | upper }}>{{ m.content }}{% endmacro %}"
      "{% for m in messages %}{{ say(m) }}{% endfor %}");
  REQUIRE(parsed.ok());
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      Json context = {{"messages", {{{"role", "user"}, {"content", std::to_string(t)}}}}};
      for (int i = 0; i < 200; ++i) results[t] = *(*parsed)->Render(context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < results.size(); ++t) CHECK(results[t] == "<USER>" + std::to_string(t));
}

}  // namespace
}  // namespace heddle::engine::text
