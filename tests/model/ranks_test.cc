// Ranks of one process: layouts that cannot work are refused by name, a step that fails on one rank
// ends on all, and what is planned counts all ranks.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "engine/model/load_ranks.h"
#include "engine/model/random_model.h"
#include "engine/model/tuned_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

ModelSpec SmallSpec() {
  LayerSpec layer;
  layer.attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .scale = 0.25f};
  layer.mlp.inter = 96;
  ModelSpec spec;
  spec.hidden = 64;
  spec.vocab = 100;
  spec.max_context = 64;
  spec.layers = {layer, layer};
  return spec;
}

std::string Refusal(const LoadOptions& options) {
  return std::string(CheckLayout(options).message());
}

TEST_CASE("A layout that cannot work is refused by the name of its option", "[unit]") {
  LoadOptions options;
  CHECK(Refusal(options).empty());
  options.layout.tp = 65;
  CHECK(Refusal(options) == "tp is 65; it must be from 1 to 64");
  options.layout.tp = 2;
  CHECK(Refusal(options).empty());
  options.rank_cpus = {{0}};
  CHECK(Refusal(options) == "--rank-cpus has 1 lists for 2 ranks (--tp times --pp)");
  options.rank_cpus = {{0}, {0}};
  CHECK(Refusal(options) == "--rank-cpus names processor 0 twice");
  options.rank_cpus = {{0}, {5000}};
  CHECK(Refusal(options) == "--rank-cpus names processor 5000, which this process may not use");
  options.rank_cpus.clear();
  options.layout.pp = 0;
  CHECK(Refusal(options) == "pp is 0; it must be from 1 to 64");
  options.layout.pp = 33;
  CHECK(Refusal(options) == "tp times pp is 66; it must be at most 64");
  options.layout.pp = 2;
  CHECK(Refusal(options).empty());
  CHECK(LayoutText(options.layout) == "--tp 2 --pp 2");
  options.layout.pp = 1;
  options.make_device = [] { return kernels::CreateCpuDevice({}); };
  CHECK(Refusal(options).find("--tp 2 is for --device cpu") == 0);
  options.make_rank_device = [](int32_t) { return kernels::CreateCpuDevice({}); };
  CHECK(Refusal(options).empty());
  options.layout.expert_parallel = true;
  CHECK(Refusal(options).empty());
}

TEST_CASE("Ranks with state follow no tune profile", "[unit]") {
  ModelSpec spec = SmallSpec();
  LoadOptions options;
  options.splits_steps = true;
  options.layout.tp = 2;
  CHECK(CheckSplits(spec, options).ok());
  spec.layers[1].attention.conv = {.taps = 3, .channels = 64};
  CHECK(CheckSplits(spec, options).message().find("--tune-profile with --tp: steps of models") ==
        0);
  spec.layers[1] = spec.layers[0];
  spec.layers[0].attention.recurrence.shape.taps = 4;
  CHECK(absl::IsUnimplemented(CheckSplits(spec, options)));
  options.layout.tp = 1;
  CHECK(CheckSplits(spec, options).ok());
  options.layout.tp = 2;
  options.splits_steps = false;
  CHECK(CheckSplits(spec, options).ok());
}

TEST_CASE("A model is known by what its steps take time for", "[unit]") {
  ModelSpec spec = SmallSpec();
  const AttentionSpec& attention = spec.layers[0].attention;
  const auto text = [&](std::string_view weights = "q4_0") {
    return TunedModelText(spec, weights, kernels::DType::kBF16);
  };
  const std::string layer =
      absl::StrCat(attention.n_heads, "/", attention.n_kv_heads, " heads of ", attention.head_dim,
                   " and ", spec.layers[0].mlp.inter, " features");
  const std::string ends = "; weights q4_0, keys bf16";
  const std::string begins = absl::StrCat(spec.hidden, " wide, ", spec.vocab, " tokens, ");
  CHECK(text() == absl::StrCat(begins, spec.n_layers(), " layers of ", layer, ends));
  const std::string first = text();
  CHECK(text("bf16") != first);
  spec.norm_eps *= 2;
  CHECK(text() == first);
  spec.layers.back().attention.window = 64;
  CHECK(text() == absl::StrCat(begins, spec.n_layers() - 1, " layers of ", layer, ", 1 layers of ",
                               attention.n_heads, "/", attention.n_kv_heads, " heads of ",
                               attention.head_dim, " within 64 and ", spec.layers[0].mlp.inter,
                               " features", ends));
  spec.layers[0].moe = {.n_experts = 8, .inter = 96, .rule = {.top_k = 2}};
  CHECK(text().find(layer + " and 2 of 8 experts of 96") != std::string::npos);
}

