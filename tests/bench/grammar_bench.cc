// Measures what constrained decoding costs per token and sequence at a real vocabulary: the goal is
// below 50 us for taking a token and finding the mask of the next. Texts are random: letters and
// what closes things, so that they come through all parts of a schema.
//
// Prints the mean, the median, the 99th percentile and the worst: "first" is each schema's first
// text right after compiling, before the low-priority thread has done its part; "later" is further
// texts after that, with the masks of contexts remembered (as in service). Then it prints how long
// it takes to compile, or refuse, inputs that were made to be slow. Times are those of the thread's
// own CPU, so that other programs do not show; reading that clock takes a few tenths of a
// microsecond, which are subtracted.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/grammar_compiler.h"
#include "engine/text/tokenizer.h"
#include "tests/support/paths.h"

namespace heddle::engine::grammar {
namespace {

// CPU time of this thread in microseconds.
double CpuUs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Time between two readings with nothing in between.
double ClockUs() {
  static const double kUs = [] {
    double least = 1e9;
    for (int i = 0; i < 1000; ++i) {
      const double begin = CpuUs();
      least = std::min(least, CpuUs() - begin);
    }
    return least;
  }();
  return kUs;
}

struct Case {
  const char* name;
  Constraint constraint;
};

std::vector<Case> Cases() {
  const std::string person = R"({"type":"object","properties":{"name":{"type":"string"},
    "age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string","format":"email"},
    "tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":5},
    "address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}},
    "required":["street","city"]}},"required":["name","age","email","tags","address"]})";
  return {{"object of 5 properties", {.text = person}},
          {"any JSON object", {.text = R"({"type":"object"})"}},
          {"string of 500 characters",
           {.text = R"({"type":"string","minLength":500,"maxLength":600})"}},
          {"words by a regular expression",
           {.kind = ConstraintKind::kRegex, .text = "([A-Z][a-z]{2,12} ){10,40}\\."}}};
}

// Draws common words more often than uniformly: the shortest of three allowed tokens.
TokenId Draw(const TokenMask& mask, const Vocabulary& vocabulary, std::mt19937* random) {
  TokenId best = -1;
  for (int tries = 0; tries < 3; ++tries) {
    const auto from = static_cast<TokenId>((*random)() % static_cast<uint32_t>(vocabulary.size()));
    for (TokenId i = 0; i < vocabulary.size(); ++i) {
      const TokenId id = (from + i) % vocabulary.size();
      if (!IsAllowed(mask, id)) continue;
      if (best < 0 || vocabulary.text(id).size() < vocabulary.text(best).size()) best = id;
      break;
    }
  }
  return best;
}

// Appends the times of one text's tokens.
void Generate(const std::shared_ptr<CompiledGrammar>& grammar, std::mt19937* random,
              std::vector<double>* times) {
  Matcher matcher(grammar);
  auto mask = matcher.Mask();
  for (int i = 0; i < 300 && mask.ok() && !matcher.ended(); ++i) {
    const TokenId token = Draw(**mask, grammar->vocabulary(), random);
    const double begin = CpuUs();
    matcher.Accept(token);
    mask = matcher.Mask();
    times->push_back(std::max(0.0, CpuUs() - begin - ClockUs()));
  }
}

void Print(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (double time : times) sum += time;
  const size_t n = times.size();
  std::printf("    %-7s %6zu tokens: mean %7.1f us, median %6.1f, p99 %7.1f, worst %8.1f\n", what,
              n, sum / static_cast<double>(n), times[n / 2], times[n * 99 / 100], times[n - 1]);
}

