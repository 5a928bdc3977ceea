// Measures the quality that a weight format costs, and the kernels' part of it: the divergence of
// the next-token distribution from the F32 model's, on text drawn from that model itself.
//
//   quality_bench [--kv-type=TYPE] [--isa=LEVEL] BASE CANDIDATE...
//
// BASE: the model in F32; CANDIDATE: the same model, rounded; TYPE: of the candidates' KV cache as
// they are served (f32); LEVEL: of the kernels that serve them (auto).
//
// For each candidate, in nats per token, the mean over all positions of
//   KL(base || candidate on the fastest kernels)            as it is served
//   KL(base || candidate on the reference kernels, in F32)  dequantised weights, exact arithmetic
// so that their ratio is the kernels' own part (activations rounded to int8 or BF16).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/load.h"
#include "tests/support/greedy_runner.h"

namespace heddle {
namespace {

constexpr int32_t kTexts = 24;
constexpr int32_t kTextTokens = 96;
constexpr uint32_t kSeed = 20240607;

struct Serving {
  std::string kv_type = "f32";
  std::string isa = "auto";
};

engine::LocalModel Load(const std::string& path, bool reference, const Serving& serving = {}) {
  engine::LoadOptions options;
  options.reference_ops = reference;
  options.cpu.isa = serving.isa;
  options.capacity.max_context = kTextTokens;
  options.capacity.max_batch_tokens = kTextTokens;
  options.kv_type = serving.kv_type;
  auto model = engine::LoadLocalModel(path, options);
  if (model.ok()) return std::move(model).value();
  std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
  std::exit(1);
}

// Log-probabilities of one row of logits.
std::vector<double> LogSoftmax(const float* logits, size_t vocab) {
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (size_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - max);
  std::vector<double> out(vocab);
  for (size_t i = 0; i < vocab; ++i) out[i] = logits[i] - max - std::log(sum);
  return out;
}

engine::TokenId Draw(const std::vector<double>& log_probs, std::mt19937& random) {
  double left = std::uniform_real_distribution<double>(0, 1)(random);
  for (size_t i = 0; i < log_probs.size(); ++i) {
    left -= std::exp(log_probs[i]);
    if (left <= 0) return static_cast<engine::TokenId>(i);
  }
  return static_cast<engine::TokenId>(log_probs.size() - 1);
}

std::vector<std::vector<engine::TokenId>> DrawTexts(engine::LocalExecutor& executor) {
  const auto vocab = static_cast<size_t>(executor.limits().vocab);
  std::mt19937 random(kSeed);
  std::vector<std::vector<engine::TokenId>> texts(kTexts);
  for (auto& text : texts) {
    text = {static_cast<engine::TokenId>(1 + random() % (vocab - 1))};
    while (text.size() < kTextTokens) {
      const std::vector<float> logits = test::AllLogits(executor, text, kTextTokens);
      text.push_back(Draw(LogSoftmax(&logits[(text.size() - 1) * vocab], vocab), random));
    }
  }
  return texts;
}

double MeanKl(engine::LocalExecutor& base, engine::LocalExecutor& candidate,
              const std::vector<std::vector<engine::TokenId>>& texts) {
  const auto vocab = static_cast<size_t>(base.limits().vocab);
  double total = 0;
  for (const auto& text : texts) {
    const std::vector<float> expected = test::AllLogits(base, text, kTextTokens);
    const std::vector<float> found = test::AllLogits(candidate, text, kTextTokens);
    for (size_t t = 0; t < text.size(); ++t) {
      const std::vector<double> p = LogSoftmax(&expected[t * vocab], vocab);
      const std::vector<double> q = LogSoftmax(&found[t * vocab], vocab);
      for (size_t i = 0; i < vocab; ++i) total += std::exp(p[i]) * (p[i] - q[i]);
    }
  }
  return total / (kTexts * kTextTokens);
}

// Takes an option of this name from before the other arguments, if it is there.
bool TakeOption(std::string_view name, int* argc, char*** argv, std::string* value) {
  if (*argc < 2 || !std::string_view((*argv)[1]).starts_with(name)) return false;
  *value = (*argv)[1] + name.size();
  --*argc;
  ++*argv;
  return true;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) {
  heddle::Serving serving;
  while (heddle::TakeOption("--kv-type=", &argc, &argv, &serving.kv_type) ||
         heddle::TakeOption("--isa=", &argc, &argv, &serving.isa)) {
  }
  if (argc < 3) {
    std::fprintf(stderr, "usage: quality_bench [--kv-type=TYPE] [--isa=LEVEL] BASE CANDIDATE...\n");
    return 2;
  }
  heddle::engine::LocalModel base = heddle::Load(argv[1], /*reference=*/true);
  const auto texts = heddle::DrawTexts(*base.executor);
  std::printf("%-32s %12s %12s %8s\n", "weights", "KL served", "KL exact", "ratio");
  for (int i = 2; i < argc; ++i) {
    heddle::engine::LocalModel served = heddle::Load(argv[i], /*reference=*/false, serving);
    heddle::engine::LocalModel exact = heddle::Load(argv[i], /*reference=*/true);
    const double kl = heddle::MeanKl(*base.executor, *served.executor, texts);
    const double kl_exact = heddle::MeanKl(*base.executor, *exact.executor, texts);
    std::printf("%-32s %12.3g %12.3g %8.3f\n", served.formats.c_str(), kl, kl_exact, kl / kl_exact);
  }
  return 0;
}
