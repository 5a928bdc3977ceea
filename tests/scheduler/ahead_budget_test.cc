// Runs both budgets against a machine that is a formula, with a drafter whose guesses are right
// with a fixed probability. What that may cost and must reach is computed without them.
#include "scheduler/ahead_budget.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "catch2/catch.hpp"
#include "scheduler/draft_budget.h"

namespace heddle::scheduler {
namespace {

// 8 rows take 1.7 times as long as one, as on the CPU; more than 16 are nearly proportional.
double ModelUs(int32_t rows) {
  return 1000 * (1 + 0.1 * (rows - 1) + 0.05 * std::max(0, rows - 16));
}

struct Network {
  double cost = 0.1;     // of a pass, against a step of the model over as many rows
  double right = 0.8;    // of each guess, the ones before it being right
  double claimed = 0.8;  // what the network says of it
  int32_t prompt = 0;    // positions that the first pass catches up with
  double delayed = 0;    // share of steps and passes that take 200 times as long
  double matched = 0;    // share of steps in which the text has a match, that is always wrong
};

class AheadRun {
 public:
  AheadRun(int32_t streams, const Network& network, uint32_t seed)
      : streams_(streams), network_(network), random_(seed), catch_up_(network.prompt) {}

  double Tokens(int64_t tokens) {
    const double before = us_;
    for (int64_t done = 0; done < tokens;) done += Step();
    return us_ - before;
  }
  double PlainUs(int64_t tokens) const {
    return static_cast<double>(tokens) / streams_ * ModelUs(streams_);
  }
  AheadStats stats() const { return ahead_.stats(); }

 private:
  // The time that is measured of what takes about `us`. What held it up is not in us_.
  double Measure(double us) {
    us *= 0.95 + 0.1 * Draw();
    us_ += us;
    return network_.delayed > 0 && Draw() < network_.delayed ? 200 * us : us;
  }
  double Draw() { return static_cast<double>(random_()) / 4294967296.0; }

  int64_t Step() {
    const AheadWish wish = ahead_.Choose(streams_, budget_.times());
    std::vector<float> survival;
    double all = 1;
    for (int32_t i = 0; i < guesses_; ++i) {
      survival.push_back(static_cast<float>(all *= network_.claimed));
    }
    std::vector<DraftOffer> offers;
    if (!ahead_.may_have_rows()) survival.clear();
    const bool is_match = network_.matched > 0 && Draw() < network_.matched;
    if (is_match) {
      // Its drafter compares each match with what comes, as engine::Acceptance does.
      const double share = matches_.Rate(0.4, 4);
      survival.clear();
      all = 1;
      for (int32_t i = 0; i < 16; ++i) survival.push_back(static_cast<float>(all *= share));
      matches_.Add(1, 0, 64);
    }
    if (budget_.wants_drafts()) {
      for (int32_t i = 0; i < streams_; ++i) {
        offers.push_back({engine::SequenceId{static_cast<uint64_t>(i)}, survival});
      }
    }
    budget_.Choose({.decodes = streams_}, offers);
    DraftedStep step{.rows = {.decodes = streams_}};
    int32_t guessed = 0, guessed_right = 0;  // of the network's rows
    for (const DraftOffer& offer : offers) {
      int32_t right = 0;
      while (!is_match && right < guesses_ && Draw() < network_.right) ++right;
      for (int32_t i = 0; i < std::min(guesses_, right + 1); ++i) {
        ahead_.CountGuesses(static_cast<size_t>(i), 1, i < right ? 1 : 0);
      }
      if (offer.rows == 0) continue;
      const int32_t accepted = std::min(offer.rows, right);
      budget_.CountDraft(offer.id, offer.rows, accepted);
      step.drafted += offer.rows;
      step.accepted += accepted;
      if (is_match) continue;
      guessed += offer.rows;
      guessed_right += accepted;
    }
    step.us = Measure(ModelUs(streams_ + step.drafted));
    passes_.clear();
    guesses_ = budget_.is_paused() ? 0 : wish.tokens;
    for (int32_t i = 0; i < guesses_; ++i) AddPass(i == 0);
    ahead_.CountStep({.passes = passes_,
                      .sequences = guesses_ > 0 ? streams_ : 0,
                      .drafted = guessed,
                      .accepted = guessed_right,
                      .booked = budget_.CountStep(step)});
    return streams_ + step.accepted;
  }

  void AddPass(bool is_first) {
    const int32_t rows = is_first ? 2 * streams_ + std::exchange(catch_up_, 0) : streams_;
    const double us = Measure(network_.cost * ModelUs(rows));
    passes_.push_back({.rows = rows, .is_first = is_first, .ns = std::llround(us * 1e3)});
  }