TEST_CASE("A profile of another model is refused by name", "[unit]") {
  CHECK(CheckTunedModel("", "a").ok());
  CHECK(CheckTunedModel("a", "a").ok());
  const absl::Status other = CheckTunedModel("a\nb", std::string(1000, 'x'));
  CHECK(absl::IsInvalidArgument(other));
  CHECK(other.message() ==
        absl::StrCat("--tune-profile was measured with another model, format of weights or type of "
                     "keys: \"a\\nb\"; this one is \"",
                     std::string(400, 'x'),
                     "...\"; measure it with heddle tune, or leave the profile out"));
  // Before weights are read: the model's description is enough.
  LoadOptions options;
  options.splits_steps = true;
  options.tuned_model = "another";
  const auto described = DescribeRandomModel("tinyllama-1.1b", kernels::DType::kQ4_0, options);
  CHECK(described.status().message().find("keys: \"another\"; this one is \"2048 wide, 32000 "
                                          "tokens, 22 layers of 32/4 heads of 64 and 5632 "
                                          "features; weights ") != std::string::npos);
  options.tuned_model.clear();
  const auto fits = DescribeRandomModel("tinyllama-1.1b", kernels::DType::kQ4_0, options);
  REQUIRE(fits.ok());
  options.tuned_model = TunedModelOf(*fits);
  CHECK(DescribeRandomModel("tinyllama-1.1b", kernels::DType::kQ4_0, options).ok());
  CHECK(!DescribeRandomModel("tinyllama-1.1b", kernels::DType::kQ8_0, options).ok());
}

TEST_CASE("Shares that cannot be are refused", "[unit]") {
  LoadOptions options;
  options.layout.tp = 2;
  options.layout.weights = {2, 1};
  CHECK(Refusal(options).empty());
  options.layout.invariant = true;
  CHECK(Refusal(options).find("--tp-invariant is for ranks with equal shares") == 0);
  options.layout.invariant = false;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> all[] = {{1},      {1, 1, 1}, {0, 1},    {-1, 1},     {1, 0},
                                     {1, 1e4}, {1, kInf}, {kNan, 1}, {1, kNan, 2}};
  for (const std::vector<double>& shares : all) {
    options.layout.weights = shares;
    INFO(shares.back());
    CHECK(Refusal(options).find("the shares of ranks are") == 0);
  }
}

TEST_CASE("Models that differ in a setting have other digests", "[unit]") {
  const test::TempDir folder;
  const auto digest_of = [](const std::filesystem::path& path) {
    const absl::StatusOr<uint64_t> digest = ModelDigest(path);
    REQUIRE(digest.ok());
    return *digest;
  };
  const std::vector<std::byte> data(32 * sizeof(float));
  const auto gguf = [&](float eps) {
    const std::filesystem::path path = folder.path() / "model.gguf";
    std::ofstream(path, std::ios::binary)
        << test::GgufWriter()
               .String("general.architecture", "llama")
               .F32("llama.attention.layer_norm_rms_epsilon", eps)
               .Tensor("output_norm.weight", 0, std::vector<int64_t>{32}, data)
               .Bytes();
    return digest_of(path);
  };
  CHECK(gguf(1e-5f) == gguf(1e-5f));
  CHECK(gguf(1e-5f) != gguf(1e-6f));

  const std::filesystem::path demo = folder.path() / "demo";
  std::filesystem::copy(test::SourceDir() / "share" / "demo-model", demo,
                        std::filesystem::copy_options::recursive);
  const uint64_t plain = digest_of(demo);
  CHECK(plain == digest_of(test::SourceDir() / "share" / "demo-model"));
  std::ofstream(demo / "quantize_config.json") << R"({"bits": 4, "group_size": 32})";
  const uint64_t by_32 = digest_of(demo);
  std::ofstream(demo / "quantize_config.json") << R"({"bits": 4, "group_size": 64})";
  CHECK(by_32 != plain);
  CHECK(by_32 != digest_of(demo));
}

