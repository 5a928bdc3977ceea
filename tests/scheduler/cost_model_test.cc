#include "scheduler/cost_model.h"

#include <algorithm>
#include <random>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

// A machine: 500 us per step, 20 us per row, 10 ns per attended position, 3 us per sequence.
double MachineUs(const StepCost& cost) {
  return 500 + 20.0 * static_cast<double>(cost.rows) + 0.01 * static_cast<double>(cost.attended) +
         3.0 * static_cast<double>(cost.sequences);
}

StepCost CostOf(const engine::StepPlan& plan) {
  StepCost cost{.rows = static_cast<int64_t>(plan.token_ids.size()),
                .sequences = static_cast<int64_t>(plan.sequences.size())};
  for (engine::Position position : plan.positions) cost.attended += position + 1;
  return cost;
}

TEST_CASE("The model learns a machine's coefficients from noisy steps", "[scheduler][unit]") {
  std::mt19937 random(1);
  std::uniform_int_distribution<int64_t> rows(1, 256), context(1, 2000), sequences(1, 32);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  CostModel model;
  for (int i = 0; i < 500; ++i) {
    int64_t n = rows(random);
    StepCost cost{n, n * context(random), std::min(n, sequences(random))};
    model.Observe(cost, MachineUs(cost) * noise(random));
  }
  for (StepCost cost :
       {StepCost{1, 100, 1}, StepCost{32, 32 * 500, 32}, StepCost{200, 100000, 9}}) {
    CHECK(model.PredictUs(cost) == Approx(MachineUs(cost)).epsilon(0.05));
  }
}

TEST_CASE("One step that was held up moves the model little", "[scheduler][unit]") {
  CostModel model;
  StepCost cost{8, 800, 8};
  for (int i = 0; i < 100; ++i)
    model.Observe({8 + i % 50, 800, 8}, MachineUs({8 + i % 50, 800, 8}));
  double before = model.PredictUs(cost);
  model.Observe(cost, 1e9);
  CHECK(model.PredictUs(cost) < 1.5 * before);
}

TEST_CASE("As many rows as are said to fit take the target, however long the chunk",
          "[scheduler][unit]") {
  std::mt19937 random(3);
  CostModel model;
  for (int i = 0; i < 500; ++i) {
    StepCost cost{1 + static_cast<int64_t>(random() % 400), 0,
                  1 + static_cast<int64_t>(random() % 32)};
    cost.attended = cost.rows * static_cast<int64_t>(1 + random() % 2000);
    model.Observe(cost, MachineUs(cost));
  }
  const StepCost base{.rows = 8, .attended = 8 * 300, .sequences = 8};
  for (const double target_us : {5000.0, 20'000.0, 100'000.0}) {
    const int64_t rows = model.RowsWithin(target_us, base, 3000);
    StepCost step = base;
    step.rows += rows;
    for (int64_t i = 1; i <= rows; ++i) step.attended += 3000 + i;
    CHECK(MachineUs(step) == Approx(target_us).epsilon(0.02));
  }
}

TEST_CASE("A thousand like steps leave the model as it was", "[scheduler][unit]") {
  CostModel model;
  for (int64_t i = 0; i < 100; ++i) {
    StepCost cost{1 + i, (1 + i) * (10 * i + 1), 1 + i % 7};
    model.Observe(cost, MachineUs(cost));
  }
  StepCost decodes{16, 16 * 300, 16}, other{150, 150 * 1000, 4};
  for (int i = 0; i < 10000; ++i)
    model.Observe(decodes, MachineUs(decodes) * (1 + 0.02 * (i % 3 - 1)));
  CHECK(model.PredictUs(other) == Approx(MachineUs(other)).epsilon(0.1));
}

TEST_CASE("Steps that are all alike leave predictions of others sane", "[scheduler][unit]") {
  // Steps of a full machine: a prompt, chunks, and then decodes with a small chunk each.
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  CostModel model;
  auto observe = [&](const StepCost& cost) {
    model.Observe(cost, MachineUs(cost) * noise(random));
  };
  observe({101, 101 * 50, 1});
  for (int64_t i = 1; i < 8; ++i) observe({64 + i, 64 * 50 + i * 100, 1 + i});
  for (int i = 0; i < 1000; ++i) {
    const auto decodes = static_cast<int64_t>(7 + random() % 3);
    observe({decodes + 16, decodes * 120 + 16 * 60, decodes + 1});
  }
  const StepCost alone{16, 16 * 120, 16}, wide{256, 256 * 60, 4};
  CHECK(model.PredictUs(alone) > 0.5 * MachineUs(alone));
  CHECK(model.PredictUs(alone) < 2 * MachineUs(alone));
  CHECK(model.PredictUs(wide) > 0.4 * MachineUs(wide));
  CHECK(model.PredictUs(wide) < 2.5 * MachineUs(wide));
}

TEST_CASE("A machine whose rows cost more the more there are is given no time below zero",
          "[scheduler][unit]") {
  auto bent_us = [](double rows) { return 20 * rows + 0.15 * rows * rows; };
  CostModel model;
  for (int64_t i = 0; i < 500; ++i) {  // a straight line through these meets zero at 14 rows
    const int64_t rows = 32 + i * 37 % 97;
    model.Observe({rows, rows * 100, 4}, bent_us(static_cast<double>(rows)));
  }
  CHECK(model.PredictUs({8, 800, 4}) > 0.5 * bent_us(8));
  CHECK(model.PredictUs({8, 800, 4}) < 3 * bent_us(8));
}

