// Reads lines {"name":..., "schema":...} from standard input and writes for each a line with random
// texts of the schema, what it took to compile it, or why it is refused:
//   {"name":..., "texts":[...], "seconds":..., "units":..., "states":..., "dropped":[...]}
//   {"name":..., "error":...}
//
//   schema_texts [TEXTS_PER_SCHEMA] [--drop] < schemas.jsonl
//
// A line that has "texts" gets instead {"name":..., "accepts":[true or false of each]} or the
// error.
//
// "--drop" leaves out what is not supported, as --schema-unsupported warn does.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "engine/grammar/schema/json_schema.h"
#include "nlohmann/json.hpp"
#include "tests/grammar/random_texts.h"
#include "tests/grammar/testing.h"

namespace heddle {
namespace {

using engine::grammar::Budget;
using engine::grammar::CompiledGrammar;
using Json = nlohmann::ordered_json;

Json TextsOf(const Json& line, int num_texts, bool drops, int attempt) {
  const Json& schema = line.at("schema");
  Json out;
  const auto begin = std::chrono::steady_clock::now();
  Budget budget = Budget::ForText(schema.dump().size());
  std::vector<std::string> dropped;
  const engine::grammar::JsonOptions options{.drops_unsupported = drops};
  const auto grammar = engine::grammar::ParseJsonSchema(schema.dump(), options, &budget, &dropped);
  auto automaton = grammar.ok() ? engine::grammar::Compile(*grammar, &budget) : grammar.status();
  const auto end = std::chrono::steady_clock::now();
  out["seconds"] = std::chrono::duration<double>(end - begin).count();
  out["units"] = budget.spent();
  if (!automaton.ok()) {
    out["error"] = std::string(automaton.status().message());
    return out;
  }
  out["states"] = automaton->num_states();
  out["dropped"] = dropped;
  const auto compiled = std::make_shared<CompiledGrammar>(
      *std::move(automaton), test::JsonVocabulary(), std::vector{test::kEndToken});
  if (line.contains("texts")) {
    out["accepts"] = Json::array();
    for (const Json& text : line.at("texts")) {
      engine::grammar::Matcher matcher(compiled);
      const bool accepts = matcher.AcceptText(text.get_ref<const std::string&>());
      out["accepts"].push_back(accepts && matcher.CanEnd());
    }
    return out;
  }
  std::mt19937 random(static_cast<uint32_t>(attempt));
  out["texts"] = Json::array();
  for (int i = 0; i < num_texts; ++i) {
    const auto text = test::RandomText(compiled, &random);
    if (!text.ok()) {
      out["error"] = std::string(text.status().message());
      return out;
    }
    out["texts"].push_back(*text);
  }
  return out;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  const int num_texts = argc > 1 ? std::atoi(argv[1]) : 20;
  const bool drops = argc > 2 && std::string(argv[2]) == "--drop";
  int line_number = 0;
  for (std::string line; std::getline(std::cin, line); ++line_number) {
    const auto given = nlohmann::ordered_json::parse(line, nullptr, false);
    if (given.is_discarded()) continue;
    nlohmann::ordered_json out = heddle::TextsOf(given, num_texts, drops, line_number);
    out["name"] = given.at("name");
    std::cout << out.dump() << std::endl;
  }
}
