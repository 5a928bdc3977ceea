// The compiler's memory of results, and the results of threads that ask at once.
#include "engine/grammar/grammar_compiler.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/grammar/byte_vocabulary.h"
#include "tests/grammar/testing.h"

namespace heddle::test {
namespace {

using engine::grammar::CompiledGrammar;
using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::GrammarCompiler;

TEST_CASE("What was compiled is known, and nothing else", "[grammar][unit]") {
  GrammarCompiler compiler(ByteVocabulary, {kEndToken});
  const Constraint boolean = SchemaConstraint(R"({"type":"boolean"})");
  CHECK(compiler.Known(boolean) == nullptr);
  const auto compiled = compiler.Compile(boolean);
  REQUIRE(compiled.ok());
  CHECK(compiler.Known(boolean) == *compiled);
  CHECK(*compiler.Compile(boolean) == *compiled);
  Constraint without = boolean;
  without.json.whitespace = engine::grammar::JsonWhitespace::kNone;
  CHECK(compiler.Known(without) == nullptr);
  const Constraint wrong = SchemaConstraint(R"({"type":"what"})");
  CHECK_FALSE(compiler.Compile(wrong).ok());
  CHECK(compiler.Known(wrong) == nullptr);
}

TEST_CASE("Threads that ask for the same grammar at once get one that was compiled once",
          "[grammar][unit]") {
  // The first to compile stops in here until the others had their time to do as it does.
  std::promise<void> reached;
  std::promise<void> open;
  GrammarCompiler compiler(
      [&] {
        reached.set_value();
        open.get_future().wait();
        return ByteVocabulary();
      },
      {kEndToken});
  const Constraint constraint = SchemaConstraint(R"({"type":"array","items":{"type":"integer"}})");
  const auto compile = [&] { return compiler.Compile(constraint).value(); };
  std::vector<std::future<std::shared_ptr<CompiledGrammar>>> threads;
  threads.push_back(std::async(std::launch::async, compile));
  reached.get_future().wait();
  for (int i = 0; i < 3; ++i) threads.push_back(std::async(std::launch::async, compile));
  CHECK(compiler.Known(constraint) == nullptr);
  open.set_value();
  const auto first = threads[0].get();
  for (size_t i = 1; i < threads.size(); ++i) CHECK(threads[i].get() == first);
  CHECK(compiler.Known(constraint) == first);
}

TEST_CASE("Threads that ask for the same wrong grammar at once all get its error",
          "[grammar][unit]") {
  GrammarCompiler compiler(ByteVocabulary, {kEndToken});
  // Long enough to be asked for again while it is read, mostly; the answer is the same either way.
  const Constraint wrong{.kind = ConstraintKind::kRegex, .text = std::string(2000, '(')};
  std::vector<std::future<absl::Status>> threads;
  for (int i = 0; i < 8; ++i) {
    threads.push_back(
        std::async(std::launch::async, [&] { return compiler.Compile(wrong).status(); }));
  }
  const absl::Status first = threads[0].get();
  CHECK(absl::IsInvalidArgument(first));
  for (size_t i = 1; i < threads.size(); ++i) CHECK(threads[i].get() == first);
}

}  // namespace
}  // namespace heddle::test
