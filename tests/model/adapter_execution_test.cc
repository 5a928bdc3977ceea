// Rows with an adapter get what the base with merged weights computes; rows without one, and rows
// beside others, get the same bits as alone.
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/adapter_images.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using test::PlainFactors;

constexpr int32_t kMaxRank = 24;

// A model on disk, as tensors that a test may change.
class EditableModel {
 public:
  EditableModel(const std::string& golden, const std::filesystem::path& folder)
      : folder_(test::WriteSyntheticModel(test::LoadGolden(golden), folder)),
        tensors_(test::SyntheticTensors(test::LoadGolden(golden))) {}

  // tensor += scale * B A.
  void Merge(const std::string& name, const PlainFactors& factors) {
    for (test::TensorToWrite& tensor : tensors_) {
      if (tensor.name != name) continue;
      REQUIRE(tensor.dtype == "F32");
      auto* values = reinterpret_cast<float*>(tensor.data.data());
      const int64_t rows = tensor.shape.at(0), cols = tensor.shape.at(1);
      REQUIRE(static_cast<int64_t>(factors.a.size()) == factors.rank * cols);
      REQUIRE(static_cast<int64_t>(factors.b.size()) == factors.rank * rows);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          double delta = 0;
          for (int64_t j = 0; j < factors.rank; ++j) {
            delta += static_cast<double>(factors.b[static_cast<size_t>(j * rows + r)]) *
                     factors.a[static_cast<size_t>(j * cols + c)];
          }
          values[r * cols + c] += static_cast<float>(factors.scale * delta);
        }
      }
      return;
    }
    FAIL("no tensor " << name);
  }

  int64_t Dim(const std::string& name, size_t axis) const {
    for (const test::TensorToWrite& tensor : tensors_) {
      if (tensor.name == name) return tensor.shape.at(axis);
    }
    FAIL("no tensor " << name);
    return 0;
  }

  std::unique_ptr<LocalExecutor> Load(int32_t max_rank) const {
    test::WriteFile(folder_ / "model.safetensors", test::SafetensorsBytes(tensors_));
    LoadOptions options;
    options.cpu.num_threads = 2;
    options.capacity.kv_bytes = 2 << 20;
    options.capacity.page_tokens = 16;
    options.capacity.max_batch_tokens = 64;
    options.capacity.adapter_max_rank = max_rank;
    options.kv_type = "f32";
    auto model = LoadLocalModel(folder_, options);
    INFO(model.status().ToString());
    REQUIRE(model.ok());
    return std::move(model->executor);
  }

 private:
  std::filesystem::path folder_;
  std::vector<test::TensorToWrite> tensors_;
};

// A linear of the golden model, and its place in the decoder.
struct Linear {
  std::string name;  // after "model.layers.L."
  AdapterSite site;
  int32_t part = 0;
};

const std::vector<Linear> kLlamaLinears = {
    {"self_attn.q_proj", AdapterSite::kQkv, 0}, {"self_attn.k_proj", AdapterSite::kQkv, 1},
    {"self_attn.v_proj", AdapterSite::kQkv, 2}, {"self_attn.o_proj", AdapterSite::kOut},
    {"mlp.gate_proj", AdapterSite::kUp, 0},     {"mlp.up_proj", AdapterSite::kUp, 1},
    {"mlp.down_proj", AdapterSite::kDown}};

std::string TensorOf(int32_t layer, const Linear& linear) {
  return "model.layers." + std::to_string(layer) + "." + linear.name + ".weight";
}

PlainFactors RandomFactors(const EditableModel& model, int32_t layer, const Linear& linear,
                           int32_t rank, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  PlainFactors factors{
      .layer = layer, .site = linear.site, .part = linear.part, .rank = rank, .scale = 0.75f};
  const std::string name = TensorOf(layer, linear);
  factors.a.resize(static_cast<size_t>(rank * model.Dim(name, 1)));
  factors.b.resize(static_cast<size_t>(rank * model.Dim(name, 0)));
  for (float& value : factors.a) value = 0.1f * normal(*random);
  for (float& value : factors.b) value = 0.1f * normal(*random);
  return factors;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  return largest;
}

