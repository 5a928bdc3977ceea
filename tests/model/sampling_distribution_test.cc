// Draws under each sampling parameter, and under all of them together, follow the distribution that
// the logits processors of transformers leave (tests/golden/sampling.json): chi-square over draws
// that differ in nothing but the position, all requests in one batch.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/sample/sampler_state.h"
#include "kernels/device.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr int kDraws = 8000;

SamplingParams ParamsOf(const json& fields, const json& golden) {
  SamplingParams params;
  params.temperature = fields.value("temperature", 1.0f);
  params.top_k = fields.value("top_k", 0);
  params.top_p = fields.value("top_p", 1.0f);
  params.min_p = fields.value("min_p", 0.0f);
  params.typical_p = fields.value("typical_p", 1.0f);
  params.repetition_penalty = fields.value("repetition_penalty", 1.0f);
  params.presence_penalty = fields.value("presence_penalty", 0.0f);
  params.frequency_penalty = fields.value("frequency_penalty", 0.0f);
  params.min_tokens = fields.value("min_tokens", 0);
  params.min_tokens_banned = golden.at("eos").get<std::vector<TokenId>>();
  params.bad_words = fields.value("bad_words", std::vector<std::vector<TokenId>>{});
  params.logit_bias = fields.value("logit_bias", std::vector<std::pair<TokenId, float>>{});
  params.seed = 20220202;
  return params;
}

// Tokens drawn for each case, kDraws each, in the order of the cases.
std::vector<int32_t> DrawAll(kernels::Device& device, const json& golden) {
  const json& cases = golden.at("cases");
  const size_t vocab = cases.at(0).at("logits").size();
  std::vector<float> logits;
  std::vector<kernels::SampleRowParams> rows;
  SamplerState state;
  state.ResetEdits();
  for (size_t i = 0; i < cases.size(); ++i) {
    for (float x : cases[i].at("logits").get<std::vector<float>>()) logits.push_back(x);
    const SequenceId id{i};
    state.Begin({id, ParamsOf(cases[i].at("params"), golden),
                 golden.at("prompt").get<std::vector<TokenId>>()},
                nullptr);
    for (TokenId token : golden.at("generated")) state.Accept({id, 0, 0}, token);
    rows.insert(rows.end(), kDraws, state.Row({id, 0, 0}, static_cast<int32_t>(i)));
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i].counter = i;
  std::vector<int32_t> tokens(rows.size());
  kernels::SampleArgs args;
  args.logits = {logits.data(), static_cast<int64_t>(cases.size()), static_cast<int64_t>(vocab),
                 static_cast<int64_t>(vocab)};
  args.rows = rows;
  args.tokens = tokens.data();
  REQUIRE(device.Run([&](kernels::Ops& ops) { ops.Sample(args); }).ok());
  return tokens;
}

// Pearson's statistic against the 99.99 % quantile (Wilson and Hilferty); cells that expect fewer
// than five draws are joined.
void CheckDraws(std::span<const int32_t> tokens, const json& probabilities) {
  std::map<int32_t, int> counts;
  for (int32_t token : tokens) ++counts[token];
  double statistic = 0, rare_expected = 0, rare_count = 0;
  int cells = 0, known = 0;
  auto add = [&](double count, double expected) {
    statistic += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (const auto& [token, p] : probabilities.items()) {
    const double expected = p.get<double>() * kDraws;
    const int count = counts[std::stoi(token)];
    known += count;
    if (expected >= 5) {
      add(count, expected);
    } else {
      rare_expected += expected;
      rare_count += count;
    }
  }
  if (rare_expected > 0.5) add(rare_count, rare_expected);
  CHECK(known == kDraws);  // nothing that the parameters exclude
  const double df = std::max(1, cells - 1);
  CHECK(statistic < df * std::pow(1 - 2 / (9 * df) + 3.72 * std::sqrt(2 / (9 * df)), 3));
}

TEST_CASE("Draws under every parameter follow the distribution of transformers' processors",
          "[golden]") {
  const json golden = test::LoadGoldenJson("sampling.json");
  std::map<std::string, std::unique_ptr<kernels::Device>> devices;
  devices["reference"] = kernels::CreateReferenceDevice();
  devices["cpu"] = *kernels::CreateCpuDevice({.num_threads = 2});
  for (auto& [name, device] : devices) {
    const std::vector<int32_t> tokens = DrawAll(*device, golden);
    for (size_t i = 0; i < golden.at("cases").size(); ++i) {
      const json& one = golden.at("cases")[i];
      INFO(name << " " << one.at("params").dump());
      CheckDraws(std::span(tokens).subspan(i * kDraws, kDraws), one.at("probabilities"));
    }
  }
}

TEST_CASE("A temperature too small to divide by takes the likeliest token", "[unit]") {
  for (float temperature : {1e-6f, 1e-40f, 0.0f}) {
    SamplerState state;
    SamplingParams params;
    params.temperature = temperature;
    state.Begin({SequenceId{1}, params, {}}, nullptr);
    CHECK(state.Row({SequenceId{1}, 0, 0}, 0).temperature == 0.0f);
  }
}

}  // namespace
}  // namespace heddle::engine
