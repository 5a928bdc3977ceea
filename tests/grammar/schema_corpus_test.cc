// Random tokens under a schema's masks make texts that are valid by the schema: the schemas of
// corpus/schemas.jsonl, twenty texts each. HEDDLE_CORPUS_OUT names a file that gets
// [schema, text] per line, for a second opinion (corpus/check.py).
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>

#include "catch2/catch.hpp"
#include "engine/grammar/schema/json_schema.h"
#include "tests/grammar/random_texts.h"
#include "tests/grammar/schema_validator.h"
#include "tests/grammar/testing.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

constexpr int kTextsPerSchema = 20;
TEST_CASE("Random texts under the masks of a schema are valid by it", "[grammar]") {
  std::ifstream in(test::SourceDir() / "tests/grammar/corpus/schemas.jsonl");
  REQUIRE(in);
  const char* out_path = std::getenv("HEDDLE_CORPUS_OUT");
  std::ofstream out;
  if (out_path != nullptr) out.open(out_path);
  const auto vocabulary = test::JsonVocabulary();
  int schemas = 0;
  for (std::string line; std::getline(in, line); ++schemas) {
    INFO("schema " << schemas + 1 << ": " << line);
    const auto grammar = engine::grammar::ParseJsonSchema(line, {});
    INFO(grammar.status().message());
    REQUIRE(grammar.ok());
    const auto compiled = test::CompileOrDie(*grammar, vocabulary);
    const nlohmann::json schema = nlohmann::json::parse(line);
    std::mt19937 random(static_cast<uint32_t>(schemas));
    for (int i = 0; i < kTextsPerSchema; ++i) {
      const absl::StatusOr<std::string> made = test::RandomText(compiled, &random);
      INFO(made.status().message());
      REQUIRE(made.ok());
      const std::string& text = *made;
      INFO(text);
      const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
      REQUIRE_FALSE(value.is_discarded());
      CHECK(test::SchemaFault(schema, schema, value) == "");
      if (out.is_open()) out << nlohmann::json::array({schemas, text}).dump() << "\n";
    }
  }
  CHECK(schemas >= 300);
}

}  // namespace
}  // namespace heddle
