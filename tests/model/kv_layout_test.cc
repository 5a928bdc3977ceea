#include "engine/memory/kv_layout.h"

#include <map>
#include <set>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

using kernels::DType;

constexpr PageRule kRule{.page_tokens = 16, .window_grain = 512, .step_tokens = 512};

// `count` layers of which every `period`-th sees all and the others `window` positions.
std::vector<KvLayer> Mixed(int32_t count, int32_t period, int32_t window) {
  std::vector<KvLayer> layers;
  for (int32_t i = 1; i <= count; ++i) {
    layers.push_back(
        {.shape = {.n_kv_heads = 1, .head_dim = 256}, .window = i % period == 0 ? 0 : window});
  }
  return layers;
}

// Every layer that keeps something has a place of its shape that no other layer of its group has,
// in a group that sees as far.
void CheckPlaces(const std::vector<KvLayer>& layers, const KvLayout& layout) {
  REQUIRE(layout.layers.size() == layers.size());
  std::set<std::pair<int32_t, int32_t>> taken;
  for (size_t i = 0; i < layers.size(); ++i) {
    const KvLayout::Place& at = layout.layers[i];
    if (layers[i].shape.n_kv_heads == 0) {
      CHECK(at.place == KvLayout::kNowhere);
      continue;
    }
    CHECK(layout.places.at(at.place) == layers[i].shape);
    const int32_t window = layout.windows.at(at.group);
    CHECK((window == 0 || (layers[i].window > 0 && window >= layers[i].window)));
    CHECK(taken.insert({at.group, at.place}).second);
  }
}

TEST_CASE("Gemma 3 1B at 32k: four layers that see all, six groups of at most four that see 512",
          "[unit]") {
  const auto layers = Mixed(26, 6, 512);
  const KvLayout layout = PlanKvLayout(layers, kRule, 32768, DType::kBF16);
  CHECK(layout.windows == std::vector<int32_t>{0, 512, 512, 512, 512, 512, 512});
  CHECK(layout.places.size() == 4);
  CheckPlaces(layers, layout);
  // 4 x 32,768 positions of layers, and 24 x 1,584, of the 26 x 32,768 of one group.
  const int64_t pages = kRule.MostPages(32768, layout.windows);
  CHECK(pages == 32768 / 16 + 6 * 1584 / 16);
  const KvLayout one = OneKvGroup(layers);
  CHECK(one.PageBytes(DType::kBF16, 1) == 26 * 2 * 256 * 2);
  CHECK(5 * pages * layout.PageBytes(DType::kBF16, 1) <
        (32768 / 16) * one.PageBytes(DType::kBF16, 1));
}

TEST_CASE("Every second layer: two groups of one size", "[unit]") {
  const auto layers = Mixed(24, 2, 128);  // gpt-oss 20B
  const KvLayout layout = PlanKvLayout(layers, kRule, 131072, DType::kBF16);
  CHECK(layout.windows == std::vector<int32_t>{0, 128});
  CHECK(layout.places.size() == 12);
  CheckPlaces(layers, layout);
}

TEST_CASE("Contexts that windows hardly shorten have one group", "[unit]") {
  const auto layers = Mixed(26, 2, 4096);  // Gemma 2 2B
  CHECK(PlanKvLayout(layers, kRule, 4096, DType::kF16).windows == std::vector<int32_t>{0});
  CHECK(PlanKvLayout(layers, kRule, 8192, DType::kF16).windows == std::vector<int32_t>{0, 4096});
}

TEST_CASE("Models of one kind have one group, which sees as far as its layers", "[unit]") {
  const auto all = Mixed(8, 1, 0);
  CHECK(PlanKvLayout(all, kRule, 32768, DType::kF16).windows == std::vector<int32_t>{0});
  auto windows = Mixed(8, 9, 1024);
  windows[3].window = 0;
  windows[3].shape = {};  // no attention: it keeps nothing, whatever it would see
  const KvLayout layout = PlanKvLayout(windows, kRule, 32768, DType::kF16);
  CHECK(layout.windows == std::vector<int32_t>{1024});
  CHECK(layout.places.size() == 7);
  CheckPlaces(windows, layout);
}

TEST_CASE("Two windows and layers that see all: the furthest first", "[unit]") {
  auto layers = Mixed(12, 3, 256);
  for (size_t i = 0; i < layers.size(); i += 3) layers[i].window = 2048;
  const KvLayout layout = PlanKvLayout(layers, kRule, 65536, DType::kF16);
  CHECK(layout.windows == std::vector<int32_t>{0, 2048, 256});
  CHECK(layout.places.size() == 4);
  CheckPlaces(layers, layout);
}

