#include "engine/adapter/load_adapter.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "catch2/catch.hpp"
#include "engine/files/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/adapter/written_adapters.h"
#include "tests/support/gguf_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using test::CheckError;

// A GGUF adapter of one module, of rank 2 and alpha 6.
absl::StatusOr<LoadedAdapter> LoadGguf(const ModelDescription& model, const char* architecture,
                                       const std::string& module, int64_t out, int64_t in) {
  const TensorToWrite a = Counting("a", 2, in, 0.0f);
  const TensorToWrite b = Counting("b", out, 2, 1000.0f);
  test::GgufWriter writer;
  writer.String("general.type", "adapter")
      .String("general.architecture", architecture)
      .String("adapter.type", "lora")
      .F32("adapter.lora.alpha", 6.0f)
      .Tensor(module + ".weight.lora_a", 0, a.shape, a.data)
      .Tensor(module + ".weight.lora_b", 0, b.shape, b.data);
  test::TempDir folder;
  test::WriteFile(folder / "adapter.gguf", writer.Bytes());
  CHECK(IsAdapter(folder / "adapter.gguf"));
  return LoadAdapter(
      folder / "adapter.gguf",
      {.model = &model, .dtype = kernels::DType::kF32, .page_bytes = 1 << 16, .max_rank = 8});
}

// Metadata of a file that llama.cpp's converter made of the golden's model.
ModelDescription DescribeGgufOf(const char* golden) {
  test::TempDir folder;
  const std::string name = golden;
  auto checkpoint = OpenCheckpoint(
      name == "llama" ? test::WriteSyntheticGguf(test::LoadGolden(name), kernels::DType::kF32,
                                                 folder / "m.gguf")
                      : test::WriteGguf(test::LoadGgufModel(name), folder / "m.gguf"));
  REQUIRE(checkpoint.ok());
  auto model = heddle::engine::Describe(*checkpoint);
  REQUIRE(model.ok());
  return *std::move(model);
}

float Element(const AdapterImage& image, const ImageFactors& factors,
              const std::vector<ImagePlace>& blocks, int64_t rank_row, int64_t col, int64_t cols) {
  const ImagePlace& block = blocks[static_cast<size_t>(rank_row / factors.block_rows)];
  const int64_t at = rank_row % factors.block_rows * cols + col;
  float value;
  std::memcpy(&value, image.page(block.page).data() + block.offset + at * 4, 4);
  return value;
}

TEST_CASE("A PEFT adapter's A is copied and its B transposed, with alpha over rank as scale",
          "[adapter][unit]") {
  for (const char* prefix : {"base_model.model.", ""}) {
    for (const int64_t page_bytes : {512, 1 << 16}) {
      const auto tensors = Factors(std::string(prefix) + "model.layers.1.self_attn.k_proj", 32, 96);
      const auto loaded = Load("llama", Config(), tensors, page_bytes);
      INFO("prefix " << prefix << ": " << loaded.status().ToString());
      REQUIRE(loaded.ok());
      const AdapterImage& image = *loaded->image;
      REQUIRE(image.factors.size() == 1);
      const ImageFactors& k = Find(image, 1, AdapterSite::kQkv, 1);
      CHECK(k.scale == 3.0f);
      CHECK(k.rank == 2);
      for (int64_t i = 0; i < 2; ++i) {
        CHECK(Element(image, k, k.a, i, 95, 96) == static_cast<float>(i * 96 + 95));
        CHECK(Element(image, k, k.b, i, 31, 32) == static_cast<float>(1000 + 31 * 2 + i));
      }
      for (const auto& blocks : {k.a, k.b}) {
        for (const ImagePlace& place : blocks) {
          CHECK(place.page < image.num_pages);
          CHECK(place.offset % 16 == 0);
        }
      }
    }
  }
}

