// MB/s of encoding English text on one core; the goal is 40 (the `tokenizers` package: about 4, see
// tokenizer_bench.py beside this file for its figure on this machine).
// Text: the file that HEDDLE_BENCH_TEXT names, or the licences that Debian ships, else a built-in
// sentence; repeated to 4 MB. In parts of 16 KiB, as long prompts are, and as a whole.
// Tokenizers: those of the shared data, and any whose paths follow the benchmark's own flags.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "engine/text/tokenizer.h"
#include "tests/support/paths.h"

namespace heddle::engine::text {
namespace {

constexpr size_t kTextBytes = 4 << 20;
constexpr size_t kPartBytes = 16 << 10;

void AppendFile(const std::string& path, std::string* text) {
  std::ifstream in(path, std::ios::binary);
  text->append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

std::string EnglishText() {
  std::string text;
  if (const char* path = std::getenv("HEDDLE_BENCH_TEXT")) {
    AppendFile(path, &text);
  } else {
    for (const char* name : {"GPL-3", "Apache-2.0", "MPL-2.0", "Artistic"}) {
      AppendFile(std::string("/usr/share/common-licenses/") + name, &text);
    }
  }
  if (text.empty()) text = "The quick brown fox jumps over the lazy dog, and it doesn't mind. ";
  while (text.size() < kTextBytes) text += std::string(text);
  text.resize(kTextBytes);
  return text;
}

void Encode(benchmark::State& state, const std::filesystem::path& path, size_t part_bytes) {
  const auto tokenizer = LoadTokenizer(path);
  if (!tokenizer.ok()) {
    state.SkipWithError(std::string(tokenizer.status().message()).c_str());
    return;
  }
  const std::string text = EnglishText();
  std::vector<TokenId> ids;
  for (auto _ : state) {
    ids.clear();
    for (size_t at = 0; at < text.size(); at += part_bytes) {
      const std::string_view part = std::string_view(text).substr(at, part_bytes);
      benchmark::DoNotOptimize((*tokenizer)->Encode(part, {}, &ids).ok());
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
}

// `path` as it is, or below the shared data.
void Register(const std::string& path) {
  for (const auto& [kind, part_bytes] : {std::pair("parts", kPartBytes), {"whole", kTextBytes}}) {
    const auto encode = [path, bytes = part_bytes](benchmark::State& state) {
      if (path.starts_with('/')) return Encode(state, path, bytes);
      if (test::HasSharedData(path)) return Encode(state, test::SharedDataOrSkip(path), bytes);
      state.SkipWithError(("needs shared data " + path).c_str());
    };
    benchmark::RegisterBenchmark((path + "/" + kind).c_str(), encode);
  }
}

constexpr const char* kShared[] = {"tokenizers_hf/gpt2/tokenizer.json",
                                   "tokenizers_hf/qwen2.5/tokenizer.json",
                                   "tokenizers_hf/phi-3-mini/tokenizer.json",
                                   "tokenizers/phi-3.gguf",
                                   "tokenizers/deepseek-coder.gguf",
                                   "tokenizers/deepseek-llm.gguf",
                                   "tokenizers/falcon.gguf",
                                   "tokenizers/starcoder.gguf"};

int Run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const char* path : kShared) Register(path);
  for (int i = 1; i < argc; ++i) Register(std::filesystem::absolute(argv[i]));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace heddle::engine::text

int main(int argc, char** argv) { return heddle::engine::text::Run(argc, argv); }
