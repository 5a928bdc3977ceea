// With --tp-invariant groups of 1, 2, 4 and 8 ranks give the same bits: the inputs of each product
// that they cut are summed in eight ranges, as one tree (engine/parallel/sum_ranges.h).
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using test::Golden;

// Logits of the whole prompt, read in chunks.
std::vector<float> Logits(const std::filesystem::path& path, const Golden& golden,
                          const std::string& isa, int32_t tp, int32_t pp = 1) {
  engine::LoadOptions options;
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.layout.invariant = true;
  options.cpu.isa = isa;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return test::AllLogits(*model->executor, golden.prompt, /*prefill_chunk=*/5);
}

bool HasExperts(const nlohmann::json& config) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_object() && HasExperts(value)) return true;
    const bool counts = key.find("experts") != std::string::npos && value.is_number_integer();
    if (counts && value.get<int64_t>() > 0) return true;
  }
  return false;
}

// Their second matrices of attention are F16 on several ranks, and codes on one (docs/parallel.md).
bool HasActOrder(const nlohmann::json& config) {
  return config.value("quantization_config", nlohmann::json::object()).value("desc_act", false);
}

// Few of these models' sizes have eight whole units of whatever is cut: some ranges are empty.
TEST_CASE("Groups of 1, 2, 4 and 8 ranks give every dense family's very bits", "[golden]") {
  const std::string name = GENERATE(from_range(test::RankGoldenNames()));
  const Golden golden = test::LoadGolden(name);
  if (HasExperts(*golden.config) || HasActOrder(*golden.config)) return;
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  const std::vector<float> expected = Logits(path, golden, "auto", 1);
  for (const int32_t tp : {2, 4, 8}) {
    INFO(name << ", " << tp << " ranks");
    CHECK((Logits(path, golden, "auto", tp) == expected));
  }
}

struct Widths {
  int64_t hidden;
  int64_t inter;
  int32_t n_heads;
  int32_t n_kv_heads;
};

// A Llama of these widths, with heads of 32.
Golden LlamaOf(const Widths& widths) {
  Golden golden = test::LoadGolden("llama");  // hidden 96, MLPs of 160, 6 heads of 16 over 2
  nlohmann::json config = *golden.config;
  config["hidden_size"] = widths.hidden;
  config["intermediate_size"] = widths.inter;
  config["num_attention_heads"] = widths.n_heads;
  config["num_key_value_heads"] = widths.n_kv_heads;
  config["head_dim"] = 32;
  golden.config = std::make_shared<const nlohmann::json>(std::move(config));
  golden.shards = 1;
  for (test::SyntheticTensor& tensor : golden.tensors) {
    const bool is_out = tensor.name.ends_with("o_proj.weight");
    const bool is_query = tensor.name.ends_with("q_proj.weight");
    for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
      int64_t& dim = tensor.shape[axis];
      const bool is_heads = (is_query && axis == 0) || (is_out && axis == 1);
      if (dim == 96) dim = is_heads ? widths.n_heads * 32 : widths.hidden;
      if (dim == 160) dim = widths.inter;
      if (dim == 32) dim = widths.n_kv_heads * 32;
    }
    if (tensor.shape.size() == 2) tensor.scale *= 0.6f;  // rows are longer
  }
  return golden;
}

// The formats that checkpoints of Llama have here, and floats that become blocks at load.
TEST_CASE("In every kind of format a group of 1, 2, 4 or 8 ranks gives the same bits", "[golden]") {
  const auto widths = GENERATE(values<Widths>({{256, 512, 8, 4},   // eight units of each
                                               {256, 704, 16, 2},  // 22 blocks, groups that are cut
                                               {288, 352, 9, 3}}));  // 11 blocks, 3 groups
  const std::string format = GENERATE("F32", "BF16", "F16", "Q8_0", "Q4_0");
  Golden golden = LlamaOf(widths);
  if (format.starts_with("Q")) {
    golden.gguf = format;
  } else {
    golden.dtype = format;
  }
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  for (const std::string isa : {"auto", "portable", "avx2"}) {
    if (!kernels::CreateCpuDevice({.num_threads = 1, .isa = isa}).ok()) continue;
    INFO(format << " on " << isa << ", MLPs of " << widths.inter);
    const std::vector<float> expected = Logits(path, golden, isa, 1);
    CHECK((Logits(path, golden, isa, 2) == expected));
    CHECK((Logits(path, golden, isa, 4) == expected));
    CHECK((Logits(path, golden, isa, 8) == expected));
    CHECK((Logits(path, golden, isa, 2, 2) == expected));
  }
}

}  // namespace
}  // namespace heddle
