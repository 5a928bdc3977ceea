// Runs the budget against a machine that is a formula and texts that are probabilities. What it may
// cost and must reach is computed from both, without it.
#include "scheduler/draft_budget.h"

#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include "catch2/catch.hpp"
#include "engine/draft/suffix_drafter.h"
#include "scheduler/step_times.h"

namespace heddle::scheduler {
namespace {

using Machine = std::function<double(int32_t)>;  // microseconds of a step of so many rows

// 8 rows take 1.7 times as long as one, as on the CPU; more than 16 are nearly proportional.
double Cpu(int32_t rows) { return 1000 * (1 + 0.1 * (rows - 1) + 0.05 * std::max(0, rows - 16)); }
double Gpu(int32_t rows) { return 8000 + 5 * std::min(rows, 128) + 60 * std::max(0, rows - 128); }
double Proportional(int32_t rows) { return 1000.0 * rows; }

// A text as a drafter meets it: what it claims of each next token, and how often that is right.
struct Text {
  double claimed = 0;
  double right = 0;
};

// Something else holds up this share of the steps, which take so many times as long.
struct Delays {
  double share = 0;
  double factor = 1;
};

class Run {
 public:
  Run(Machine machine, int32_t streams, uint32_t seed, const Delays& delays = {})
      : machine_(std::move(machine)), streams_(streams), random_(seed), delays_(delays) {}

  // Runs until the streams have `tokens` more tokens together, and returns the time it took,
  // without delays.
  double Tokens(int64_t tokens, const Text& text) {
    const double before = us_;
    int64_t done = 0;
    while (done < tokens) done += Step(text);
    return us_ - before;
  }

  double PlainUs(int64_t tokens) const {
    return static_cast<double>(tokens) / streams_ * machine_(streams_);
  }

  double paused_share() const { return static_cast<double>(paused_) / static_cast<double>(steps_); }

  DraftBudget budget{DraftBudget::Options{}};

 private:
  int64_t Step(const Text& text) {
    survival_.clear();
    double all = 1;
    for (int i = 0; i < 16; ++i) survival_.push_back(static_cast<float>(all *= text.claimed));
    std::vector<DraftOffer> offers;
    if (budget.wants_drafts()) {
      for (int32_t i = 0; i < streams_; ++i) {
        offers.push_back({engine::SequenceId{static_cast<uint64_t>(i)}, survival_});
      }
    }
    budget.Choose({.decodes = streams_}, offers);
    DraftedStep step{.rows = {.decodes = streams_}};
    for (const DraftOffer& offer : offers) {
      if (offer.rows == 0) continue;
      int32_t accepted = 0;
      while (accepted < offer.rows && Draw() < text.right) ++accepted;
      budget.CountDraft(offer.id, offer.rows, accepted);
      step.drafted += offer.rows;
      step.accepted += accepted;
    }
    step.us = machine_(streams_ + step.drafted) * (0.95 + 0.1 * Draw());
    us_ += step.us;
    ++steps_;
    paused_ += budget.is_paused() ? 1 : 0;
    if (delays_.share > 0 && Draw() < delays_.share) step.us *= delays_.factor;
    budget.CountStep(step);
    return streams_ + step.accepted;
  }

  double Draw() { return static_cast<double>(random_()) / 4294967296.0; }

