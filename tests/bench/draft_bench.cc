// Measures what drafting costs the engine loop: a proposal and an appended token, for 64 sequences
// with histories of 4096 tokens that take turns, so that no history stays in the processor's cache,
// and with 10,000 finished answers of 200 tokens. One iteration is one sequence's proposal and
// token.
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "engine/draft/combined_drafter.h"

namespace heddle::engine {
namespace {

constexpr int kSequences = 64;
constexpr int kHistory = 4096;
constexpr int kAnswers = 10000;
constexpr int kAnswerTokens = 200;

// Texts that repeat themselves: phrases of 2 to 20 tokens, some of them much more often.
class Phrases {
 public:
  Phrases() {
    for (auto& phrase : phrases_) {
      phrase.resize(2 + random_() % 19);
      for (TokenId& token : phrase) token = static_cast<TokenId>(random_() % 32000);
    }
  }

  std::vector<TokenId> Text(size_t tokens) {
    std::vector<TokenId> text;
    while (text.size() < tokens) {
      const size_t limit = 1 + random_() % phrases_.size();
      const auto& phrase = phrases_[random_() % limit];
      text.insert(text.end(), phrase.begin(), phrase.end());
    }
    text.resize(tokens);
    return text;
  }

 private:
  std::mt19937 random_{5};
  std::vector<std::vector<TokenId>> phrases_{4000};
};

void Run(benchmark::State& state, const DrafterOptions& options) {
  const std::unique_ptr<Drafter> drafter = MakeDrafter(options);
  Phrases phrases;
  for (int i = 0; i < kAnswers; ++i) {
    drafter->Begin(SequenceId{1}, {}, {}, {});
    for (TokenId token : phrases.Text(kAnswerTokens)) drafter->Append(SequenceId{1}, {&token, 1});
    drafter->End(SequenceId{1}, true);
  }
  for (uint64_t id = 100; id < 100 + kSequences; ++id) {
    const std::vector<TokenId> prompt = phrases.Text(kHistory);
    drafter->Begin(SequenceId{id}, {}, prompt, prompt);
  }
  const std::vector<TokenId> answer = phrases.Text(1 << 16);
  DraftTree tree;
  uint64_t turn = 0;
  int64_t nodes = 0;
  for (auto _ : state) {
    const SequenceId id{100 + turn % kSequences};
    const TokenId next = answer[turn / kSequences % answer.size()];
    drafter->Propose(id, 16, &tree);
    drafter->Append(id, {&next, 1});
    nodes += tree.size();
    ++turn;
  }
  state.counters["nodes"] =
      static_cast<double>(nodes) / static_cast<double>(std::max<int64_t>(state.iterations(), 1));
}

BENCHMARK_CAPTURE(Run, prediction, DrafterOptions{})->Iterations(50000);
BENCHMARK_CAPTURE(Run, prediction_ngram, DrafterOptions{.ngram = true})->Iterations(50000);
BENCHMARK_CAPTURE(Run, prediction_suffix, DrafterOptions{.suffix = true})->Iterations(50000);
BENCHMARK_CAPTURE(Run, all, DrafterOptions{.ngram = true, .suffix = true})->Iterations(50000);

}  // namespace
}  // namespace heddle::engine

BENCHMARK_MAIN();