TEST_CASE("Stages have all layers of the model, or are refused", "[unit]") {
  const auto refusal = [](const Layout& layout) {
    return std::string(CheckLayoutOf(SmallSpec(), layout).message());
  };
  CHECK(refusal({.pp = 3}).empty());
  CHECK(refusal({.pp = 2, .stage_layers = {2, 0}}).empty());
  for (const std::vector<int32_t>& counts :
       {std::vector<int32_t>{1, 2}, std::vector<int32_t>{2}, std::vector<int32_t>{3, -1}}) {
    CHECK(refusal({.pp = 2, .stage_layers = counts})
              .find("it must be 2 numbers (--pp) with the sum 2") != std::string::npos);
  }
}

// Ranks in processes that have these means, and never come.
class Means final : public RankMeeting {
 public:
  explicit Means(std::vector<RankMeans> ranks) : ranks_(std::move(ranks)) {}
  int32_t rank() const override { return 0; }
  absl::StatusOr<std::vector<int32_t>> StageLayers(const DivideStagesFn& divide) override {
    return divide(ranks_);
  }
  absl::StatusOr<ExecutorLimits> Agree(const RankOffer&) override { return Nobody(); }
  absl::Status JoinGroups(kernels::Device&) override { return Nobody(); }
  absl::StatusOr<std::unique_ptr<OtherRanks>> Others(const ExecutorLimits&) override {
    return Nobody();
  }

 private:
  static absl::Status Nobody() { return absl::UnavailableError("nobody is there"); }

  const std::vector<RankMeans> ranks_;
};

TEST_CASE("Layers are divided by what the machines of a pipeline have", "[unit]") {
  const std::filesystem::path demo = test::SourceDir() / "share" / "demo-model";
  const auto layers = [&](LoadOptions options, std::vector<RankMeans> ranks) {
    if (!ranks.empty()) options.meeting = std::make_shared<Means>(std::move(ranks));
    options.layout.pp = 2;
    const auto model = DescribeModel(demo, options);
    INFO(model.status().ToString());
    REQUIRE(model.ok());
    std::vector<int64_t> counts;
    for (const Share& share : model->shares) {
      if (share.rank == 0) counts.push_back(share.stage_layers.count);
    }
    return counts;
  };
  LoadOptions options;
  const std::vector<int64_t> even = layers(options, {});
  const int64_t all = even[0] + even[1];
  const RankMeans usual = {.read_gb_s = 10, .memory_bytes = int64_t{64} << 30};
  CHECK(layers(options, {usual, usual}) == even);
  CHECK(layers(options, {usual, {.read_gb_s = 11, .memory_bytes = int64_t{64} << 30}}) == even);
  CHECK(layers(options, {usual, {}}) == even);  // nobody knows
  CHECK(layers(options, {usual, {.read_gb_s = 40, .memory_bytes = int64_t{64} << 30}})[1] >
        even[1]);
  CHECK(layers(options, {usual, {.read_gb_s = 1000, .memory_bytes = 0}})[1] == all);
  // Room for the weights of one layer, and not of two.
  const auto whole = DescribeModel(demo, options);
  REQUIRE(whole.ok());
  const int64_t layer_bytes = whole->ranks[0].weight_bytes / (all + 1);
  CHECK(layers(options, {usual, {.read_gb_s = 10, .memory_bytes = layer_bytes}})[1] < even[1]);
  // What is asked for is done.
  options.layout.stage_layers = {static_cast<int32_t>(all - 1), 1};
  CHECK(layers(options, {usual, {.read_gb_s = 40, .memory_bytes = 0}})[1] == 1);
  // With two ranks in each stage the slower one decides.
  options.layout.stage_layers.clear();
  options.layout.tp = 2;
  const RankMeans slow = {.read_gb_s = 2, .memory_bytes = 0};
  CHECK(layers(options, {usual, usual, usual, slow})[1] < even[1]);
}

TEST_CASE("Threads are divided among ranks, and each has one", "[unit]") {
  LoadOptions options;
  options.layout.tp = 3;
  const auto threads = [&](int32_t all) {
    options.cpu.num_threads = all;
    std::vector<int32_t> each;
    for (int32_t r = 0; r < 3; ++r) each.push_back(CpuOfRank(options, r).num_threads);
    return each;
  };
  CHECK(threads(8) == std::vector<int32_t>{3, 3, 2});
  CHECK(threads(1) == std::vector<int32_t>{1, 1, 1});
  options.rank_cpus = {{0, 1}, {2}, {3, 4, 5}};
  CHECK(threads(0) == std::vector<int32_t>{2, 1, 3});
  CHECK(threads(2) == std::vector<int32_t>{2, 1, 2});  // of each rank
}

