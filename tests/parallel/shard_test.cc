// Shares of a model: complete, without overlap, and cut where kernels and formats allow it, for any
// number of ranks.
#include "engine/parallel/shard.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/parallel/stage_layers.h"

namespace heddle::engine {
namespace {

const std::vector<double> kEqual3 = {1, 1, 1};

LayerSpec LayerOf(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim, int32_t inter) {
  LayerSpec layer;
  layer.attention.n_heads = n_heads;
  layer.attention.n_kv_heads = n_kv_heads;
  layer.attention.head_dim = head_dim;
  layer.mlp.inter = inter;
  return layer;
}

ModelSpec SpecOf(const LayerSpec& layer, int32_t vocab = 32000) {
  ModelSpec spec;
  spec.hidden = 64;
  spec.vocab = vocab;
  spec.layers = {layer};
  return spec;
}

TEST_CASE("A range is divided in whole units in proportion to the weights", "[unit]") {
  CHECK(Divide(12, 1, kEqual3) == std::vector<Range>{{0, 4}, {4, 4}, {8, 4}});
  CHECK(Divide(5632, 256, std::vector<double>{1, 1}) ==
        std::vector<Range>{{0, 2816}, {2816, 2816}});
  // 22 units for 4: no rank has more than one beyond another.
  CHECK(Divide(5632, 256, std::vector<double>{1, 1, 1, 1}) ==
        std::vector<Range>{{0, 1536}, {1536, 1280}, {2816, 1536}, {4352, 1280}});
  CHECK(Divide(100, 10, std::vector<double>{3, 1, 1}) ==
        std::vector<Range>{{0, 60}, {60, 20}, {80, 20}});
  // The last piece is what the units leave.
  CHECK(Divide(100, 32, std::vector<double>{1, 1}) == std::vector<Range>{{0, 64}, {64, 36}});
}

TEST_CASE("With fewer units than ranks some ranges are empty", "[unit]") {
  const std::vector<Range> ranges = Divide(512, 256, std::vector<double>(5, 1.0));
  REQUIRE(ranges.size() == 5);
  CHECK(std::count_if(ranges.begin(), ranges.end(), [](Range r) { return r.count == 0; }) == 3);
  CHECK(ranges.back().end() == 512);
  CHECK(Divide(0, 32, kEqual3) == std::vector<Range>{{0, 0}, {0, 0}, {0, 0}});
}

// Every query head is on one rank and reads the KV head of its group, by the rule of the attention
// op: local head h reads local KV head h / (heads / KV heads).
void CheckHeads(const AttentionSpec& attention, const std::vector<Share>& shares) {
  const int32_t group = attention.n_heads / attention.n_kv_heads;
  int64_t next = 0;
  for (const Share& share : shares) {
    const HeadShare& own = share.layers[0].attention;
    CHECK(own.heads.first == next);
    next = own.heads.end();
    if (own.heads.count == 0) {
      CHECK(own.kv_heads.empty());
      continue;
    }
    REQUIRE(!own.kv_heads.empty());
    const auto n_kv = static_cast<int64_t>(own.kv_heads.size());
    REQUIRE(own.heads.count % n_kv == 0);
    for (int64_t h = 0; h < own.heads.count; ++h) {
      const int32_t reads = own.kv_heads[static_cast<size_t>(h / (own.heads.count / n_kv))];
      CHECK(reads == (own.heads.first + h) / group);
    }
  }
  CHECK(next == attention.n_heads);
}

TEST_CASE("Heads are shared out completely for any number of ranks", "[unit]") {
  struct Heads {
    int32_t n_heads, n_kv_heads, head_dim;
  };
  const auto heads = GENERATE(values<Heads>({{32, 4, 64},
                                             {32, 8, 128},
                                             {28, 4, 128},
                                             {14, 2, 64},
                                             {12, 2, 128},
                                             {24, 8, 128},
                                             {71, 1, 64},
                                             {32, 32, 96},
                                             {6, 2, 16},
                                             {4, 4, 8},
                                             {1, 1, 8}}));
  const int64_t block = GENERATE(int64_t{1}, int64_t{32}, int64_t{256});
  const LayerSpec layer = LayerOf(heads.n_heads, heads.n_kv_heads, heads.head_dim, 64);
  for (int32_t tp = 1; tp <= 16; ++tp) {
    const std::string name = std::to_string(heads.n_heads) + "/" +
                             std::to_string(heads.n_kv_heads) + " heads, blocks of " +
                             std::to_string(block) + ", tp " + std::to_string(tp);
    INFO(name);
    const std::vector<Share> shares = DivideModel(SpecOf(layer), {.tp = tp}, {.out = block});
    CheckHeads(layer.attention, shares);
    for (const Share& share : shares) {
      const int64_t border = share.layers[0].attention.heads.first * heads.head_dim;
      const int64_t all = int64_t{heads.n_heads} * heads.head_dim;
      CHECK((border % block == 0 || border == all));
    }
  }
}

TEST_CASE("KV heads are replicated only where there are more ranks than KV heads", "[unit]") {
  const LayerSpec layer = LayerOf(32, 4, 64, 64);
  auto kv_of = [&](int32_t tp) {
    std::vector<std::vector<int32_t>> kv;
    for (const Share& share : DivideModel(SpecOf(layer), {.tp = tp}, {})) {
      kv.push_back(share.layers[0].attention.kv_heads);
    }
    return kv;
  };
  CHECK(kv_of(2) == std::vector<std::vector<int32_t>>{{0, 1}, {2, 3}});
  CHECK(kv_of(4) == std::vector<std::vector<int32_t>>{{0}, {1}, {2}, {3}});
  CHECK(kv_of(8) == std::vector<std::vector<int32_t>>{{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}});
}

// Borders of all ranks' ranges, counted from the first input of all.
std::vector<int64_t> RangeBorders(const std::vector<Share>& shares, auto range_of,
                                  auto borders_of) {
  std::vector<int64_t> borders = {0};
  for (const Share& share : shares) {
    const std::vector<int64_t>& own = borders_of(share.layers[0]);
    REQUIRE(!own.empty());
    CHECK(own.back() == range_of(share.layers[0]).count);
    for (size_t i = 1; i < own.size(); ++i) {
      borders.push_back(range_of(share.layers[0]).first + own[i]);
    }
  }
  return borders;
}

TEST_CASE("Groups of 1, 2, 4 and 8 ranks have parts of the same eight ranges", "[unit]") {
  struct Sizes {
    int32_t n_heads, n_kv_heads, inter;
  };
  const auto sizes = GENERATE(
      values<Sizes>({{32, 4, 5632}, {32, 8, 14336}, {9, 3, 96}, {14, 2, 4864}, {2, 1, 32}}));
  const int64_t block = GENERATE(int64_t{1}, int64_t{32}, int64_t{256});
  if (sizes.inter % block != 0) return;
  const LayerSpec layer = LayerOf(sizes.n_heads, sizes.n_kv_heads, 64, sizes.inter);
  const auto heads = [&](int32_t tp) {
    return RangeBorders(
        DivideModel(SpecOf(layer), {.tp = tp, .invariant = true}, {block, block, block}),
        [](const LayerShare& own) { return own.attention.heads; },
        [](const LayerShare& own) { return own.attention.sum_borders; });
  };
  const auto inner = [&](int32_t tp) {
    return RangeBorders(
        DivideModel(SpecOf(layer), {.tp = tp, .invariant = true}, {block, block, block}),
        [](const LayerShare& own) { return own.inner; },
        [](const LayerShare& own) { return own.inner_sum_borders; });
  };
  REQUIRE(heads(1).size() == 9);
  for (const int32_t tp : {2, 4, 8}) {
    CHECK(heads(tp) == heads(1));
    CHECK(inner(tp) == inner(1));
  }
  for (const int64_t border : inner(1)) CHECK((border % block == 0 || border == sizes.inter));
}

TEST_CASE("Ranges of sums leave the shares of ranks as even as units allow", "[unit]") {
  // 22 superblocks.
  const std::vector<Share> shares =
      DivideModel(SpecOf(LayerOf(32, 4, 64, 5632)), {.tp = 2, .invariant = true}, {.down = 256});
  CHECK(shares[0].layers[0].inner == Range{0, 2816});
  CHECK(shares[0].layers[0].inner_sum_borders == std::vector<int64_t>{0, 768, 1536, 2304, 2816});
  CHECK(shares[1].layers[0].inner == Range{2816, 2816});
}

TEST_CASE("Ranks share a layer's features in the order of its second matrix", "[unit]") {
  const ModelSpec spec = SpecOf(LayerOf(32, 4, 64, 256));
  const auto order = std::make_shared<const std::vector<int32_t>>(256, 0);
  const CutBlocks blocks = {.down = 128, .down_orders = {order}};
  for (const Share& share : DivideModel(spec, {.tp = 2}, blocks)) {
    CHECK(share.layers[0].inner_order == order);
    CHECK(share.layers[0].inner.count == 128);
  }
  // Whoever has all of them needs no order.
  CHECK(DivideModel(spec, {.tp = 1}, blocks)[0].layers[0].inner_order == nullptr);
  CHECK(DivideModel(spec, {.tp = 2}, {.down = 128})[0].layers[0].inner_order == nullptr);
}

TEST_CASE("Groups of other sizes, uneven ones and mixtures are summed in one range", "[unit]") {
  const auto has_ranges = [](const LayerSpec& layer, Layout layout) {
    CHECK(DivideModel(SpecOf(layer), layout, {}).front().layers[0].inner_sum_borders.empty());
    layout.invariant = true;
    const LayerShare own = DivideModel(SpecOf(layer), layout, {}).front().layers[0];
    CHECK(own.attention.sum_borders.empty() == own.inner_sum_borders.empty());
    return !own.inner_sum_borders.empty();
  };
  LayerSpec layer = LayerOf(32, 4, 64, 512);
  CHECK(has_ranges(layer, {.tp = 4}));
  CHECK(has_ranges(layer, {.tp = 2, .weights = {3, 3}}));
  CHECK_FALSE(has_ranges(layer, {.tp = 3}));
  CHECK_FALSE(has_ranges(layer, {.tp = 16}));
  CHECK_FALSE(has_ranges(layer, {.tp = 2, .weights = {3, 1}}));
  layer.moe.n_experts = 4;
  layer.moe.inter = 64;
  CHECK_FALSE(has_ranges(layer, {.tp = 2}));
}

TEST_CASE("A norm over all heads has each of them on one rank", "[unit]") {
  LayerSpec layer = LayerOf(8, 2, 16, 64);
  layer.attention.qk_norm = QkNorm::kFullWidth;
  const ModelSpec spec = SpecOf(layer);
  const std::vector<Share> shares = DivideModel(spec, {.tp = 5}, {});
  const ModelSpec own = SpecOfShare(spec, shares, 4);
  const std::vector<int32_t>& heads = own.layers[0].attention.head_borders;
  const std::vector<int32_t>& kv_heads = own.layers[0].attention.kv_head_borders;
  REQUIRE(heads.size() == 6);
  CHECK(heads.back() == 8);
  CHECK(kv_heads.back() == 2);
  for (size_t r = 0; r < heads.size(); ++r) CHECK(heads[r] == 4 * kv_heads[r]);
}

TEST_CASE("Latent attention is cut by query heads and keeps the latent rows on all ranks",
          "[unit]") {
  LayerSpec layer = LayerOf(16, 1, 576, 64);
  layer.attention.mla = {.kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128};
  const ModelSpec spec = SpecOf(layer);
  const std::vector<Share> shares = DivideModel(spec, {.tp = 3}, {.out = 256});
  int64_t heads = 0;
  for (int32_t r = 0; r < 3; ++r) {
    const AttentionSpec own = SpecOfShare(spec, shares, r).layers[0].attention;
    heads += own.n_heads;
    CHECK(own.n_heads % 2 == 0);  // 256 columns of the output projection are two heads
    CHECK(own.n_kv_heads == 1);
    CHECK(own.head_dim == 576);
  }
  CHECK(heads == 16);
}

TEST_CASE("Layers are divided so that no stage has more to do than need be", "[unit]") {
  const auto divide = [](std::vector<double> costs, double first, int32_t stages) {
    return DivideLayers(costs, first, std::vector<StageMeans>(static_cast<size_t>(stages)), {});
  };
  CHECK(divide({1, 1, 1, 1}, 0, 2) == std::vector<int32_t>{2, 2});
  CHECK(divide({1, 1, 1, 1}, 2, 2) == std::vector<int32_t>{1, 3});
  CHECK(divide({1, 1, 1, 5}, 0, 2) == std::vector<int32_t>{3, 1});
  CHECK(divide({5, 1, 1, 1, 1, 1}, 0, 3) == std::vector<int32_t>{1, 5, 0});
  CHECK(divide({1, 1, 1, 1, 1, 1, 1}, 0, 1) == std::vector<int32_t>{7});
  const std::vector<int32_t> few = divide({1, 1}, 0, 4);
  CHECK(few.size() == 4);
  CHECK(std::accumulate(few.begin(), few.end(), 0) == 2);
  CHECK(*std::max_element(few.begin(), few.end()) == 1);
  CHECK(divide({}, 1, 2) == std::vector<int32_t>{0, 0});
}

TEST_CASE("A stage that is slower, or has less room, gets fewer layers", "[unit]") {
  const std::vector<double> costs(12, 1.0);
  const LayerSizes sizes = {std::vector<double>(12, 100.0), /*first=*/150.0};
  const auto divide = [&](const std::vector<StageMeans>& stages) {
    return DivideLayers(costs, /*first=*/0, stages, sizes);
  };
  CHECK(divide({{.speed = 1}, {.speed = 1}}) == std::vector<int32_t>{6, 6});
  CHECK(divide({{.speed = 2}, {.speed = 1}}) == std::vector<int32_t>{8, 4});
  CHECK(divide({{.speed = 1}, {.speed = 5}}) == std::vector<int32_t>{2, 10});
  CHECK(divide({{.speed = 1}, {.speed = 1, .room = 420}}) == std::vector<int32_t>{8, 4});
  // 150 bytes of the first one's are not for layers.
  CHECK(divide({{.speed = 1, .room = 460}, {.speed = 1}}) == std::vector<int32_t>{3, 9});
  // The fast one has no room for what it could compute.
  CHECK(divide({{.speed = 9, .room = 550}, {.speed = 1}, {.speed = 1}}) ==
        std::vector<int32_t>{4, 4, 4});
  // Nothing fits: both lack as much as the other.
  CHECK(divide({{.room = 450}, {.room = 300}}) == std::vector<int32_t>{7, 5});
}

TEST_CASE("Where a stage lacks room, the others are as fast as they can be", "[unit]") {
  const std::vector<double> costs(6, 1.0);
  const LayerSizes sizes = {std::vector<double>(6, 100.0), /*first=*/0.0};
  // Some stage lacks a quarter of its room. If so, the second one may too, and spares the first one
  // a layer.
  CHECK(DivideLayers(
            costs, /*first=*/0,
            std::vector<StageMeans>{
                {.speed = 1, .room = 390}, {.speed = 5, .room = 160}, {.speed = 1, .room = 80}},
            sizes) == std::vector<int32_t>{3, 2, 1});
}

TEST_CASE("A mixture counts with the experts that a few streams read", "[unit]") {
  LayerSpec dense = LayerOf(4, 4, 64, 4096);
  LayerSpec mixture = LayerOf(4, 4, 64, 0);
  mixture.moe.n_experts = 64;
  mixture.moe.inter = 4096;
  mixture.moe.rule.top_k = 1;
  ModelSpec spec = SpecOf(dense, /*vocab=*/1);
  spec.layers = {dense, dense, dense, dense, dense, dense, dense, mixture};
  // Eight rows choose 7.6 of 64 experts: as much as seven such layers and a half, not 64.
  CHECK(StageLayers(spec, std::vector<StageMeans>(2), {}) == std::vector<int32_t>{7, 1});
  spec.layers.insert(spec.layers.begin(), 8, dense);
  CHECK(StageLayers(spec, std::vector<StageMeans>(2), {}) == std::vector<int32_t>{11, 5});
}

TEST_CASE("A head of the size of two layers leaves the stages of a long prompt even", "[unit]") {
  const auto layers_of = [](int32_t n_layers, const LayerSpec& layer, int32_t vocab, int32_t pp) {
    ModelSpec spec = SpecOf(layer, vocab);
    spec.layers.assign(static_cast<size_t>(n_layers), layer);
    std::vector<int64_t> counts;
    for (const Share& share : DivideModel(spec, {.pp = pp}, {})) {
      counts.push_back(share.stage_layers.count);
    }
    return counts;
  };
  // Llama 3.1 8B: the head has as many weights as 2.4 layers.
  const LayerSpec llama = LayerOf(32, 8, 128, 14336);
  CHECK(layers_of(32, llama, 128256, 2) == std::vector<int64_t>{16, 16});
  CHECK(layers_of(32, llama, 128256, 4) == std::vector<int64_t>{8, 8, 8, 8});
  // A head of the size of nine layers, as small models with large vocabularies have it.
  const LayerSpec small = LayerOf(14, 2, 64, 4864);
  CHECK(layers_of(24, small, 151936, 2) == std::vector<int64_t>{11, 13});
}

TEST_CASE("Each layer is in one stage, shared by that stage's ranks", "[unit]") {
  ModelSpec spec = SpecOf(LayerOf(8, 4, 16, 64));
  spec.layers.assign(5, spec.layers.front());
  const Layout layout{.tp = 2, .pp = 3, .stage_layers = {1, 3, 1}};
  const std::vector<Share> shares = DivideModel(spec, layout, {});
  REQUIRE(shares.size() == 6);
  for (int32_t i = 0; i < 6; ++i) {
    const ModelSpec own = SpecOfShare(spec, shares, i);
    INFO("rank " << i);
    CHECK(own.stage == i / 2);
    CHECK(own.rank == i % 2);
    CHECK(own.n_stages == 3);
    CHECK((own.own_vocab() > 0) == (i < 2));
    for (int32_t l = 0; l < 5; ++l) {
      const int32_t stage = l == 0 ? 0 : l < 4 ? 1 : 2;
      const LayerSpec& layer = own.layers[static_cast<size_t>(l)];
      CHECK(layer.attention.n_heads == (stage == own.stage ? 4 : 0));
      CHECK(layer.mlp.inter == (stage == own.stage ? 32 : 0));
      CHECK(layer.mlp_is_part == (stage == own.stage));
    }
  }
}

TEST_CASE("Experts are shared out whole where ranks are asked to have them so", "[unit]") {
  LayerSpec layer = LayerOf(4, 4, 8, 64);
  layer.moe.n_experts = 8;
  layer.moe.inter = 96;
  const ModelSpec spec = SpecOf(layer);
  for (const int32_t tp : {1, 2, 3, 11}) {
    INFO(tp << " ranks");
    const std::vector<Share> shares = DivideModel(spec, {.tp = tp, .expert_parallel = true}, {});
    int64_t next = 0;
    for (int32_t r = 0; r < tp; ++r) {
      const LayerShare& own = shares[static_cast<size_t>(r)].layers[0];
      CHECK(own.experts.first == next);
      CHECK(own.expert_inner == Range{0, 96});
      CHECK(own.experts.count <= (8 + tp - 1) / tp);
      next = own.experts.end();
      const MoeSpec moe = SpecOfShare(spec, shares, r).layers[0].moe;
      CHECK(moe.n_here() == own.experts.count);
      CHECK(moe.n_experts == (own.experts.count > 0 ? 8 : 0));
      CHECK((own.experts.count == 0 || moe.first_here == own.experts.first));
    }
    CHECK(next == 8);
  }
  const LayerShare cut = DivideModel(spec, {.tp = 2}, {}).front().layers[0];
  CHECK(cut.experts == Range{0, 8});
  CHECK(cut.expert_inner.count < 96);
}

TEST_CASE("Inner features and vocabulary are shared out completely", "[unit]") {
  const int32_t inter = GENERATE(1, 32, 96, 100, 768, 5632, 18944);
  const int64_t block = GENERATE(int64_t{1}, int64_t{32}, int64_t{256});
  if (inter % block != 0) return;
  const int32_t vocab = GENERATE(1, 7, 259, 32000, 151936);
  LayerSpec layer = LayerOf(4, 4, 8, inter);
  layer.moe.n_experts = 8;
  layer.moe.inter = inter;
  for (int32_t tp = 1; tp <= 9; ++tp) {
    INFO(inter << " features in blocks of " << block << ", " << vocab << " tokens, tp " << tp);
    const ModelSpec spec = SpecOf(layer, vocab);
    const std::vector<Share> shares =
        DivideModel(spec, {.tp = tp}, {.down = block, .expert_down = block});
    int64_t features = 0;
    int64_t tokens = 0;
    for (const Share& share : shares) {
      CHECK(share.layers[0].inner.first == features);
      CHECK(share.layers[0].inner.count % block == 0);
      CHECK(share.layers[0].inner == share.layers[0].expert_inner);
      CHECK(share.vocab.first == tokens);
      features = share.layers[0].inner.end();
      tokens = share.vocab.end();
    }
    CHECK(features == inter);
    CHECK(tokens == vocab);
  }
}

TEST_CASE("No rank has more than one unit beyond its even share", "[unit]") {
  for (int32_t tp = 2; tp <= 8; ++tp) {
    const std::vector<Share> shares =
        DivideModel(SpecOf(LayerOf(32, 8, 128, 14336)), {.tp = tp}, {.down = 256});
    for (const Share& share : shares) {
      CHECK(std::abs(static_cast<double>(share.layers[0].inner.count) - 14336.0 / tp) <= 256);
      CHECK(std::abs(static_cast<double>(share.vocab.count) - 32000.0 / tp) <= 32);
    }
  }
}

TEST_CASE("The part of a group of one is the whole model", "[unit]") {
  const ModelSpec spec = SpecOf(LayerOf(8, 2, 16, 96));
  const std::vector<Share> shares = {WholeShare(spec)};
  CHECK(shares[0].layers[0].attention.heads == Range{0, 8});
  CHECK(shares[0].layers[0].attention.kv_heads == std::vector<int32_t>{0, 1});
  CHECK(shares[0].layers[0].inner == Range{0, 96});
  CHECK(shares[0].vocab == Range{0, 32000});
  const ModelSpec own = SpecOfShare(spec, shares, 0);
  CHECK(!own.is_part());
  CHECK(!own.layers[0].attention_is_part);
  CHECK(!own.layers[0].mlp_is_part);
}

TEST_CASE("A part says what it adds up with others, even where it has nothing", "[unit]") {
  LayerSpec layer = LayerOf(2, 2, 16, 32);
  layer.mlp.row_gate = true;
  const ModelSpec spec = SpecOf(layer, 3);
  const std::vector<Share> shares = DivideModel(spec, {.tp = 4}, {.down = 32});
  int without_heads = 0;
  int without_features = 0;
  for (int32_t r = 0; r < 4; ++r) {
    const ModelSpec own = SpecOfShare(spec, shares, r);
    CHECK(own.is_part());
    CHECK(own.rank == r);
    CHECK(own.vocab == 3);
    CHECK(own.vocab_borders.back() == 3);
    CHECK(own.layers[0].attention_is_part);
    CHECK(own.layers[0].mlp_is_part);
    without_heads += own.layers[0].attention.n_heads == 0 ? 1 : 0;
    without_features += own.layers[0].mlp.inter == 0 ? 1 : 0;
    CHECK(own.layers[0].mlp.row_gate == (own.layers[0].mlp.inter > 0));
  }
  CHECK(without_heads == 2);
  CHECK(without_features == 3);
}

TEST_CASE("Shares follow their weights", "[unit]") {
  const std::vector<Share> shares =
      DivideModel(SpecOf(LayerOf(32, 8, 128, 4096)), {.tp = 2, .weights = {3, 1}}, {.down = 32});
  CHECK(shares[0].layers[0].attention.heads == Range{0, 24});
  CHECK(shares[1].layers[0].inner == Range{3072, 1024});
}

}  // namespace
}  // namespace heddle::engine
