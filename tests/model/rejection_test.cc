// Rejection sampling of a drafter's guesses keeps the distribution of answers, whichever guesses
// get rows. Compared with answers that are drawn without drafts.
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/heads/draft_goldens.h"
#include "tests/model/random_requests.h"
#include "tests/model/speculated_load.h"

namespace heddle::test {
namespace {

constexpr int32_t kAnswers = 3000;
constexpr int32_t kTokens = 4;

// Answers of one prompt, each with a seed of its own. Model and drafter have the same three tokens
// to choose from, with other probabilities.
std::vector<scheduler::GenerationRequest> OnePrompt(uint64_t first_seed, bool rejects) {
  std::vector<scheduler::GenerationRequest> requests;
  for (int32_t i = 1; i <= kAnswers; ++i) {
    scheduler::GenerationRequest request;
    request.id = scheduler::RequestId{static_cast<uint64_t>(i)};
    request.prompt = {5, 9, 4, 17};
    request.max_tokens = kTokens;
    request.sampling.seed = first_seed + static_cast<uint64_t>(i);
    request.sampling.temperature = 1.0f;
    request.sampling.logit_bias = {{30, 40.0f}, {31, 40.0f}, {32, 40.0f}};
    request.sampling.rejects_guesses = rejects;
    requests.push_back(request);
  }
  return requests;
}

using Counts = std::map<std::vector<engine::TokenId>, double>;

Counts CountAnswers(const Outcomes& outcomes) {
  Counts counts;
  for (const auto& [id, outcome] : outcomes) {
    std::vector<engine::TokenId> tokens;
    for (const Reported& token : outcome.tokens) tokens.push_back(token.token);
    ++counts[tokens];
  }
  return counts;
}

// Chi-square of two samples of equal size; rare answers are taken together.
void CheckSameDistribution(const Counts& one, const Counts& other) {
  std::map<std::vector<engine::TokenId>, std::array<double, 2>> cells;
  for (const auto& [answer, count] : one) cells[answer][0] += count;
  for (const auto& [answer, count] : other) cells[answer][1] += count;
  std::array<double, 2> rare{};
  double chi_square = 0;
  int degrees = 0;
  const auto add = [&](const std::array<double, 2>& cell) {
    const double difference = cell[0] - cell[1];
    chi_square += difference * difference / (cell[0] + cell[1]);
    ++degrees;
  };
  for (const auto& [answer, cell] : cells) {
    if (cell[0] + cell[1] >= 20) {
      add(cell);
    } else {
      rare[0] += cell[0];
      rare[1] += cell[1];
    }
  }
  if (rare[0] + rare[1] > 0) add(rare);
  INFO("chi-square " << chi_square << " of " << degrees << " cells");
  CHECK(degrees > 20);
  CHECK(chi_square < degrees - 1 + 5 * std::sqrt(2.0 * (degrees - 1)));
}

void LoadWithNetwork(const std::string& name, SpeculatedModel* model) {
  const DraftGolden golden = LoadDraftGolden(name);
  const auto path = WriteSyntheticModel(golden.model, model->folder.path() / "model");
  const auto files = model->folder.path() / "network";
  WriteSyntheticModel(golden.files, files);
  engine::LoadOptions options = SmallOptions();
  options.open_draft = [&](const engine::Checkpoint& target,
                           const engine::ModelDescription& description) {
    return OpenNetwork(golden, files, target, description);
  };
  LoadExecutor(path, options, model);
}

TEST_CASE("Rejection sampling of guesses keeps the distribution of answers", "[golden]") {
  const std::string name = GENERATE("eagle1", "medusa_shared");
  // Rows that depend on what was guessed must not make other tokens likelier. The extreme case: one
  // token in three never has any.
  const engine::TokenId without_rows = GENERATE(-1, 30, 31);
  INFO(name << ", no rows from guess " << without_rows << " on");
  SpeculatedModel model;
  LoadWithNetwork(name, &model);
  scheduler::SchedulerOptions options = PlainOptions(model.executor->limits());
  options.prefix_cache = true;
  SpeculatedLoad plain(model.executor.get(), options, nullptr, 1);
  plain.Run(OnePrompt(1'000'000, false), 0, 0);
  SpeculatedLoad load(model.executor.get(), options, nullptr, 1);
  load.DraftWithNetwork();
  load.GiveNoRowsFrom(without_rows);
  const auto requests = OnePrompt(2'000'000, true);
  load.Run(requests, 0, 0);
  const scheduler::SchedulerStats stats = load.stats();
  INFO(stats.drafted_tokens << " drafted, " << stats.accepted_tokens << " accepted");
  CHECK(stats.drafted_tokens > 500);
  CHECK(stats.accepted_tokens > 100);
  CheckSameDistribution(CountAnswers(plain.outcomes()), CountAnswers(load.outcomes()));
  // The same seeds without drafts give other answers: the mode has been in force.
  SpeculatedLoad exact(model.executor.get(), options, nullptr, 1);
  exact.Run(requests, 0, 0);
  size_t different = 0;
  for (const auto& [id, outcome] : exact.outcomes()) {
    different += outcome.tokens != load.outcomes().at(id).tokens ? 1 : 0;
  }
  CHECK(different > kAnswers / 10);
}

}  // namespace
}  // namespace heddle::test
