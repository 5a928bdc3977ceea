// A drafter beside the model that fails while it runs: its logits are NaN. No request may notice.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "server/loop/engine_loop.h"
#include "tests/server/loop/rig.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::server {
namespace {

class FailingNetwork final : public engine::DraftNetwork {
 public:
  void Forward(kernels::Ops&, const engine::DraftPass&) override {}
  void Logits(kernels::Ops&, const engine::DraftLogits& logits) override {
    std::fill_n(static_cast<float*>(logits.out.data), logits.out.rows * logits.out.cols,
                std::numeric_limits<float>::quiet_NaN());
  }
};

class FailingSource final : public engine::DraftSource {
 public:
  explicit FailingSource(int32_t vocab) {
    traits_ = {.kind = "draft", .text = "a network that fails", .vocab = vocab};
  }
  const engine::DraftTraits& traits() const override { return traits_; }
  int64_t WeightBytes(const kernels::Device*) const override { return 0; }
  int64_t WorkspaceBytes(int32_t, kernels::DType) const override { return 0; }
  absl::StatusOr<std::unique_ptr<engine::DraftNetwork>> Load(kernels::Device&,
                                                             const engine::ModelSpec&,
                                                             const engine::ModelWeights&,
                                                             int32_t) override {
    return std::make_unique<FailingNetwork>();
  }

 private:
  engine::DraftTraits traits_;
};

engine::LocalModel LoadWith(const engine::OpenDraft& open_draft, const test::TempDir& folder) {
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.open_draft = open_draft;
  auto model = engine::LoadLocalModel(
      test::WriteSyntheticModel(test::LoadGolden("llama"), folder.path()), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return *std::move(model);
}

struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::string> failures;  // what the loop said of its drafter
  EngineStats stats;
};

// Three requests at a time, twice.
Answers AnswerAll(engine::LocalModel model, bool speculates) {
  Answers answers;
  EngineLoopOptions options;
  options.speculation.on = speculates;
  options.on_draft_failure = [&](const std::string& why) { answers.failures.push_back(why); };
  const int32_t vocab = model.executor->limits().vocab;
  EngineLoop loop(std::move(model.executor), options);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<server::Answer>> open;
    for (int32_t i = 0; i < 3; ++i) {
      GenerationRequest request = MakeRequest(loop, 5 + i, 60);
      for (TokenId& token : request.prompt) token %= vocab;
      open.push_back(std::make_shared<server::Answer>());
      REQUIRE(loop.Submit(request, SinkOf(open.back())).ok());
    }
    for (const auto& answer : open) {
      answer->WaitForEnd();
      CHECK(answer->reason() == FinishReason::kLength);
      CHECK(answer->error().ok());
      answers.tokens.push_back(answer->tokens());
    }
  }
  answers.stats = loop.Stats();
  CHECK(loop.Drain(std::chrono::steady_clock::now() + 1h));
  return answers;
}

TEST_CASE("A drafter that fails turns itself off with one line, and no request notices",
          "[golden]") {
  test::TempDir plain_folder;
  test::TempDir folder;
  const Answers plain = AnswerAll(LoadWith({}, plain_folder), /*speculates=*/false);
  const engine::OpenDraft open_draft = [&](const engine::Checkpoint&,
                                           const engine::ModelDescription& model) {
    return std::make_unique<FailingSource>(model.spec.vocab);
  };
  const Answers failing = AnswerAll(LoadWith(open_draft, folder), /*speculates=*/true);
  CHECK(failing.tokens == plain.tokens);
  REQUIRE(failing.failures.size() == 1);
  CHECK(failing.failures[0] == "its logits are not numbers");
  CHECK(failing.stats.ahead.has_failed);
  CHECK_FALSE(plain.stats.ahead.has_failed);
  // It was asked no more after its eighth pass without a number.
  CHECK(failing.stats.ahead.passes == 8);
}

}  // namespace
}  // namespace heddle::server