// The model's description as LoadRanks needs it.
ModelInfo InfoOf(const ModelSpec& spec, int32_t tp, int32_t pp = 1, int32_t adapter_max_rank = 0) {
  ModelInfo info;
  info.model.spec = spec;
  info.shares = DivideModel(spec, {.tp = tp, .pp = pp}, {});
  CapacityOptions options;
  options.kv_bytes = 1 << 20;
  options.max_batch_tokens = 8;
  options.adapter_max_rank = adapter_max_rank;
  options.rank_specs = SpecsOfRanks(spec, info.shares);
  auto capacity = PlanCapacity(spec, 0, {int64_t{1} << 32, int64_t{1} << 32}, options);
  REQUIRE(capacity.ok());
  info.capacity = *capacity;
  return info;
}

TEST_CASE("A page is what all ranks keep of it", "[unit]") {
  // 2 layers, keys and values in F16, 16 of a head, pages of 16 positions.
  const int64_t head_bytes = 2 * 2 * 2 * 16 * 16;
  CHECK(InfoOf(SmallSpec(), 1).capacity.page_bytes == 2 * head_bytes);
  CHECK(InfoOf(SmallSpec(), 2).capacity.page_bytes == 2 * head_bytes);
  CHECK(InfoOf(SmallSpec(), 4).capacity.page_bytes == 4 * head_bytes);  // each has one of the two
  CHECK(InfoOf(SmallSpec(), 1, 2).capacity.page_bytes == 2 * head_bytes);
  CHECK(InfoOf(SmallSpec(), 4, 2).capacity.page_bytes == 4 * head_bytes);
  CHECK(InfoOf(SmallSpec(), 2).capacity.workspace_bytes >
        InfoOf(SmallSpec(), 1).capacity.workspace_bytes);
}

TEST_CASE("With adapters a rank that keeps few heads or none has room for them in its pages",
          "[unit]") {
  const int64_t head_bytes = 2 * 2 * 2 * 16 * 16;  // as above
  ModelSpec spec = SmallSpec();
  for (LayerSpec& layer : spec.layers) layer.attention.qk_norm = QkNorm::kFullWidth;
  CHECK(InfoOf(spec, 3).capacity.page_bytes == 2 * head_bytes);
  const Capacity capacity = InfoOf(spec, 3, /*pp=*/1, /*adapter_max_rank=*/8).capacity;
  std::vector<int64_t> pages = capacity.rank_page_bytes;
  std::sort(pages.begin(), pages.end());
  CHECK(pages == std::vector<int64_t>{head_bytes / 2, head_bytes, head_bytes});
  CHECK(capacity.page_bytes == 5 * head_bytes / 2);
  CHECK(capacity.limits.adapter_slots > 0);
}

TEST_CASE("A head that fails wakes the ranks that wait for it", "[unit]") {
  const int32_t tp = GENERATE(3, 1, 2);
  const int32_t pp = tp == 3 ? 1 : 2;
  const ModelInfo info = InfoOf(SmallSpec(), tp, pp);
  LoadOptions options;
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.cpu.num_threads = tp * pp;
  auto head = kernels::CreateCpuDevice(CpuOfRank(options, 0));
  REQUIRE(head.ok());
  auto loaded = LoadRanks(
      options, info,
      [&](kernels::Device& on, int32_t rank) {
        return RandomWeights(on, SpecOfShare(info.model.spec, info.shares, rank),
                             kernels::DType::kF32, /*seed=*/1);
      },
      **head);
  REQUIRE(loaded.ok());
  StepPlan plan;
  plan.token_ids = {1};
  plan.positions = {0};
  plan.kv_slots = {{PageId{0}, 0}};
  plan.spans = {{PageId{0}, 1}};
  plan.sequences = {{.id = SequenceId{1}, .num_tokens = 1, .num_spans = 1, .context_tokens = 1}};
  // The others begin and wait for the head's part of the embedding, or its rows: they never come.
  loaded->others->Begin(plan, {});
  CHECK(loaded->others->Join(absl::InternalError("the head is out of luck")).message() ==
        "the head is out of luck");
  // Later steps end at once, with the first reason.
  loaded->others->Begin(plan, {});
  CHECK(loaded->others->Join(absl::OkStatus()).message() == "the head is out of luck");
}

}  // namespace
}  // namespace heddle::engine
