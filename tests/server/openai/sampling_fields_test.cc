// How requests say how tokens are drawn: the table of numbers, wherever it is read.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "config/option.h"
#include "engine/sampling_params.h"
#include "nlohmann/json.hpp"
#include "tests/server/openai/api_parser.h"

namespace heddle::test {
namespace {

TEST_CASE("heddle generate has an option for each number of the table, and no other", "[openai]") {
  std::map<std::string, const config::Option*> options;
  for (const config::Option& option : config::Options()) {
    if (!std::holds_alternative<config::NumbersByName config::Config::*>(option.field)) continue;
    CHECK(option.commands == config::kGenerate);
    options[config::UnderscoredName(option)] = &option;
  }
  for (const engine::SamplingNumber& number : engine::kSamplingNumbers) {
    INFO(number.name);
    const auto option = options.find(std::string(number.name));
    REQUIRE(option != options.end());
    CHECK(option->second->is_integer == number.is_integer());
    CHECK(option->second->max == number.maximum);
    // The interval of typical_p is open at its lower end, which the table cannot say.
    CHECK((option->second->min == number.minimum || number.name == "typical_p"));
    options.erase(option);
  }
  CHECK(options.empty());
}

using Json = nlohmann::ordered_json;

double Value(const engine::SamplingParams& params, const engine::SamplingNumber& number) {
  return number.is_integer() ? params.*std::get<1>(number.member)
                             : static_cast<double>(params.*std::get<0>(number.member));
}

TEST_CASE("Each number of the table is a field with its range, and reaches its parameter",
          "[openai]") {
  ApiParser parser;
  for (const engine::SamplingNumber& number : engine::kSamplingNumbers) {
    INFO(number.name);
    const auto member = [&number](const std::string& value) {
      return base::StrCat("\"", number.name, "\":", value);
    };
    const auto member_of = [&member](double value) { return member(Json(value).dump()); };
    // Half of the way up is set by none of the defaults, and exact in F32 for all of them.
    const double middle =
        std::floor(std::min(number.maximum, 100.0) * (number.is_integer() ? 0.5 : 16.0)) /
        (number.is_integer() ? 1.0 : 32.0);
    const auto set = parser.Chat(member_of(middle));
    CHECK(Value(set.generations.at(0).sampling, number) == middle);
    parser.Chat(member_of(number.maximum));
    parser.Chat(member("null"));
    for (const std::string& outside :
         {Json(number.minimum - 1).dump(), Json(number.maximum + 1).dump(), std::string("-1e300"),
          std::string("1e300")}) {
      const server::ApiError error = parser.ChatRefused(member(outside));
      CHECK(error.param == number.name);
      CHECK(error.code == "invalid_value");
    }
    for (const char* other : {"\"1\"", "[1]", "{}", "true"}) {
      const server::ApiError error = parser.ChatRefused(member(other));
      CHECK(error.param == number.name);
      CHECK(error.code == "invalid_type");
    }
  }
}

using DryBreakers = std::vector<engine::DryBreaker>;

DryBreakers Breakers(const ApiParser& parser, const std::string& members) {
  const auto request = parser.Chat(base::StrCat(R"("dry_multiplier":0.8)", members));
  return request.generations.at(0).sampling.dry_breakers;
}

// A token of the test's codec is a byte, or the name of a special token: "<s>", "<|end|>",
// "<|turn|>".
TEST_CASE("Sequence breakers become the tokens that hold them or begin them", "[openai]") {
  ApiParser parser;
  CHECK(Breakers(parser, "") == DryBreakers{{{'\n', '"', '*', ':'}, {}}});
  CHECK(Breakers(parser, R"(,"dry_sequence_breakers":null)") ==
        DryBreakers{{{'\n', '"', '*', ':'}, {}}});
  CHECK(Breakers(parser, R"(,"dry_sequence_breakers":[])") == DryBreakers{{{}, {}}});
  CHECK(Breakers(parser, R"(,"dry_sequence_breakers":["|"])") ==
        DryBreakers{{{'|', kEos, kTurn}, {}}});
  // "a>b": a token that ends in "a" with ">b" behind it; none ends in "a>".
  CHECK(Breakers(parser, R"(,"dry_sequence_breakers":["a>b"])") ==
        DryBreakers{{{}, {}}, {{'a'}, {'>', 'b'}}});
  CHECK(Breakers(parser, R"(,"dry_sequence_breakers":["|>x"])") ==
        DryBreakers{{{}, {}}, {{'|'}, {'>', 'x'}}, {{kEos, kTurn}, {'x'}}});
  // No breaker is cut within a code point: a token of U+00E9's first byte begins none.
  CHECK(Breakers(parser,
                 ","
                 R"("dry_sequence_breakers":["\u00e9"])") == DryBreakers{{{}, {}}});
  // Nobody looks for them where DRY is off.
  CHECK(parser.Chat(R"("dry_multiplier":0)").generations.at(0).sampling.dry_breakers.empty());
  CHECK(Breakers(parser, R"(,"dry_penalty_last_n":0)").empty());
}

TEST_CASE("Sequence breakers that are none, too long or too many are refused", "[openai]") {
  ApiParser parser;
  const auto refused = [&parser](const std::string& value) {
    const server::ApiError error =
        parser.ChatRefused(base::StrCat(R"("dry_sequence_breakers":)", value));
    CHECK(error.param == "dry_sequence_breakers");
    return error.message;
  };
  CHECK(refused(R"([""])") ==
        "'dry_sequence_breakers' must hold strings of 1 to 40 bytes, found \"\"");
  CHECK(refused("[7]") == "'dry_sequence_breakers' must hold strings of 1 to 40 bytes, found 7");
  refused(R"(["a",null])");
  refused(R"("\n")");
  refused(base::StrCat("[\"", std::string(41, 'x'), "\"]"));
  Json many = Json::array();
  for (int i = 0; i < 10000; ++i) many.push_back(std::string(1, 'a'));
  refused(many.dump());
  parser.Chat(base::StrCat(R"("dry_sequence_breakers":[")", std::string(40, 'x'), "\"]"));
}

TEST_CASE("A request with DRY is not read by a thread that others wait for", "[openai]") {
  ApiParser parser;
  server::RequestContext context{&parser.model, &parser.codec, kRandomSeed};
  context.patience.short_only = true;
  const auto read = [&](const std::string& members) {
    return server::ParseRequest(server::Endpoint::kChat, parser.ChatBody(members), context);
  };
  CHECK(server::IsTakesLong(read(R"("dry_multiplier":1)").status()));
  CHECK(read(R"("dry_multiplier":0)").ok());
}

}  // namespace
}  // namespace heddle::test