void TryHostile(GrammarCompiler* compiler) {
  const std::string deep = [] {
    std::string schema = "{}";
    for (int i = 0; i < 60; ++i) schema.insert(0, R"({"items":)").push_back('}');
    return schema;
  }();
  std::string clauses;
  for (int i = 0; i < 12; ++i) {
    clauses += std::string(i > 0 ? "," : "") + R"({"anyOf":[{"pattern":"^a{)" + std::to_string(i) +
               R"(,}b*$"},{"minLength":)" + std::to_string(i) + "}]}";
  }
  const Case cases[] = {
      {"nested counts", {.kind = ConstraintKind::kRegex, .text = "((a{1,200}){1,200}){1,200}"}},
      {"exponential automaton", {.kind = ConstraintKind::kRegex, .text = "(a|b)*a(a|b){24}"}},
      {"500 groups",
       {.kind = ConstraintKind::kRegex, .text = std::string(500, '(') + std::string(500, ')')}},
      {"ambiguous grammar", {.kind = ConstraintKind::kGbnf, .text = "root ::= root root | \"a\""}},
      {"a billion items", {.text = R"({"type":"array","minItems":1000000000})"}},
      {"60 levels of schema", {.text = deep}},
      {"product of alternatives", {.text = R"({"type":"string","allOf":[)" + clauses + "]}"}},
  };
  for (const Case& c : cases) {
    const double begin = CpuUs();
    const auto grammar = compiler->Compile(c.constraint);
    const std::string answer(grammar.ok() ? "compiled" : grammar.status().message());
    std::printf("  hostile: %s: %.1f ms: %s\n", c.name, (CpuUs() - begin) / 1000,
                answer.substr(0, 100).c_str());
  }
}

void Run(const char* name, const std::string& path) {
  const auto tokenizer = text::LoadTokenizer(path);
  if (!tokenizer.ok()) {
    std::printf("%s: %s\n", name, std::string(tokenizer.status().message()).c_str());
    return;
  }
  const text::Tokenizer& t = **tokenizer;
  double trie_ms = 0;
  GrammarCompiler compiler(
      [&] {
        const double begin = CpuUs();
        Vocabulary vocabulary(t.vocab_size(), [&t](TokenId id) {
          return t.IsSpecial(id) ? std::string_view() : t.TokenBytes(id);
        });
        trie_ms = (CpuUs() - begin) / 1000;
        return vocabulary;
      },
      {t.eos_ids().empty() ? 0 : t.eos_ids()[0]});
  static_cast<void>(compiler.Compile({.kind = ConstraintKind::kChoice, .choices = {"x"}}));
  std::printf("%s: %d tokens, trie built in %.1f ms\n", name, t.vocab_size(), trie_ms);
  for (const Case& c : Cases()) {
    const double begin = CpuUs();
    const auto grammar = compiler.Compile(c.constraint);
    if (!grammar.ok()) {
      std::printf("  %s: %s\n", c.name, std::string(grammar.status().message()).c_str());
      continue;
    }
    std::printf("  %s: compiled in %.1f ms, %d states\n", c.name, (CpuUs() - begin) / 1000,
                (*grammar)->num_states());
    std::mt19937 random(7);
    std::vector<double> first;
    std::vector<double> later;
    Generate(*grammar, &random, &first);
    const double rest = CpuUs();
    const std::atomic<bool> stop{false};
    (*grammar)->PrepareRest(stop, 10'000'000);
    std::printf("    rest of the masks ahead in %.0f ms\n", (CpuUs() - rest) / 1000);
    for (int i = 0; i < 20; ++i) Generate(*grammar, &random, &later);
    Print("first", first);
    Print("later", later);
  }
  TryHostile(&compiler);
}

}  // namespace
}  // namespace heddle::engine::grammar

int main() {
  for (const auto& [name, path] : {std::pair{"qwen2.5", "tokenizers_hf/qwen2.5"},
                                   std::pair{"deepseek-llm", "tokenizers/deepseek-llm.gguf"},
                                   std::pair{"phi-3", "tokenizers_hf/phi-3-mini"}}) {
    if (!heddle::test::HasSharedData(path)) continue;
    heddle::engine::grammar::Run(name, heddle::test::SharedDataOrSkip(path));
  }
}
