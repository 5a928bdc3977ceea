// What a rank takes from its head, and what it refuses.
#include "server/ranks/rank_orders.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "server/ranks/welcome.h"
#include "tests/parallel/plans.h"

namespace heddle::server {
namespace {

using Kind = RankOrders::Order::Kind;
using ranks::v1::FromHead;

// Messages with plans, in order, as the head makes them.
struct Head {
  FromHead Plan() {
    engine::StepPlan plan;
    plan.more_groups.resize(1);
    plan.step = ++step;
    engine::AddSlice(1, 0, static_cast<int32_t>(step) - 1, 1, &plan);
    FromHead message;
    encoder.Encode(plan, message.mutable_plan());
    return message;
  }
  static FromHead Logits() {
    FromHead message;
    message.mutable_logits();
    return message;
  }
  engine::PlanEncoder encoder{engine::TestLimits()};
  uint64_t step = 0;
};

TEST_CASE("The second half is the oldest step's that has had none", "[unit]") {
  Head head;
  RankOrders orders(engine::TestLimits(), 1);
  for (const uint64_t step : {1, 2}) {
    const auto order = orders.Take(head.Plan());
    REQUIRE(order.ok());
    CHECK(order->kind == Kind::kStage);
    CHECK(order->plan->step == step);
  }
  for (const uint64_t step : {1, 2}) {
    const auto order = orders.Take(Head::Logits());
    REQUIRE(order.ok());
    CHECK(order->kind == Kind::kLogits);
    CHECK(order->plan->step == step);
  }
  CHECK(absl::IsInvalidArgument(orders.Take(Head::Logits()).status()));
  FromHead end;
  end.mutable_end();
  CHECK(orders.Take(end)->kind == Kind::kEnd);
}

TEST_CASE("Messages that have no place among steps are refused", "[unit]") {
  RankOrders orders(engine::TestLimits(), 1);
  FromHead welcome, start, garbage, nothing;
  welcome.mutable_welcome();
  start.mutable_start();
  garbage.set_plan("HPLN\x02 and more that is no plan at all");
  for (const FromHead& message : {welcome, start, nothing, garbage}) {
    CHECK(absl::IsInvalidArgument(orders.Take(message).status()));
  }
}

TEST_CASE("A plan that comes twice, or after one that is missing, is refused", "[unit]") {
  Head head;
  const FromHead first = head.Plan(), second = head.Plan();
  RankOrders twice(engine::TestLimits(), 1), missing(engine::TestLimits(), 1);
  REQUIRE(twice.Take(first).ok());
  CHECK(absl::IsInvalidArgument(twice.Take(first).status()));
  CHECK(absl::IsInvalidArgument(missing.Take(second).status()));
}

// An adapter of three pages for the head and two for rank 1.
std::shared_ptr<engine::AdapterImage> TwoImages(int64_t page_bytes) {
  const auto make = [page_bytes](int32_t num_pages, char content) {
    auto image = std::make_shared<engine::AdapterImage>();
    image->page_bytes = page_bytes;
    image->num_pages = num_pages;
    const auto bytes = static_cast<size_t>(image->own_bytes());
    image->content.reset(new std::byte[bytes]);
    std::fill_n(image->content.get(), bytes, static_cast<std::byte>(content));
    return image;
  };
  auto head = make(3, 'h');
  auto own = make(2, 'r');
  own->factors.push_back({.layer = 1,
                          .site = engine::AdapterSite::kDown,
                          .inputs = 8,
                          .outputs = 4,
                          .rank = 2,
                          .block_rows = 1,
                          .scale = 0.5f,
                          .a = {{0, 0}, {1, 16}},
                          .b = {{0, 32}, {0, 48}},
                          .a_table = {1, 32},
                          .b_table = {1, 48}});
  head->id = engine::AdapterId{7};
  head->others = {own};
  return head;
}

TEST_CASE("A plan's adapters come before it, and only this rank's part of them", "[unit]") {
  engine::ExecutorLimits limits = engine::TestLimits();
  limits.page_bytes = 64;
  const auto image = TwoImages(64);
  engine::StepPlan plan;
  plan.more_groups.resize(1);
  plan.step = 1;
  for (const int32_t page : {1, 2}) {
    plan.adapter_loads.push_back({image->id, page, engine::PageId{10 + page}});
  }
  plan.adapter_pages = {engine::PageId{10}, engine::PageId{11}, engine::PageId{12}};
  plan.adapter_binds.push_back({.adapter = image->id, .slot = 3, .scale = 1, .num_pages = 3});
  FromHead message, adapter;
  engine::PlanEncoder(limits).Encode(plan, message.mutable_plan());
  engine::EncodeImage(*image, 1, plan, adapter.mutable_adapter());

  RankOrders orders(limits, 1);
  CHECK(orders.Take(adapter)->kind == Kind::kAdapter);
  const auto order = orders.Take(message);
  REQUIRE(order.ok());
  REQUIRE(order->adapters.size() == 1);
  const engine::AdapterImage& all = *order->adapters[0];
  CHECK(all.id == image->id);
  CHECK(all.pages_of_each_rank() == 3);
  const engine::AdapterImage& own = all.OfRank(1);
  CHECK(own.num_pages == 2);
  CHECK(own.page(1)[63] == std::byte{'r'});
  REQUIRE(own.factors.size() == 1);
  CHECK(own.factors[0].site == engine::AdapterSite::kDown);
  CHECK(own.factors[0].a == image->others[0]->factors[0].a);
  CHECK(own.factors[0].a_table == engine::ImagePlace{1, 32});
  CHECK(own.factors[0].gain == engine::kNoPlace);
  CHECK(own.factors[0].scale == 0.5f);

  CHECK(!RankOrders(limits, 1).Take(message).ok());  // without it
  limits.page_bytes = 128;
  CHECK(!RankOrders(limits, 1).Take(adapter).ok());
  limits.page_bytes = 64;
  std::string* bytes = adapter.mutable_adapter();
  for (size_t cut = 0; cut < bytes->size(); cut += 7) {
    FromHead damaged;
    damaged.set_adapter(bytes->substr(0, cut));
    RankOrders taken(limits, 1);
    CHECK((!taken.Take(damaged).ok() || !taken.Take(message).ok()));
  }
}

TEST_CASE("Factors that do not lie within their pages are refused", "[unit]") {
  engine::ExecutorLimits limits = engine::TestLimits();
  limits.page_bytes = 64;
  const auto is_taken = [&](const auto& change) {
    const auto image = TwoImages(64);
    auto own = std::make_shared<engine::AdapterImage>(*image->others[0]);
    change(own->factors[0]);
    image->others = {own};
    engine::StepPlan plan;
    plan.adapter_binds.push_back({.adapter = image->id, .slot = 3, .scale = 1, .num_pages = 3});
    FromHead message;
    engine::EncodeImage(*image, 1, plan, message.mutable_adapter());
    return RankOrders(limits, 1).Take(message).ok();
  };
  using Factors = engine::ImageFactors;
  CHECK(is_taken([](Factors&) {}));
  CHECK(!is_taken([](Factors& f) { f.a[1].page = 2; }));
  CHECK(!is_taken([](Factors& f) { f.a[1].page = -1; }));
  CHECK(!is_taken([](Factors& f) { f.a[0].offset = 64; }));
  CHECK(!is_taken([](Factors& f) { f.a[0].offset = 8; }));
  CHECK(!is_taken([](Factors& f) { f.inputs = 33; }));
  CHECK(!is_taken([](Factors& f) { f.outputs = 1 << 30; }));
  CHECK(!is_taken([](Factors& f) { f.rank = 3; }));
  CHECK(!is_taken([](Factors& f) { f.block_rows = 0; }));
  CHECK(!is_taken([](Factors& f) { f.b_table = {1, 60}; }));
  CHECK(is_taken([](Factors& f) { f.b_table = {1, 40}; }));
  CHECK(!is_taken([](Factors& f) { f.b_table = {1, 56}; }));
  CHECK(!is_taken([](Factors& f) { f.bias = {1, 56}; }));
}

TEST_CASE("A head begins no more steps than a pipeline has", "[unit]") {
  Head head;
  RankOrders orders(engine::TestLimits(), 1);
  for (size_t i = 0; i < RankOrders::kMaxSteps; ++i) REQUIRE(orders.Take(head.Plan()).ok());
  CHECK(absl::IsInvalidArgument(orders.Take(head.Plan()).status()));
}

TEST_CASE("A start that asks for more than was offered is refused", "[unit]") {
  engine::RankOffer own;
  own.limits = engine::TestLimits();
  ranks::v1::Start good;
  good.set_num_pages(own.limits.num_pages);
  good.set_num_host_pages(0);
  good.set_max_context(10);
  for (const char* address : {"a", "b"}) good.add_peers()->set_mesh_address(address);
  const auto start = FromStart(good, own, 2);
  REQUIRE(start.ok());
  CHECK(start->limits.max_context == 10);
  CHECK(start->limits.page_tokens == 16);
  CHECK(start->peers.size() == 2);
  CHECK(!FromStart(good, own, 3).ok());
  std::vector<ranks::v1::Start> wrong(7, good);
  wrong[0].set_num_pages(own.limits.num_pages + 1);
  wrong[1].set_num_pages(0);
  wrong[2].set_num_host_pages(-1);
  wrong[3].set_num_host_pages(own.limits.num_host_pages + 1);
  wrong[4].set_max_context(0);
  wrong[5].set_max_context(own.limits.max_context + 1);
  wrong[6].mutable_peers(1)->clear_mesh_address();
  for (const ranks::v1::Start& each : wrong) {
    CHECK(absl::IsInvalidArgument(FromStart(each, own, 2).status()));
  }
}

TEST_CASE("A welcome names a place that there is", "[unit]") {
  RankSettings settings{.layout = {.tp = 2, .pp = 3, .stage_layers = {1, 2, 3}},
                        .weights = "int8",
                        .kv_type = "f16",
                        .page_tokens = 16,
                        .max_batch_tokens = 64,
                        .max_batch_seqs = 8,
                        .max_context = 100,
                        .timeout = std::chrono::milliseconds(1500)};
  const ranks::v1::Welcome good = ToWelcome(settings, 5);
  const auto taken = FromWelcome(good);
  REQUIRE(taken.ok());
  CHECK(taken->layout.tp == 2);
  CHECK(taken->layout.pp == 3);
  CHECK(taken->layout.stage_layers == settings.layout.stage_layers);
  CHECK(taken->weights == "int8");
  CHECK(taken->kv_type == "f16");
  CHECK(taken->page_tokens == 16);
  CHECK(taken->max_batch_tokens == 64);
  CHECK(taken->max_batch_seqs == 8);
  CHECK(taken->max_context == 100);
  CHECK(taken->timeout == std::chrono::milliseconds(1500));
  for (const auto& [rank, tp, pp] : std::vector<std::array<int32_t, 3>>{
           {6, 2, 3}, {0, 2, 3}, {-1, 2, 3}, {1, 0, 3}, {1, 65, 1}, {1, 64, 64}, {1, 1 << 30, 4}}) {
    ranks::v1::Welcome wrong = good;
    wrong.set_rank(rank);
    wrong.set_tp(tp);
    wrong.set_pp(pp);
    CHECK(absl::IsInvalidArgument(FromWelcome(wrong).status()));
  }
}

}  // namespace
}  // namespace heddle::server