std::shared_ptr<const AdapterImage> ImageOf(std::span<const PlainFactors> factors,
                                            const LocalExecutor& executor, uint64_t id) {
  const ExecutorLimits& limits = executor.limits();
  auto image = test::MakeAdapterImage(factors, limits.adapter_dtype, limits.page_bytes,
                                      /*block_rows=*/3, /*seed=*/id);
  image->id = AdapterId{id};
  return image;
}

TEST_CASE("An adapter of mixed ranks equals the base with merged weights", "[golden]") {
  test::TempDir dir;
  EditableModel model("llama", dir.path());
  const std::vector<int32_t> prompt = test::LoadGolden("llama").prompt;
  auto base = model.Load(kMaxRank);
  const std::vector<float> plain = test::AllLogits(*base, prompt, 5);

  std::mt19937_64 random(3);
  std::vector<PlainFactors> factors;
  std::vector<std::string> names;
  for (int32_t layer = 0; layer < base->spec().n_layers(); ++layer) {
    for (size_t i = 0; i < kLlamaLinears.size(); ++i) {
      if (layer == 1 && i % 3 == 0) continue;  // not every linear has factors
      const int32_t rank =
          1 + static_cast<int32_t>((i * 5 + static_cast<size_t>(layer)) % kMaxRank);
      factors.push_back(RandomFactors(model, layer, kLlamaLinears[i], rank, &random));
      names.push_back(TensorOf(layer, kLlamaLinears[i]));
    }
  }
  const auto image = ImageOf(factors, *base, 1);
  CHECK(image->num_pages > 1);
  const std::vector<float> adapted = test::AllLogits(*base, prompt, 5, {image, 1.0f});
  const std::vector<float> doubled = test::AllLogits(*base, prompt, 64, {image, 2.0f});
  // The base is not touched, and a scale of 0 leaves it as it is.
  CHECK(test::AllLogits(*base, prompt, 5) == plain);
  CHECK(test::AllLogits(*base, prompt, 5, {image, 0.0f}) == plain);

  for (size_t i = 0; i < factors.size(); ++i) model.Merge(names[i], factors[i]);
  const std::vector<float> merged = test::AllLogits(*model.Load(0), prompt, 5);
  for (size_t i = 0; i < factors.size(); ++i) model.Merge(names[i], factors[i]);
  const std::vector<float> merged_twice = test::AllLogits(*model.Load(0), prompt, 5);
  CHECK(LargestDifference(plain, merged) > 0.1);
  CHECK(LargestDifference(adapted, merged) < 2e-4);
  CHECK(LargestDifference(doubled, merged_twice) < 2e-4);
}