  Machine machine_;
  int32_t streams_;
  std::mt19937 random_;
  Delays delays_;
  std::vector<float> survival_;
  double us_ = 0;
  int64_t steps_ = 0;
  int64_t paused_ = 0;
};

TEST_CASE("Random texts cost at most 2 % at any number of streams", "[unit]") {
  const int32_t streams = GENERATE(1, 2, 4, 8, 16, 32, 64);
  const Machine machine = GENERATE(Machine(Cpu), Machine(Gpu), Machine(Proportional));
  // Drafters that promise too much, and one that is honest and useless.
  const Text text = GENERATE(Text{0.6, 0.02}, Text{0.95, 0.0}, Text{0.05, 0.05}, Text{0.9, 0.1});
  for (const int64_t steps : {500, 5000}) {
    Run run(machine, streams, 7);
    const int64_t tokens = steps * streams;
    const double us = run.Tokens(tokens, text);
    CAPTURE(streams, machine(2) / machine(1), text.claimed, text.right, steps);
    CHECK(us <= 1.02 * run.PlainUs(tokens));
    if (machine(2) > 1.9 * machine(1) && steps == 5000) CHECK(us <= 1.005 * run.PlainUs(tokens));
  }
}

// Tokens of all streams per microsecond, with the best fixed length of drafts.
double BestRate(const Machine& machine, int32_t streams, double right) {
  double best_rate = 0;
  double tokens_of_one = 1;
  for (int32_t length = 0; length <= 16; ++length) {
    best_rate = std::max(best_rate, streams * tokens_of_one / machine(streams * (1 + length)));
    tokens_of_one += std::pow(right, length + 1);
  }
  return best_rate;
}

TEST_CASE("Repetitive texts come near the best fixed length", "[unit]") {
  const int32_t streams = GENERATE(1, 4, 16, 64);
  const Machine machine = GENERATE(Machine(Cpu), Machine(Gpu));
  const double right = GENERATE(0.7, 0.9, 0.97);
  const double best_rate = BestRate(machine, streams, right);
  Run run(machine, streams, 8);
  const int64_t tokens = 4000 * int64_t{streams};
  const double us = run.Tokens(tokens, {right, right});
  CAPTURE(streams, machine(64), right);
  CHECK(us <= static_cast<double>(tokens) / best_rate * 1.06);
  CHECK(us <= 1.005 * run.PlainUs(tokens));
}

TEST_CASE("Drafts that pay go on while something else holds up steps", "[unit]") {
  const int32_t streams = GENERATE(1, 8);
  const Machine machine = GENERATE(Machine(Cpu), Machine(Gpu));
  const Delays delays = GENERATE(Delays{0.01, 10}, Delays{0.01, 1000}, Delays{0.05, 30});
  const double right = GENERATE(0.7, 0.9);
  const double best_rate = BestRate(machine, streams, right);
  Run run(machine, streams, 13, delays);
  const int64_t tokens = 4000 * int64_t{streams};
  const double us = run.Tokens(tokens, {right, right});
  CAPTURE(streams, machine(64), delays.share, delays.factor, right);
  CHECK(us <= static_cast<double>(tokens) / best_rate * 1.1);
  CHECK(run.paused_share() <= 0.03);
}

TEST_CASE("Drafts that are wrong cost at most 2 % while something else holds up steps", "[unit]") {
  const int32_t streams = GENERATE(1, 8, 64);
  const Machine machine = GENERATE(Machine(Cpu), Machine(Proportional));
  const Delays delays = GENERATE(Delays{0.01, 10}, Delays{0.01, 1000}, Delays{0.05, 30});
  const Text text = GENERATE(Text{0.6, 0.02}, Text{0.95, 0.0}, Text{0.9, 0.1});
  Run run(machine, streams, 14, delays);
  const int64_t tokens = 4000 * int64_t{streams};
  CAPTURE(streams, machine(64), delays.share, delays.factor, text.claimed, text.right);
  CHECK(run.Tokens(tokens, text) <= 1.02 * run.PlainUs(tokens));
}

// With 5 rows more, each step takes long: that is not put down to something else.
TEST_CASE("A number of rows that always takes long is not taken for held up", "[unit]") {
  const Machine steep = [](int32_t rows) { return rows <= 4 ? 1000.0 : 20000.0; };
  Run run(steep, 1, 15);
  CHECK(run.Tokens(5000, {0.95, 0.95}) <= 1.02 * run.PlainUs(5000));
}

TEST_CASE("It turns itself off, waits longer each time, and comes back when drafts pay", "[unit]") {
  Run run(Cpu, 1, 9);
  run.Tokens(40000, {0.95, 0.0});
  const DraftBudgetStats off = run.budget.stats();
  CHECK(off.gained_seconds < 0);
  // Pauses of 64, 128, ... 8192 steps: 40000 steps have room for at most 10 of them.
  CHECK(off.times_off >= 5);
  CHECK(off.times_off <= 11);
  const double us = run.Tokens(40000, {0.9, 0.9});
  CHECK(us < 0.65 * run.PlainUs(40000));  // at worst 8192 plain steps before the first probe
  CHECK(run.budget.stats().gained_seconds > 0);
  // Gains do not pay for losses without end.
  CHECK(run.Tokens(5000, {0.95, 0.0}) <= 1.02 * run.PlainUs(5000));
}

TEST_CASE("Rows go to the sequences whose drafts survive", "[unit]") {
  DraftBudget budget(DraftBudget::Options{});
  for (int i = 0; i < 10; ++i) budget.CountStep({.rows = {.decodes = 2}, .us = Cpu(2)});
  budget.CountStep({.rows = {.decodes = 2}, .drafted = 2, .us = Cpu(4)});
  const std::vector<float> good = {0.95f, 0.9f, 0.85f, 0.8f};
  const std::vector<float> bad = {0.02f, 0.01f};
  std::vector<DraftOffer> offers = {{engine::SequenceId{1}, bad}, {engine::SequenceId{2}, good}};
  budget.Choose({.decodes = 2}, offers);
  CHECK(offers[0].rows == 0);
  CHECK(offers[1].rows == 4);
}

void CountPlain(DraftBudget* budget, int count) {
  for (int i = 0; i < count; ++i) budget->CountStep({.rows = {.decodes = 1}, .us = 1000});
}

TEST_CASE("No rows are given before plain steps were measured, or beyond the bounds", "[unit]") {
  const std::vector<float> sure(16, 0.99f);
  std::vector<DraftOffer> offers = {{engine::SequenceId{1}, sure}};
  DraftBudget fresh(DraftBudget::Options{});
  // The first step behind a prompt says little.
  CountPlain(&fresh, 2);
  fresh.Choose({.decodes = 1}, offers);
  CHECK(offers[0].rows == 0);
  // Steps grow gradually: from one measured row to two, from two to four.
  CountPlain(&fresh, 1);
  fresh.Choose({.decodes = 1}, offers);
  CHECK(offers[0].rows == 1);
  fresh.CountStep({.rows = {.decodes = 1}, .drafted = 1, .accepted = 1, .us = 1100});
  fresh.Choose({.decodes = 1}, offers);
  CHECK(offers[0].rows == 3);
  DraftBudget few(DraftBudget::Options{.max_step_rows = 3});
  CountPlain(&few, 3);
  few.CountStep({.rows = {.decodes = 1}, .drafted = 1, .accepted = 1, .us = 1100});
  few.Choose({.decodes = 1}, offers);
  CHECK(offers[0].rows == 2);
  // A row costs a tenth of the first, as was measured: two of them fit into 1200 us.
  DraftBudget quick(DraftBudget::Options{.target_us = 1200});
  CountPlain(&quick, 3);
  quick.CountStep({.rows = {.decodes = 1}, .drafted = 1, .accepted = 1, .us = 1100});
  quick.Choose({.decodes = 1}, offers);
  CHECK(offers[0].rows == 2);
}

// Plain steps take 1000 us and questions 30.
TEST_CASE("Questions in vain are losses, which are bounded", "[unit]") {
  DraftBudget budget(DraftBudget::Options{});
  const std::vector<float> useless = {0.01f};
  std::vector<DraftOffer> offers = {{engine::SequenceId{1}, useless}};
  double asked_us = 0;
  constexpr int kSteps = 4000;
  for (int i = 0; i < kSteps; ++i) {
    scheduler::DraftedStep step{.rows = {.decodes = 1}, .us = 1000};
    if (budget.wants_drafts()) {
      step.asked_us = 30;
      step.us += step.asked_us;
      budget.Choose({.decodes = 1}, offers);
    }
    asked_us += step.asked_us;
    budget.CountStep(step);
  }
  CHECK(budget.stats().times_off >= 3);
  CHECK(asked_us < 0.002 * 1000 * kSteps);
}

TEST_CASE("Drafters that are asked in vain are asked in one of four steps", "[unit]") {
  DraftBudget budget(DraftBudget::Options{});
  CountPlain(&budget, 1);
  const std::vector<float> useless = {0.01f};
  std::vector<DraftOffer> offers = {{engine::SequenceId{1}, useless}};
  int asked = 0;
  for (int i = 0; i < 32 + 400; ++i) {
    if (budget.wants_drafts()) {
      ++asked;
      budget.Choose({.decodes = 1}, offers);
    }
    budget.CountStep({.rows = {.decodes = 1}, .us = 1000});
  }
  CHECK(asked >= 32 + 100);
  CHECK(asked <= 32 + 105);
  while (!budget.wants_drafts()) budget.CountStep({.rows = {.decodes = 1}, .us = 1000});
  const std::vector<float> good = {0.9f, 0.8f};
  offers[0].survival = good;
  budget.Choose({.decodes = 1}, offers);
  CHECK(offers[0].rows == 1);
  budget.CountStep({.rows = {.decodes = 1}, .drafted = 1, .accepted = 1, .us = 1100});
  CHECK(budget.wants_drafts());
}

// Everything is compared with plain steps.
TEST_CASE("Plain steps are repeated more often until their time is known", "[unit]") {
  DraftBudget budget(DraftBudget::Options{});
  CountPlain(&budget, 3);
  std::vector<int> drafted;  // steps with drafts before each plain one
  for (int i = 0; i < 200; ++i) {
    if (drafted.empty()) drafted.push_back(0);
    if (budget.wants_drafts()) {
      ++drafted.back();
      budget.CountStep({.rows = {.decodes = 1}, .drafted = 1, .accepted = 1, .us = 1100});
    } else {
      drafted.push_back(0);
      CountPlain(&budget, 1);
    }
  }
  REQUIRE(drafted.size() >= 4);
  CHECK(drafted[0] == 4);
  CHECK(drafted[1] == 4);
  CHECK(drafted[2] == 64);
}

TEST_CASE("What was accepted is counted by place", "[unit]") {
  DraftBudget budget(DraftBudget::Options{});
  budget.CountDraft(engine::SequenceId{1}, 4, 2);
  budget.CountDraft(engine::SequenceId{1}, 3, 0);
  budget.CountDraft(engine::SequenceId{1}, 20, 20);
  const DraftBudgetStats stats = budget.stats();
  CHECK(stats.drafts == 3);
  CHECK(stats.drafted_tokens == 27);
  CHECK(stats.accepted_tokens == 22);
  CHECK(stats.accepted_at[0] == 2);
  CHECK(stats.accepted_at[1] == 2);
  CHECK(stats.accepted_at[2] == 1);
  CHECK(stats.accepted_at[15] == 5);  // places 15 to 19
}

TEST_CASE("Step times are means by rows, interpolated, and never fall with rows", "[unit]") {
  StepTimes times;
  CHECK(times.PredictUs(4) == 0);
  for (int i = 0; i < 100; ++i) times.Observe(1, i % 2 == 0 ? 140 : 160);
  for (int i = 0; i < 100; ++i) times.Observe(5, 350);
  CHECK(times.PredictUs(1) == Approx(150).epsilon(0.02));
  CHECK(times.PredictUs(3) == Approx(250).epsilon(0.02));
  CHECK(times.PredictUs(9) == Approx(350 + 4 * 50).epsilon(0.02));  // as from 1 to 5 rows
  for (int i = 0; i < 10; ++i) times.Observe(8, 10);  // not credible: fewer rows took longer
  CHECK(times.PredictUs(8) >= times.PredictUs(5));
  CHECK(times.Knows(3));
  CHECK(!times.Knows(20));
}

// The demo model's first steps behind a prompt, whose caches are cold; it settles at 620 us.
TEST_CASE("Few steps count by their median, as the first ones may be slow", "[unit]") {
  StepTimes times;
  for (const double us : {1060.0, 728.0, 650.0, 616.0, 637.0}) times.Observe(1, us);
  CHECK(times.NumMeasured(1) == 5);
  CHECK(times.NumMeasured(2) == 0);
  CHECK(times.PredictUs(1) > 600);
  CHECK(times.PredictUs(1) < 660);
}

TEST_CASE("Step times follow a machine that becomes slower, for all numbers of rows", "[unit]") {
  StepTimes times;
  for (int i = 0; i < 50; ++i) {
    times.Observe(1, 1000);
    times.Observe(8, 1700);
  }
  for (int i = 0; i < 400; ++i) times.Observe(8, 3400);
  CHECK(times.PredictUs(8) == Approx(3400).epsilon(0.05));
  CHECK(times.PredictUs(1) > 1100);
  CHECK(times.PredictUs(1) < 2400);
}

TEST_CASE("A step that was held up is booked as expected, also if it was the first one", "[unit]") {
  StepTimes times;
  CHECK(times.Observe(1, 50000) == 50000);  // nothing is known yet
  CHECK(times.Observe(1, 1000) == 1000);
  CHECK(times.PredictUs(1) == Approx(1000).epsilon(0.05));
  for (int i = 0; i < 20; ++i) times.Observe(1, 1000);
  CHECK(times.Observe(1, 100000) == Approx(1000).epsilon(0.05));
  CHECK(times.Observe(2, 100000) == Approx(1000).epsilon(0.2));  // as a guess from one row
  CHECK(times.PredictUs(1) == Approx(1000).epsilon(0.05));
  CHECK(times.Observe(1, 3000) == 3000);
  // Again and again, it is what such a step takes.
  for (int i = 0; i < 20; ++i) times.Observe(2, 100000);
  CHECK(times.Observe(2, 100000) == 100000);
  CHECK(times.PredictUs(2) > 50000);
  CHECK(times.PredictUs(1) < 3000);
}

// Random tokens of small alphabets: every match is there, and none of them means anything.
TEST_CASE("A real drafter costs at most 2 % on random tokens", "[unit]") {
  const int alphabet = GENERATE(2, 8, 64, 1000);
  CAPTURE(alphabet);
  engine::SuffixDrafter drafter({});
  DraftBudget budget(DraftBudget::Options{});
  std::mt19937 random(12);
  const engine::SequenceId id{1};
  drafter.Begin(id, {}, {}, {});
  double us = 0;
  int64_t tokens = 0;
  while (tokens < 20000) {
    engine::DraftTree tree;
    if (budget.wants_drafts()) drafter.Propose(id, 16, &tree);
    DraftOffer offer{id, tree.survival};
    budget.Choose({.decodes = 1}, {&offer, 1});
    std::vector<engine::TokenId> drawn;
    do {
      drawn.push_back(static_cast<engine::TokenId>(random() % static_cast<uint32_t>(alphabet)));
    } while (static_cast<int32_t>(drawn.size()) <= offer.rows &&
             drawn.back() == tree.tokens[drawn.size() - 1]);
    const auto accepted = static_cast<int32_t>(drawn.size()) - 1;
    if (offer.rows > 0) budget.CountDraft(id, offer.rows, accepted);
    drafter.Append(id, drawn);
    const double step_us = Cpu(1 + offer.rows);
    budget.CountStep(
        {.rows = {.decodes = 1}, .drafted = offer.rows, .accepted = accepted, .us = step_us});
    us += step_us;
    tokens += static_cast<int64_t>(drawn.size());
  }
  CHECK(us <= 1.02 * 1000 * static_cast<double>(tokens));
  if (alphabet == 2) CHECK(us < 0.9 * 1000 * static_cast<double>(tokens));  // half are right
}

}  // namespace
}  // namespace heddle::scheduler