TEST_CASE("Steps with decodes keep the target while a long prompt is read", "[scheduler][unit]") {
  constexpr int64_t kTargetUs = 2500;
  SchedulerOptions options{.num_pages = 2000,
                           .page_tokens = 16,
                           .max_context = 8192,
                           .max_step_tokens = 512,
                           .max_step_seqs = 32,
                           .target_step_us = kTargetUs};
  Rig rig(options);
  rig.between = [&] { rig.now_us += static_cast<int64_t>(MachineUs(CostOf(rig.plan))); };
  for (int i = 0; i < 8; ++i) rig.Add(MakeRequest(20 + 30 * i, 400, i));
  for (int i = 0; i < 30; ++i) rig.Step();
  RequestId id = rig.Add(MakeRequest(6000, 2, 77));
  int steps = 0;
  double busy_us = 0;
  while (rig.Of(id).tokens.empty()) {
    REQUIRE(rig.Step());
    double us = MachineUs(CostOf(rig.plan));
    if (++steps > 3) CHECK(us < 1.1 * kTargetUs);
    busy_us += us;
  }
  CHECK(busy_us / steps > 0.8 * kTargetUs);  // the rest of the step is filled
}

// The time of steps with 8 streams and `num_prompts` long prompts, relative to twice that of as
// many streams and prompts that all decode with the streams' mean context.
double AutomaticRatio(int num_prompts) {
  SchedulerOptions options{.num_pages = 6000,
                           .page_tokens = 16,
                           .max_context = 8192,
                           .max_step_tokens = 512,
                           .max_step_seqs = 32,
                           .target_step_us = kAutomaticTarget};
  constexpr int64_t kSlow = 100;  // a machine so slow that the floor of 20 ms does not count
  Rig rig(options);
  double busy_us = 0;
  StepCost cost;
  rig.between = [&] {
    cost = CostOf(rig.plan);
    busy_us = kSlow * MachineUs(cost);
    rig.now_us += static_cast<int64_t>(busy_us);
  };
  for (int i = 0; i < 8; ++i) rig.Add(MakeRequest(20 + 30 * i, 2000, i));
  for (int i = 0; i < 300; ++i) rig.Step();
  const int64_t streams = 8 + num_prompts;
  const StepCost alone{
      .rows = streams, .attended = cost.attended * streams / 8, .sequences = streams};
  for (int i = 0; i < num_prompts; ++i) rig.Add(MakeRequest(4000, 2, 77 + i));
  double sum = 0;
  int steps = 0;
  for (int i = 0; i < 30; ++i) {
    if (!rig.Step()) break;
    if (i <= 3) continue;  // the model learns what chunks take
    sum += busy_us / (2 * kSlow * MachineUs(alone));
    ++steps;
  }
  return sum / steps;
}

TEST_CASE("The automatic target is twice what all streams take by themselves, begun or not",
          "[scheduler][unit]") {
  CHECK(AutomaticRatio(0) == Approx(0.5).epsilon(0.05));
  CHECK(AutomaticRatio(1) == Approx(1.0).epsilon(0.1));
  CHECK(AutomaticRatio(8) == Approx(1.0).epsilon(0.1));
  CHECK(AutomaticRatio(16) == Approx(1.0).epsilon(0.1));
}

TEST_CASE("Now and then a prompt makes no token come more than twice as late as others",
          "[scheduler][unit]") {
  SchedulerOptions options{.num_pages = 8000,
                           .page_tokens = 16,
                           .max_context = 8192,
                           .max_step_tokens = 512,
                           .max_step_seqs = 32,
                           .target_step_us = kAutomaticTarget};
  Rig rig(options);
  std::vector<double> times_us;
  rig.between = [&] {
    times_us.push_back(100 * MachineUs(CostOf(rig.plan)));
    rig.now_us += static_cast<int64_t>(times_us.back());
  };
  for (int i = 0; i < 16; ++i) rig.Add(MakeRequest(100, 2500, i));
  for (int i = 0; i < 100; ++i) rig.Step();
  times_us.clear();
  for (int i = 0; i < 2000; ++i) {
    if (i % 100 == 0) rig.Add(MakeRequest(200, 1, 50 + i));
    rig.Step();
  }
  std::sort(times_us.begin(), times_us.end());
  CHECK(times_us[times_us.size() * 99 / 100] <= 2.2 * times_us[times_us.size() / 2]);
}

TEST_CASE("While nothing is known of the machine, chunks beside streams are small",
          "[scheduler][unit]") {
  SchedulerOptions options{.num_pages = 600,
                           .page_tokens = 16,
                           .max_context = 4096,
                           .max_step_tokens = 512,
                           .max_step_seqs = 32,
                           .target_step_us = kAutomaticTarget};
  Rig rig(options);
  rig.Add(MakeRequest(10, 20));
  rig.Step();
  rig.Step();
  rig.Add(MakeRequest(2000, 4, 1));
  rig.Step();
  CHECK(rig.plan.token_ids.size() == 1 + 32);
}

}  // namespace
}  // namespace heddle::scheduler