TEST_CASE("BF16 factors lie in BF16 images bit by bit, and those that are not finite are refused",
          "[adapter][unit]") {
  const auto bf16 = [](const std::string& name, int64_t rows, int64_t cols, int first) {
    std::vector<uint16_t> values(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(first + i % 1000);
    const auto bytes = std::as_bytes(std::span(values));
    return TensorToWrite{name, "BF16", {rows, cols}, {bytes.begin(), bytes.end()}};
  };
  std::vector<TensorToWrite> tensors = {bf16(std::string(kQ0) + ".lora_A.weight", 2, 96, 0x3c00),
                                        bf16(std::string(kQ0) + ".lora_B.weight", 96, 2, 0xb000)};
  const ModelDescription model = Describe("llama");
  test::TempDir folder;
  test::WriteFile(folder / "adapter_config.json", Config().dump());
  const auto load = [&] {
    test::WriteFile(folder / "adapter_model.safetensors", test::SafetensorsBytes(tensors));
    return LoadAdapter(folder.path(), {.model = &model, .page_bytes = 512, .max_rank = 8});
  };
  const auto loaded = load();
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const AdapterImage& image = *loaded->image;
  const ImageFactors& q = Find(image, 0, AdapterSite::kQkv, 0);
  REQUIRE(q.block_rows == 1);
  const auto element = [&](const ImagePlace& row, int64_t col) {
    uint16_t bits;
    std::memcpy(&bits, image.page(row.page).data() + row.offset + col * 2, 2);
    return bits;
  };
  CHECK(element(q.a[1], 95) == 0x3c00 + 96 + 95);
  CHECK(element(q.b[0], 95) == 0xb000 + 95 * 2);
  CHECK(element(q.b[1], 7) == 0xb000 + 7 * 2 + 1);
  for (TensorToWrite& tensor : tensors) {
    const std::vector<std::byte> before = tensor.data;
    tensor.data[11] = std::byte{0x7f};
    tensor.data[10] = std::byte{0x80};
    CheckError(load().status(), StatusCode::kInvalidArgument, {"q_proj", "infinity"});
    tensor.data = before;
  }
}

TEST_CASE("A fused qkv module of Phi-3 becomes q, k and v", "[adapter][unit]") {
  const ModelDescription model = Describe("phi3");
  const AttentionSpec& attention = model.spec.layers[0].attention;
  const int64_t q = int64_t{attention.n_heads} * attention.head_dim;
  const int64_t kv = int64_t{attention.n_kv_heads} * attention.head_dim;
  const auto loaded = Load(
      "phi3", Config(),
      Factors("base_model.model.model.layers.0.self_attn.qkv_proj", q + 2 * kv, model.spec.hidden));
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const AdapterImage& image = *loaded->image;
  REQUIRE(image.factors.size() == 3);
  const int64_t first[] = {0, q, q + kv};
  const int64_t rows[] = {q, kv, kv};
  for (int32_t part = 0; part < 3; ++part) {
    const ImageFactors& factors = Find(image, 0, AdapterSite::kQkv, part);
    CHECK(Element(image, factors, factors.a, 1, 0, model.spec.hidden) ==
          static_cast<float>(model.spec.hidden));
    CHECK(Element(image, factors, factors.b, 1, 0, rows[part]) ==
          static_cast<float>(1000 + first[part] * 2 + 1));
  }
}

TEST_CASE("The rotated rows of latent attention's kv_a come first, as in the weight",
          "[adapter][unit]") {
  // The golden's kv_rank is 40, its rotated part 16: file rows 40 to 55 become rows 0 to 15.
  const auto loaded =
      Load("deepseek_v2", Config(),
           Factors("base_model.model.model.layers.0.self_attn.kv_a_proj_with_mqa", 56, 64));
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const ImageFactors& kv_a = Find(*loaded->image, 0, AdapterSite::kKvA, 0);
  CHECK(Element(*loaded->image, kv_a, kv_a.b, 0, 0, 56) == 1000.0f + 40 * 2);
  CHECK(Element(*loaded->image, kv_a, kv_a.b, 0, 16, 56) == 1000.0f);
}

TEST_CASE(
    "Adapters within attention and time mixes are refused by name, and others beside them load",
    "[adapter][unit]") {
  const auto status = [](const char* base, const std::string& module, int32_t out, int32_t in) {
    return Load(base, Config(), Factors("base_model.model.model.layers.1." + module, out, in))
        .status();
  };
  CHECK(status("deepseek_v32", "self_attn.q_a_proj", 48, 64).ok());
  CheckError(status("deepseek_v32", "self_attn.indexer.wq_b", 456, 48),
             StatusCode::kInvalidArgument, {"indexer.wq_b", "chooses positions"});
  CheckError(status("deepseek_v32", "self_attn.indexer.weights_proj", 19, 64),
             StatusCode::kInvalidArgument, {"indexer.weights_proj", "chooses positions"});
  CHECK(status("rwkv7", "ffn.key", 112, 80).ok());
  CheckError(status("rwkv7", "attn.r_proj", 80, 80), StatusCode::kInvalidArgument,
             {"attn.r_proj", "part of a time mix"});
  CheckError(status("rwkv7", "attn.o_proj", 80, 80), StatusCode::kInvalidArgument,
             {"attn.o_proj", "part of a time mix"});
  CHECK(status("phi4flash", "attn.Wqkv", 100, 60).ok());
  CheckError(status("phi4flash", "attn.inner_cross_attn.subln", 20, 1),
             StatusCode::kInvalidArgument, {"subln", "heads' differences"});
}

TEST_CASE("A GGUF adapter of llama has its q rows put back into halves for a folder's base",
          "[adapter][unit]") {
  const auto loaded = LoadGguf(Describe("llama"), "llama", "blk.0.attn_q", 96, 96);
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const ImageFactors& q = Find(*loaded->image, 0, AdapterSite::kQkv, 0);
  CHECK(q.scale == 3.0f);
  // Within a head of 16, row j of the first half lies at 2 j in GGUF, of the second at 2 j + 1.
  CHECK(Element(*loaded->image, q, q.b, 0, 3, 96) == 1000.0f + 6 * 2);
  CHECK(Element(*loaded->image, q, q.b, 0, 8, 96) == 1000.0f + 1 * 2);
  CHECK(Element(*loaded->image, q, q.b, 0, 16, 96) == 1000.0f + 16 * 2);
}

TEST_CASE("A PEFT adapter of llama has its q rows interleaved for a GGUF base", "[adapter][unit]") {
  const auto loaded = LoadPeft(DescribeGgufOf("llama"), Config().dump(), Factors(kQ0, 96, 96));
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const ImageFactors& q = Find(*loaded->image, 0, AdapterSite::kQkv, 0);
  CHECK(Element(*loaded->image, q, q.b, 0, 6, 96) == 1000.0f + 3 * 2);
  CHECK(Element(*loaded->image, q, q.b, 0, 1, 96) == 1000.0f + 8 * 2);
  CHECK(Element(*loaded->image, q, q.b, 0, 95, 96) == 1000.0f + 95 * 2);
}

TEST_CASE("Rows of GPT-NeoX and Falcon that are grouped by KV head become q, k and v",
          "[adapter][unit]") {
  // GPT-NeoX: 4 heads of 16, each with its q, k and v. Head 2's begin at rows 96, 112 and 128.
  const auto neox =
      Load("gpt_neox", Config(),
           Factors("base_model.model.gpt_neox.layers.0.attention.query_key_value", 192, 64));
  INFO(neox.status().ToString());
  REQUIRE(neox.ok());
  for (int32_t part = 0; part < 3; ++part) {
    const ImageFactors& factors = Find(*neox->image, 0, AdapterSite::kQkv, part);
    CHECK(Element(*neox->image, factors, factors.b, 0, 2 * 16 + 5, 64) ==
          1000.0f + static_cast<float>(96 + 16 * part + 5) * 2);
  }
  // Falcon: 2 KV heads, each with 2 queries, a key and a value of 16 rows.
  const auto falcon =
      Load("falcon_grouped", Config(),
           Factors("base_model.model.transformer.h.1.self_attention.query_key_value", 128, 64));
  INFO(falcon.status().ToString());
  REQUIRE(falcon.ok());
  const AdapterImage& image = *falcon->image;
  const ImageFactors& q = Find(image, 1, AdapterSite::kQkv, 0);
  const ImageFactors& k = Find(image, 1, AdapterSite::kQkv, 1);
  const ImageFactors& v = Find(image, 1, AdapterSite::kQkv, 2);
  CHECK(Element(image, q, q.b, 1, 3 * 16 + 1, 64) == 1000.0f + (64 + 16 + 1) * 2 + 1);
  CHECK(Element(image, k, k.b, 1, 16 + 1, 32) == 1000.0f + (64 + 32 + 1) * 2 + 1);
  CHECK(Element(image, v, v.b, 1, 16 + 1, 32) == 1000.0f + (64 + 48 + 1) * 2 + 1);
  // In GGUF files the parts follow each other.
  const auto file = LoadGguf(Describe("falcon_grouped"), "falcon", "blk.1.attn_qkv", 128, 64);
  INFO(file.status().ToString());
  REQUIRE(file.ok());
  const ImageFactors& file_k = Find(*file->image, 1, AdapterSite::kQkv, 1);
  CHECK(Element(*file->image, file_k, file_k.b, 0, 16 + 1, 32) == 1000.0f + (64 + 16 + 1) * 2);
}

TEST_CASE("A GGUF adapter of Phi-3 finds its stacked gate and up in a folder's base",
          "[adapter][unit]") {
  const auto loaded = LoadGguf(Describe("phi3"), "phi3", "blk.2.ffn_up", 192, 64);
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  const ImageFactors& up = Find(*loaded->image, 2, AdapterSite::kUp, 1);
  CHECK(Element(*loaded->image, up, up.b, 0, 0, 96) == 1000.0f + 96 * 2);
}

TEST_CASE("Adapters find their modules whatever the base's checkpoint calls them",
          "[adapter][unit]") {
  // Mistral's GGUF files are of architecture "llama", those of DeepSeek-V2 of V3's.
  CHECK(LoadGguf(Describe("mistral"), "llama", "blk.0.attn_v", 16, 64).ok());
  CHECK(LoadGguf(Describe("deepseek_v2"), "deepseek2", "blk.0.attn_kv_a_mqa", 56, 64).ok());
  CheckError(LoadGguf(Describe("mistral"), "qwen2", "blk.0.attn_v", 16, 64).status(),
             StatusCode::kInvalidArgument, {"qwen2", "mistral"});
  // Releases of transformers have different names for Mixtral's router, which has 4 experts.
  for (const std::string router : {"block_sparse_moe.gate", "mlp.gate"}) {
    const auto factors = Factors("base_model.model.model.layers.1." + router, 4, 64);
    INFO(router);
    CHECK(Load("mixtral", Config(), factors).ok());
    CHECK(Load("mixtral_stacked", Config(), factors).ok());
    const auto loaded = LoadPeft(DescribeGgufOf("mixtral"), Config().dump(), factors);
    INFO(loaded.status().ToString());
    CHECK(loaded.ok());
  }
  // Models that read images call their decoder by longer names, and those saved bare by shorter.
  for (const std::string prefix :
       {"model.language_model.", "language_model.model.", "model.", ""}) {
    INFO(prefix);
    const auto factors =
        Factors("base_model.model." + prefix + "layers.0.self_attn.o_proj", 64, 128);
    CHECK(Load("mistral3_images", Config(), factors).ok());
  }
}

TEST_CASE("The first pattern that matches decides, in the order of the file", "[adapter][unit]") {
  const auto scale = [](const std::string& patterns) {
    const auto loaded = LoadPeft(Describe("llama"),
                                 R"({"r": 2, "lora_alpha": 6, "alpha_pattern": )" + patterns + "}",
                                 Factors(kQ0, 96, 96));
    INFO(loaded.status().ToString());
    REQUIRE(loaded.ok());
    return Find(*loaded->image, 0, AdapterSite::kQkv, 0).scale;
  };
  CHECK(scale(R"({"q_proj": 10, "layers.0.self_attn.q_proj": 20})") == 5.0f);
  CHECK(scale(R"({"layers.0.self_attn.q_proj": 20, "q_proj": 10})") == 10.0f);
  CHECK(scale(R"({"roj": 10, "layers.1.*": 20, "q_proj|k_proj": 14})") == 7.0f);
  CHECK(scale("{}") == 3.0f);
}

TEST_CASE("rsLoRA and patterns of alpha and rank decide the scale as in PEFT", "[adapter][unit]") {
  json config = Config();
  config["r"] = 8;
  config["use_rslora"] = true;
  config["rank_pattern"] = {{"layers.0.self_attn.q_proj", 4}};
  config["alpha_pattern"] = {{R"(.*\.[0-1]\.self_attn\.q_proj)", 10}};
  const auto loaded = Load("llama", config, Factors(kQ0, 96, 96, 4));
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  CHECK(Find(*loaded->image, 0, AdapterSite::kQkv, 0).scale == 5.0f);  // 10 / sqrt(4)
}

TEST_CASE("A field that would change the answers is refused by name", "[adapter][unit]") {
  const std::pair<const char*, json> fields[] = {{"bias", "some"},
                                                 {"layer_replication", {{0, 2}}},
                                                 {"trainable_token_indices", {1}},
                                                 {"alora_invocation_tokens", {1}},
                                                 {"use_qalora", true},
                                                 {"use_bdlora", {{"nblocks", 2}}},
                                                 {"arrow_config", {{"top_k", 1}}},
                                                 {"kasa_config", {{"beta", 1}}},
                                                 {"init_lora_weights", "pissa"},
                                                 {"peft_type", "IA3"},
                                                 {"a_field_of_the_future", 1}};
  for (const auto& [name, value] : fields) {
    json config = Config();
    config[name] = value;
    CheckError(Load("llama", config, Factors(kQ0, 96, 96)).status(), StatusCode::kInvalidArgument,
               {"adapter_config.json", name});
  }
}

TEST_CASE("A broken or foreign adapter is refused with the tensor's name", "[adapter][unit]") {
  const auto error = [](std::span<const TensorToWrite> tensors) {
    return Load("llama", Config(), tensors).status();
  };
  const auto invalid = StatusCode::kInvalidArgument;
  CheckError(error(Factors(kQ0, 96, 64)), invalid, {"q_proj", "64", "96"});
  CheckError(error(Factors(kQ0, 64, 96)), invalid, {"q_proj", "64", "96"});
  CheckError(error(std::vector{Factors(kQ0, 96, 96)[0]}), invalid, {"q_proj", "factor A and no B"});
  CheckError(error(Factors("base_model.model.model.layers.3.self_attn.q_proj", 96, 96)), invalid,
             {"layers.3"});
  CheckError(error(Factors("base_model.model.lm_head", 300, 96)), invalid, {"lm_head"});
  CheckError(error(Factors("base_model.model.model.layers.0.mlp.experts.0.w1", 96, 96)), invalid,
             {"experts"});
  CheckError(error(Factors("base_model.model.vision_tower.layers.0.self_attn.q_proj", 96, 96)),
             invalid, {"vision_tower"});
  CheckError(error({}), invalid, {});
  auto spoilt = Factors(kQ0, 96, 96);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::memcpy(&spoilt[1].data[40], &value, 4);
    CheckError(error(spoilt), invalid, {"q_proj"});
  }
  auto named_twice = Factors(kQ0, 96, 96);
  for (const TensorToWrite& tensor : Factors("model.layers.0.self_attn.q_proj", 96, 96)) {
    named_twice.push_back(tensor);
  }
  CheckError(error(named_twice), invalid, {"q_proj"});
  json config = Config();
  config["r"] = 9;
  CheckError(Load("llama", config, Factors(kQ0, 96, 96, 9)).status(), invalid, {"rank"});
}