// Runs the prompt's sequences in one plan, each with its own slot (-1: the base).
std::vector<std::vector<float>> MixedLogits(
    LocalExecutor& executor, std::span<const int32_t> prompt, std::span<const int32_t> slots,
    std::span<const std::shared_ptr<const AdapterImage>> images) {
  const ExecutorLimits& limits = executor.limits();
  StepPlan plan;
  StepLocals locals;
  int32_t next_page = 0;
  for (size_t i = 0; i < images.size(); ++i) {
    const auto begin = static_cast<int32_t>(plan.adapter_pages.size());
    for (int32_t p = 0; p < images[i]->num_pages; ++p) {
      plan.adapter_loads.push_back({images[i]->id, p, PageId{next_page}});
      plan.adapter_pages.push_back(PageId{next_page++});
    }
    plan.adapter_binds.push_back({.adapter = images[i]->id,
                                  .slot = static_cast<int32_t>(i),
                                  .scale = 1.0f,
                                  .page_begin = begin,
                                  .num_pages = images[i]->num_pages});
    locals.adapters.push_back(images[i]);
  }
  const auto length = static_cast<int32_t>(prompt.size());
  for (size_t s = 0; s < slots.size(); ++s) {
    const SequenceId id{s + 1};
    plan.begun.push_back({.id = id, .sampling = {}, .prompt = {}});
    const auto first_row = static_cast<int32_t>(plan.token_ids.size());
    const auto first_span = static_cast<int32_t>(plan.spans.size());
    for (int32_t at = 0; at < length; ++at) {
      if (at % limits.page_tokens == 0) {
        plan.spans.push_back({PageId{next_page}, std::min(limits.page_tokens, length - at)});
        ++next_page;
      }
      plan.token_ids.push_back(prompt[static_cast<size_t>(at)]);
      plan.positions.push_back(at);
      plan.kv_slots.push_back({plan.spans.back().page, at % limits.page_tokens});
    }
    plan.sequences.push_back({.id = id,
                              .token_begin = first_row,
                              .num_tokens = length,
                              .span_begin = first_span,
                              .num_spans = static_cast<int32_t>(plan.spans.size()) - first_span,
                              .context_tokens = length,
                              .adapter_slot = slots[s]});
    plan.scores.push_back({id, first_row + length - 1, prompt[0], 0});
    plan.ended.push_back(id);
  }
  REQUIRE(next_page <= limits.num_pages);
  StepResult result;
  REQUIRE(executor.Submit(plan, locals).ok());
  REQUIRE(executor.Wait(&result).ok());
  const std::vector<float> all = executor.last_logits();
  std::vector<std::vector<float>> each;
  for (size_t s = 0; s < slots.size(); ++s) {
    const auto begin = all.begin() + static_cast<int64_t>(s) * limits.vocab;
    each.emplace_back(begin, begin + limits.vocab);
  }
  return each;
}

TEST_CASE("Rows of several adapters and of the base get the same bits in one step as alone",
          "[golden]") {
  test::TempDir dir;
  EditableModel model("llama", dir.path());
  auto executor = model.Load(kMaxRank);
  const std::vector<int32_t> whole = test::LoadGolden("llama").prompt;
  const std::span prompt = std::span(whole).first(std::min<size_t>(whole.size(), 9));
  std::mt19937_64 random(4);
  std::vector<std::shared_ptr<const AdapterImage>> images;
  for (uint64_t id = 1; id <= 3; ++id) {
    std::vector<PlainFactors> factors;
    for (const Linear& linear : kLlamaLinears) {
      factors.push_back(RandomFactors(model, 0, linear, static_cast<int32_t>(8 * id), &random));
    }
    images.push_back(ImageOf(factors, *executor, id));
  }
  std::vector<std::vector<float>> alone;  // of slots -1, 0, 1, 2
  alone.push_back(MixedLogits(*executor, prompt, std::vector{-1}, {})[0]);
  for (int32_t slot = 0; slot < 3; ++slot) {
    alone.push_back(MixedLogits(*executor, prompt, std::vector{slot}, images)[0]);
    CHECK(alone.back() != alone.front());
  }
  const std::vector<int32_t> slots = {2, -1, 0, 2, 1, -1, 0};
  const auto mixed = MixedLogits(*executor, prompt, slots, images);
  for (size_t i = 0; i < slots.size(); ++i) {
    INFO("sequence " << i);
    CHECK(mixed[i] == alone[static_cast<size_t>(slots[i] + 1)]);
  }
}

TEST_CASE("A slot that is bound again forgets the factors that only its last adapter had",
          "[golden]") {
  test::TempDir dir;
  EditableModel model("llama", dir.path());
  auto executor = model.Load(kMaxRank);
  const std::vector<int32_t> prompt = test::LoadGolden("llama").prompt;
  std::mt19937_64 random(5);
  const auto image_of = [&](const Linear& linear, uint64_t id) {
    const std::vector<PlainFactors> factors = {RandomFactors(model, 0, linear, 4, &random)};
    return ImageOf(factors, *executor, id);
  };
  const auto first = image_of(kLlamaLinears[0], 1);
  const auto second = image_of(kLlamaLinears[6], 2);
  const auto expected = test::AllLogits(*executor, prompt, 64, {second, 1.0f});
  CHECK(test::AllLogits(*executor, prompt, 64, {first, 1.0f}) != expected);
  CHECK(test::AllLogits(*executor, prompt, 64, {second, 1.0f}) == expected);
}

}  // namespace
}  // namespace heddle::engine