TEST_CASE("Layers of two shapes share places with their like only", "[unit]") {
  auto layers = Mixed(12, 2, 256);
  for (size_t i = 0; i < layers.size(); i += 4) layers[i].shape.head_dim = 128;
  layers[1].shape.keys_alone = true;
  const KvLayout layout = PlanKvLayout(layers, kRule, 65536, DType::kF16);
  CHECK(layout.n_groups() > 1);
  CheckPlaces(layers, layout);
  std::map<int32_t, int32_t> alone;
  for (const KvLayerShape& place : layout.places) ++alone[place.keys_alone ? 1 : 0];
  CHECK(alone[1] == 1);
}

TEST_CASE("LFM2 1.2B: state lies in pages of its own, which are hardly larger than those of keys",
          "[unit]") {
  std::vector<KvLayer> layers;
  for (int32_t i = 0; i < 16; ++i) {
    const bool attends = i == 2 || i == 5 || i == 8 || i == 10 || i == 12 || i == 14;
    layers.push_back(attends ? KvLayer{.shape = {.n_kv_heads = 8, .head_dim = 64}}
                             : KvLayer{.shape = {.n_kv_heads = 1,
                                                 .head_dim = 2048,
                                                 .keys_alone = true,
                                                 .is_state = true},
                                       .window = 3});
  }
  for (const bool one_group : {false, true}) {
    const KvLayout layout = PlanKvLayout(layers, kRule, 32768, DType::kF16, one_group);
    CheckPlaces(layers, layout);
    // 6 layers of 8 heads with keys and values; two states of 4 * 2,048 bytes need a third more.
    CHECK(layout.windows == std::vector<int32_t>{0, 3, 3, 3, 3, 3});
    CHECK(layout.n_state_groups == 5);
    CHECK(layout.n_kv_groups() == 1);
    CHECK(layout.PageBytes(DType::kF16, 1) == 2 * 4 * 2048);
    CHECK(KvBytesPerToken(layers, DType::kF16) == 6 * 2 * 8 * 64 * 2);
  }
  // Windows of state give back single pages: the window, a step, one page more, and three.
  PageRule rule = kRule;
  rule.state_groups = 1;
  const int32_t windows[] = {0, 3};
  CHECK(rule.MostPages(32768, windows) == 32768 / 16 + (3 + 16 + 512 + 48 + 15) / 16);
  CHECK(kRule.MostPages(32768, windows) == 32768 / 16 + (3 + 512 + 512 + 48 + 15) / 16);
}

TEST_CASE("State of odd formats begins at whole floats, and a model may have nothing else",
          "[unit]") {
  std::vector<KvLayer> layers(
      3, {.shape = {.n_kv_heads = 1, .head_dim = 5, .keys_alone = true, .is_state = true},
          .window = 4});
  CHECK(PlanKvLayout(layers, kRule, 4096, DType::kF16).windows.front() == 4);
  CHECK(PlanKvLayout(layers, kRule, 4096, DType::kF16).n_kv_groups() == 1);
  layers.push_back({.shape = {.n_kv_heads = 3, .head_dim = 7}, .window = 256});
  layers.push_back({.shape = {.n_kv_heads = 3, .head_dim = 7}});
  const KvLayout layout = PlanKvLayout(layers, kRule, 4096, DType::kF8E4M3, true);
  CheckPlaces(layers, layout);
  CHECK(layout.windows.front() == 0);
  CHECK(layout.n_groups() - layout.n_state_groups == 1);
  CHECK(layout.PageBytes(DType::kF8E4M3, 1) % 4 == 0);
  CHECK(layout.PageBytes(DType::kF8E4M3, 1) >= 2 * 2 * 3 * 7);
}

TEST_CASE("A rule's longest sequence is the last whose pages fit", "[unit]") {
  for (const std::vector<int32_t>& windows :
       {std::vector<int32_t>{0}, {0, 128}, {0, 512, 512, 512}, {1024, 16}}) {
    for (int32_t pages : {1, 2, 7, 64, 300, 5000}) {
      const int32_t longest = kRule.LongestWithin(pages, windows, 100'000);
      CHECK(kRule.MostPages(longest, windows) <= pages);
      CHECK((longest == 100'000 || kRule.MostPages(longest + 1, windows) > pages));
    }
  }
}

}  // namespace
}  // namespace heddle::engine
