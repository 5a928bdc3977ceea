// The compiler's memory of results, and compilations that it leaves unfinished.
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/message.h"
#include "catch2/catch.hpp"
#include "engine/grammar/grammar_compiler.h"
#include "tests/grammar/byte_vocabulary.h"
#include "tests/grammar/testing.h"

namespace heddle::test {
namespace {

using base::StrCat;
using engine::grammar::CompiledGrammar;
using engine::grammar::Constraint;
using engine::grammar::ConstraintKind;
using engine::grammar::GrammarCompiler;

// Some tenth of a second.
Constraint Slow() { return {.kind = ConstraintKind::kRegex, .text = "(a|b)*a(a|b){24}"}; }

TEST_CASE("What was refused is refused again without being read", "[grammar][unit]") {
  GrammarCompiler compiler(ByteVocabulary, {kEndToken});
  for (const Constraint& wrong : {SchemaConstraint(R"({"type":"what"})"), Slow()}) {
    CHECK(compiler.Refusal(wrong).ok());
    int asked = 0;
    const auto ask = [&asked]() -> absl::Status {
      ++asked;
      return absl::OkStatus();
    };
    const absl::Status first = compiler.Compile(wrong, ask).status();
    CHECK_FALSE(first.ok());
    CHECK(compiler.Refusal(wrong) == first);
    asked = 0;
    CHECK(compiler.Compile(wrong, ask).status() == first);
    CHECK(asked == 0);
  }
  CHECK(compiler.Refusal(SchemaConstraint(R"({"type":"boolean"})")).ok());
}

TEST_CASE("Refusals are remembered up to a number", "[grammar][unit]") {
  GrammarCompiler compiler(ByteVocabulary, {kEndToken});
  const auto wrong = [](int i) { return SchemaConstraint(StrCat(R"({"type":"what)", i, "\"}")); };
  for (int i = 0; i < 1100; ++i) CHECK_FALSE(compiler.Compile(wrong(i)).ok());
  CHECK(compiler.Refusal(wrong(0)).ok());
  CHECK_FALSE(compiler.Refusal(wrong(1099)).ok());
}

TEST_CASE("A compilation that was told to stop says nothing of its text", "[grammar][unit]") {
  GrammarCompiler compiler(ByteVocabulary, {kEndToken});
  const auto stop = []() -> absl::Status { return absl::CancelledError("nobody waits"); };
  CHECK(absl::IsCancelled(compiler.Compile(Slow(), stop).status()));
  CHECK(compiler.Refusal(Slow()).ok());
  CHECK(absl::IsCancelled(compiler.Check(Slow(), stop)));
  CHECK(compiler.Refusal(Slow()).ok());
  CHECK(absl::IsResourceExhausted(compiler.Compile(Slow()).status()));
}

TEST_CASE("Who waits for what another compiles goes on where that one stops", "[grammar][unit]") {
  GrammarCompiler compiler(ByteVocabulary, {kEndToken});
  std::promise<void> begun;
  std::promise<void> waits;
  std::shared_future<void> waited = waits.get_future().share();
  std::atomic<bool> is_first_ask = true;
  // Is asked while it compiles, waits until the other one is there, and gives up.
  auto first = std::async(std::launch::async, [&] {
    return compiler.Compile(Slow(), [&]() -> absl::Status {
      if (is_first_ask.exchange(false)) begun.set_value();
      waited.wait();
      return absl::CancelledError("the first has left");
    });
  });
  begun.get_future().wait();
  std::atomic<bool> told = false;
  auto second = std::async(std::launch::async, [&] {
    return compiler.Compile(Slow(), [&]() -> absl::Status {
      if (!told.exchange(true)) waits.set_value();
      return absl::OkStatus();
    });
  });
  CHECK(absl::IsCancelled(first.get().status()));
  CHECK(absl::IsResourceExhausted(second.get().status()));
}

TEST_CASE("Grammars that nobody uses are forgotten beyond the bytes that all may hold",
          "[grammar][unit]") {
  constexpr size_t kMaxBytes = size_t{4} << 20;
  GrammarCompiler compiler(ByteVocabulary, {kEndToken}, kMaxBytes);
  const auto schema = [](int i) {
    return SchemaConstraint(StrCat(R"({"type":"object","properties":{"key)", i,
                                   R"(":{"type":"string","maxLength":)", 100 + i, "}}}"));
  };
  std::vector<std::shared_ptr<CompiledGrammar>> held;
  for (int i = 0; i < 300; ++i) {
    auto grammar = compiler.Compile(schema(i));
    REQUIRE(grammar.ok());
    if (i < 2) held.push_back(*std::move(grammar));
  }
  // The last one compiled may be there on top, and those that are held are.
  size_t of_held = 0;
  for (const auto& grammar : held) of_held += grammar->heap_bytes();
  CHECK(compiler.cache().held() <= kMaxBytes + of_held + (size_t{1} << 20));
  CHECK(compiler.cache().num_grammars() < 300);
  CHECK(compiler.Known(schema(299)) != nullptr);
  CHECK(compiler.Known(schema(0)) == held[0]);
  CHECK(compiler.Known(schema(2)) == nullptr);
  engine::grammar::Matcher matcher(held[1]);
  CHECK(matcher.AcceptText("{"));
}

}  // namespace
}  // namespace heddle::test
