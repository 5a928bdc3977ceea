// MB/s of encoding English text on one core; the goal is 40 (the `tokenizers` package: about 4, see
// tokenizer_bench.py beside this file for its figure on this machine).
// Text: the licences that Debian ships, repeated to 4 MB; else a built-in sentence.
// Tokenizers: those of the shared data, and any whose paths follow the benchmark's own flags.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "engine/text/tokenizer.h"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

constexpr size_t kTextBytes = 4 << 20;

std::string EnglishText() {
  std::string text;
  for (const char* name : {"GPL-3", "Apache-2.0", "MPL-2.0", "Artistic"}) {
    std::ifstream in(std::string("/usr/share/common-licenses/") + name, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (text.empty()) text = "The quick brown fox jumps over the lazy dog, and it doesn't mind. ";
  while (text.size() < kTextBytes) text += std::string(text);
  text.resize(kTextBytes);
  return text;
}

void Encode(benchmark::State& state, const std::filesystem::path& path) {
  const auto tokenizer = LoadTokenizer(path);
  if (!tokenizer.ok()) {
    state.SkipWithError(std::string(tokenizer.status().message()).c_str());
    return;
  }
  const std::string text = EnglishText();
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    benchmark::DoNotOptimize((*tokenizer)->Encode(text, {}, &ids).ok());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

void BM_Encode(benchmark::State& state, const std::string& relative) {
  if (test::HasSharedData(relative)) return Encode(state, test::SharedDataOrSkip(relative));
  state.SkipWithError(("needs shared data " + relative).c_str());
}
BENCHMARK_CAPTURE(BM_Encode, qwen2_5, "tokenizers_hf/qwen2.5/tokenizer.json");
BENCHMARK_CAPTURE(BM_Encode, gpt2, "tokenizers_hf/gpt2/tokenizer.json");
BENCHMARK_CAPTURE(BM_Encode, phi_3, "tokenizers_hf/phi-3-mini/tokenizer.json");
BENCHMARK_CAPTURE(BM_Encode, phi_3_gguf, "tokenizers/phi-3.gguf");
BENCHMARK_CAPTURE(BM_Encode, deepseek_coder, "tokenizers/deepseek-coder.gguf");
BENCHMARK_CAPTURE(BM_Encode, deepseek_llm, "tokenizers/deepseek-llm.gguf");
BENCHMARK_CAPTURE(BM_Encode, falcon, "tokenizers/falcon.gguf");
BENCHMARK_CAPTURE(BM_Encode, starcoder, "tokenizers/starcoder.gguf");

int Run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path path(argv[i]);
    benchmark::RegisterBenchmark(path.c_str(),
                                 [path](benchmark::State& state) { Encode(state, path); });
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace heddle::engine::text

int main(int argc, char** argv) { return heddle::engine::text::Run(argc, argv); }