TEST_CASE("An image above the limit, and a rank row above a page, are refused", "[adapter][unit]") {
  CheckError(Load("llama", Config(), Factors(kQ0, 96, 96), 1 << 16, 1000).status(),
             StatusCode::kResourceExhausted, {"1000"});
  CheckError(Load("llama", Config(), Factors(kQ0, 96, 96), 256).status(),
             StatusCode::kInvalidArgument, {"--page-tokens"});
}

TEST_CASE("A table of more blocks than a page has pointers for is refused", "[adapter][unit]") {
  // Rank rows of 5 values of 4 bytes: a page of 32 bytes holds one, and 4 pointers.
  ModelDescription model = Describe("llama");
  model.spec.hidden = 5;
  model.spec.layers[0].attention.n_heads = 1;
  model.spec.layers[0].attention.head_dim = 4;
  json config = Config();
  for (const int64_t rank : {4, 5}) {
    config["r"] = rank;
    const auto loaded = LoadPeft(model, config.dump(), Factors(kQ0, 4, 5, rank), 32);
    CHECK(loaded.ok() == (rank == 4));
    if (rank == 5) CheckError(loaded.status(), StatusCode::kInvalidArgument, {"--page-tokens"});
  }
}

}  // namespace
}  // namespace heddle::engine
