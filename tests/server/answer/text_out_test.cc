// Text that leaves the server: JSON, log lines, errors.
#include <string>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "server/json_writer.h"
#include "server/log.h"
#include "server/request/api_error.h"

namespace heddle::test {
namespace {

using nlohmann::json;
using server::JsonWriter;
using server::LogFormat;
using server::LogLevel;

TEST_CASE("JSON strings survive every byte, broken UTF-8 as U+FFFD", "[openai]") {
  for (int byte = 0; byte < 256; ++byte) {
    std::string text = "a?b";
    text[1] = static_cast<char>(byte);
    std::string out;
    server::AppendJsonString(text, &out);
    std::string expected = byte < 128 ? text
                                      : "a\xEF\xBF\xBD"
                                        "b";
    CHECK(json::parse(out).get<std::string>() == expected);
  }
  std::string out;
  server::AppendJsonString("\xF0\x9F\x8E\x89\xED\xA0\x80", &out);  // an emoji, a lone surrogate
  CHECK(json::parse(out).get<std::string>() ==
        "\xF0\x9F\x8E\x89\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("The writer places commas and keeps numbers exact", "[openai]") {
  std::string out;
  JsonWriter writer(&out);
  writer.BeginObject().Key("a").BeginArray().Int(1).Int(-2).BeginObject().EndObject().EndArray();
  writer.Member("b", "x").NullMember("c").Key("d").Number(0.1f).Key("e").Bool(true);
  writer.Key("f").Number(1.0 / 0.0).EndObject();
  CHECK(out == R"({"a":[1,-2,{}],"b":"x","c":null,"d":0.1,"e":true,"f":null})");
}

TEST_CASE("Log lines stay one line, whatever they quote", "[openai]") {
  std::string text = server::FormatLogLine(
      LogFormat::kText, LogLevel::kInfo, "re\nquest",
      {{"path", "/a b\"\n"}, {"status", int64_t{200}}, {"ms", 1.5}, {"id", "req-1"}});
  CHECK(text == R"(re quest path="/a b\"\n" status=200 ms=1.5 id=req-1)");
  json line = json::parse(server::FormatLogLine(LogFormat::kJson, LogLevel::kWarning, "slow",
                                                {{"path", "/\n"}, {"n", int64_t{3}}}));
  CHECK(line == json{{"level", "warning"}, {"message", "slow"}, {"path", "/\n"}, {"n", 3}});
}

TEST_CASE("Statuses become OpenAI's errors", "[openai]") {
  auto status_of = [](const absl::Status& status) {
    return server::ToApiError(status).http_status;
  };
  CHECK(status_of(absl::InvalidArgumentError("x")) == 400);
  CHECK(status_of(absl::UnauthenticatedError("x")) == 401);
  CHECK(status_of(absl::NotFoundError("x")) == 404);
  CHECK(status_of(absl::ResourceExhaustedError("x")) == 429);
  CHECK(status_of(absl::InternalError("x")) == 500);
  CHECK(status_of(absl::UnavailableError("x")) == 503);
  CHECK(json::parse(server::ErrorJson(server::ToApiError(
            server::FieldError("messages[0].role", "no \"such\" role", "bad")))) ==
        json{{"error",
              {{"message", "no \"such\" role"},
               {"type", "invalid_request_error"},
               {"param", "messages[0].role"},
               {"code", "bad"}}}});
  CHECK(
      json::parse(server::ErrorJson(server::TransportError(404, "x")))["error"]["param"].is_null());
}

}  // namespace
}  // namespace heddle::test