  const int32_t streams_;
  const Network network_;
  std::mt19937 random_;
  int32_t catch_up_;
  DraftBudget budget_{DraftBudget::Options{}};
  AheadBudget ahead_{AheadBudget::Options{.max_tokens = 16}};
  std::vector<engine::DraftPassTime> passes_;
  base::FadingTally matches_;
  int32_t guesses_ = 0;  // behind the last step, for each stream
  double us_ = 0;
};

TEST_CASE("A drafter whose guesses are wrong costs two percent at most", "[unit]") {
  const int32_t streams = GENERATE(1, 8, 32, 64);
  const Network network{.cost = GENERATE(0.05, 0.3), .right = GENERATE(0.0, 0.2), .claimed = 0.9};
  INFO(streams << " streams, cost " << network.cost << ", right " << network.right);
  AheadRun run(streams, network, 1);
  run.Tokens(int64_t{500} * streams);
  const int64_t tokens = int64_t{4000} * streams;
  CHECK(run.Tokens(tokens) < 1.02 * run.PlainUs(tokens));
}

// The mean over many starts: each is settled by a few guesses.
TEST_CASE("Behind a start, guesses that are wrong cost 1.5 percent of the first hundred tokens",
          "[unit]") {
  const int32_t streams = GENERATE(1, 4);
  const Network network{.cost = 0.2, .right = GENERATE(0.05, 0.2), .claimed = 0.5};
  double us = 0;
  constexpr uint32_t kStarts = 200;
  for (uint32_t seed = 0; seed < kStarts; ++seed) {
    us += AheadRun(streams, network, seed).Tokens(int64_t{100} * streams);
  }
  const double plain_us = AheadRun(streams, network, 0).PlainUs(int64_t{100} * streams);
  INFO(streams << " streams, right " << network.right << ": " << us / kStarts / plain_us);
  CHECK(us / kStarts < 1.015 * plain_us);
}

// Random letters: the network knows nothing of them, and the last few of them were there before.
TEST_CASE("Behind a start, a text that nobody can guess costs 2 percent of two hundred tokens",
          "[unit]") {
  const Network network{
      .cost = GENERATE(0.1, 0.3), .right = 0.05, .claimed = 0.5, .matched = GENERATE(0.2, 0.6)};
  double us = 0;
  constexpr uint32_t kStarts = 200;
  for (uint32_t seed = 0; seed < kStarts; ++seed) us += AheadRun(1, network, seed).Tokens(200);
  const double share = us / kStarts / AheadRun(1, network, 0).PlainUs(200);
  INFO("cost " << network.cost << ", matched " << network.matched << ": " << share);
  CHECK(share < 1.02);
}

TEST_CASE("Behind a start, guesses that are right pay within fifty tokens", "[unit]") {
  double us = 0;
  constexpr uint32_t kStarts = 50;
  for (uint32_t seed = 0; seed < kStarts; ++seed) {
    us += AheadRun(1, {.cost = 0.1, .right = 0.8, .claimed = 0.7}, seed).Tokens(50);
  }
  CHECK(us / kStarts < 0.65 * AheadRun(1, {}, 0).PlainUs(50));
}

TEST_CASE("A drafter that takes as long as the model is not asked for more than trials", "[unit]") {
  AheadRun run(1, {.cost = 1.0, .right = 0.95, .claimed = 0.95}, 2);
  run.Tokens(500);
  CHECK(run.Tokens(8000) < 1.02 * run.PlainUs(8000));
}

TEST_CASE("Guesses come near the best fixed number", "[unit]") {
  const int32_t streams = GENERATE(1, 4);
  const Network network{
      .cost = GENERATE(0.05, 0.15), .right = GENERATE(0.6, 0.8, 0.9), .claimed = 0.8};
  double best = 0;  // tokens per microsecond of all streams
  for (int32_t count = 0; count <= 16; ++count) {
    double tokens = 1;
    for (int32_t i = 1; i <= count; ++i) tokens += std::pow(network.right, i);
    double us = ModelUs(streams * (1 + count));
    if (count > 0) us += network.cost * (ModelUs(2 * streams) + (count - 1) * ModelUs(streams));
    best = std::max(best, streams * tokens / us);
  }
  AheadRun run(streams, network, 3);
  run.Tokens(int64_t{1000} * streams);
  const int64_t tokens = int64_t{8000} * streams;
  const double rate = static_cast<double>(tokens) / run.Tokens(tokens);
  INFO(streams << " streams, cost " << network.cost << ", right " << network.right << ": "
               << rate * ModelUs(streams) / streams << " times plain, best "
               << best * ModelUs(streams) / streams);
  CHECK(rate > 0.9 * best);
}

TEST_CASE("A good drafter goes on while something else holds up steps and passes", "[unit]") {
  const int32_t streams = GENERATE(1, 8);
  const int64_t tokens = int64_t{4000} * streams;
  const Network network{.cost = 0.1, .right = 0.8, .claimed = 0.8};
  Network delayed = network;
  delayed.delayed = 0.02;
  double us = 0;
  double undisturbed_us = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {  // one start differs from another by up to 7 %
    AheadRun run(streams, delayed, seed);
    us += run.Tokens(tokens);
    undisturbed_us += AheadRun(streams, network, seed).Tokens(tokens);
    CHECK(run.stats().times_off == 0);
  }
  CHECK(us < 1.03 * undisturbed_us);
}

TEST_CASE("Catching up with a long prompt does not turn a good drafter off", "[unit]") {
  AheadRun run(1, {.cost = 0.1, .right = 0.8, .claimed = 0.8, .prompt = 500}, 4);
  CHECK(run.Tokens(2000) < 0.8 * run.PlainUs(2000));
  CHECK(run.stats().times_off == 0);
}

}  // namespace
}  // namespace heddle::scheduler
