#include "tests/support/synthetic_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "engine/files/checkpoint.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/quantize.h"
#include "tests/support/synthetic_weights.h"

namespace heddle::test {
namespace {

using kernels::DType;
using nlohmann::json;

int64_t NumElements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<float> Values(const Golden& golden, const SyntheticTensor& tensor) {
  return SyntheticValues(tensor.name, NumElements(tensor.shape), tensor.scale, tensor.offset,
                         tensor.bits > 0 ? tensor.bits : golden.bits);
}

// Whole numbers up to 255 as bytes: U8 and F8_E4M3, the latter without the second highest bit so
// that none is NaN; I32, four of them to a word.
std::vector<std::byte> RandomCodes(const SyntheticTensor& tensor) {
  const bool f8 = tensor.type == "F8_E4M3";
  HEDDLE_CHECK(f8 || tensor.type == "U8" || tensor.type == "I32", "no such type");
  const int64_t count = NumElements(tensor.shape) * (tensor.type == "I32" ? 4 : 1);
  std::vector<std::byte> bytes;
  for (float value :
       SyntheticValues(tensor.name, count, tensor.scale, tensor.offset, tensor.bits)) {
    bytes.push_back(static_cast<std::byte>(value) & static_cast<std::byte>(f8 ? 0xbf : 0xff));
  }
  return bytes;
}

// I32 or I64.
std::vector<std::byte> GivenIntegers(const SyntheticTensor& tensor) {
  const size_t size = tensor.type == "I64" ? 8 : 4;
  std::vector<std::byte> bytes(tensor.values.size() * size);
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    std::memcpy(bytes.data() + i * size, &tensor.values[i], size);  // little-endian
  }
  return bytes;
}

// A tensor without dimensions has one number.
int64_t RowSize(const std::vector<int64_t>& shape) { return shape.empty() ? 1 : shape.back(); }

TensorToWrite ToWrite(const Golden& golden, const SyntheticTensor& tensor) {
  if (!tensor.values.empty()) {
    return {tensor.name, tensor.type, tensor.shape, GivenIntegers(tensor)};
  }
  const std::string& type = tensor.type.empty() ? golden.dtype : tensor.type;
  if (type == "F32" || type == "F16" || type == "BF16") {
    const DType dtype = engine::FindDType(type).value();
    return {tensor.name, type, tensor.shape,
            Encode(Values(golden, tensor), RowSize(tensor.shape), dtype)};
  }
  return {tensor.name, type, tensor.shape, RandomCodes(tensor)};
}

// The name in GGUF of a tensor of Llama's naming.
std::string GgufName(std::string name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kReplacements = {{
      // A layer that predicts several tokens, behind the three that goldens have.
      {"mtp.layers.0.", "blk.3."},
      {"mtp.fc.", "blk.3.nextn.eh_proj."},
      {"mtp.pre_fc_norm_embedding.", "blk.3.nextn.enorm."},
      {"mtp.pre_fc_norm_hidden.", "blk.3.nextn.hnorm."},
      {"mtp.norm.", "blk.3.nextn.shared_head_norm."},
      {"model.embed_tokens.", "token_embd."},
      {"model.norm.", "output_norm."},
      {"lm_head.", "output."},
      {"model.layers.", "blk."},
      {"self_attn.q_proj.", "attn_q."},
      {"self_attn.k_proj.", "attn_k."},
      {"self_attn.v_proj.", "attn_v."},
      {"self_attn.o_proj.", "attn_output."},
      {"self_attn.q_norm.", "attn_q_norm."},
      {"self_attn.k_norm.", "attn_k_norm."},
      {"post_attention_layernorm.", "ffn_norm."},
      {"input_layernorm.", "attn_norm."},
      {"mlp.gate_proj.", "ffn_gate."},
      {"mlp.up_proj.", "ffn_up."},
      {"mlp.down_proj.", "ffn_down."},
  }};
  for (const auto& [from, to] : kReplacements) {
    if (size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  }
  return name;
}

// Within each head, row j of the first half and row j of the second become neighbours.
std::vector<float> PermuteHeads(const std::vector<float>& values, int64_t n_heads, int64_t rows) {
  int64_t head_dim = rows / n_heads;
  size_t cols = values.size() / static_cast<size_t>(rows);
  std::vector<float> permuted(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    int64_t head = row / head_dim;
    int64_t pair = row % head_dim / 2;
    int64_t half = row % 2;
    int64_t from = head * head_dim + half * (head_dim / 2) + pair;
    std::copy_n(values.begin() + from * static_cast<int64_t>(cols), cols,
                permuted.begin() + row * static_cast<int64_t>(cols));
  }
  return permuted;
}

uint32_t GgmlTypeId(DType dtype) {
  for (uint32_t id = 0; id < 64; ++id) {
    const engine::GgmlTypeInfo* type = engine::FindGgmlType(id);
    if (type != nullptr && engine::FindDType(type->name) == dtype) return id;
  }
  HEDDLE_CHECK(false, "no such type in GGUF");
}

// Metadata of a config in Llama's spelling, under the architecture's prefix.
void AddMetadata(const json& config, const std::string& architecture, GgufWriter* writer) {
  auto key = [&](std::string_view name) { return architecture + "." + std::string(name); };
  auto number = [&](const char* name) { return config.at(name).get<uint32_t>(); };
  const auto predict = config.value("mtp_num_hidden_layers", uint32_t{0});
  if (predict > 0) writer->U32(key("nextn_predict_layers"), predict);
  writer->String("general.architecture", architecture)
      .U32(key("context_length"), number("max_position_embeddings"))
      .U32(key("embedding_length"), number("hidden_size"))
      .U32(key("block_count"), number("num_hidden_layers") + predict)
      .U32(key("feed_forward_length"), number("intermediate_size"))
      .U32(key("attention.head_count"), number("num_attention_heads"))
      .U32(key("attention.head_count_kv"), number("num_key_value_heads"))
      .F32(key("attention.layer_norm_rms_epsilon"), config.at("rms_norm_eps").get<float>())
      .F32(key("rope.freq_base"), config.at("rope_theta").get<float>())
      .U32(key("vocab_size"), number("vocab_size"));
  if (config.contains("head_dim")) {
    writer->U32(key("attention.key_length"), number("head_dim"))
        .U32(key("attention.value_length"), number("head_dim"))
        .U32(key("rope.dimension_count"), number("head_dim"));
  }
  if (config.at("eos_token_id").is_number()) {
    writer->U32("tokenizer.ggml.eos_token_id", number("eos_token_id"));
  }
}

void AddTensor(const Golden& golden, const SyntheticTensor& tensor, bool permute, DType dtype,
               GgufWriter* writer) {
  std::vector<float> values = Values(golden, tensor);
  const json& config = *golden.config;
  bool is_q = tensor.name.find("q_proj.") != std::string::npos;
  bool is_k = tensor.name.find("k_proj.") != std::string::npos;
  if (permute && (is_q || is_k)) {
    int64_t heads = config.at(is_q ? "num_attention_heads" : "num_key_value_heads");
    values = PermuteHeads(values, heads, tensor.shape[0]);
  }
  DType stored = tensor.shape.size() == 1 ? DType::kF32 : dtype;
  std::vector<std::byte> data = Encode(values, RowSize(tensor.shape), stored);
  writer->Tensor(GgufName(tensor.name), GgmlTypeId(stored), tensor.shape, data);
}

void WriteShards(const std::vector<TensorToWrite>& tensors, int shards,
                 const std::filesystem::path& folder) {
  json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  size_t per_shard =
      (tensors.size() + static_cast<size_t>(shards) - 1) / static_cast<size_t>(shards);
  for (int shard = 0; shard < shards; ++shard) {
    std::string name = "model-0000" + std::to_string(shard + 1) + "-of-0000" +
                       std::to_string(shards) + ".safetensors";
    size_t begin = static_cast<size_t>(shard) * per_shard;
    size_t end = std::min(tensors.size(), begin + per_shard);
    std::span<const TensorToWrite> part(tensors.data() + begin, end - begin);
    WriteFile(folder / name, SafetensorsBytes(part));
    for (const TensorToWrite& tensor : part) index["weight_map"][tensor.name] = name;
  }
  WriteFile(folder / "model.safetensors.index.json", index.dump());
}

}  // namespace

std::vector<TensorToWrite> SyntheticTensors(const Golden& golden) {
  std::vector<TensorToWrite> tensors;
  for (const SyntheticTensor& tensor : golden.tensors) tensors.push_back(ToWrite(golden, tensor));
  return tensors;
}

std::filesystem::path WriteSyntheticModel(const Golden& golden,
                                          const std::filesystem::path& folder) {
  HEDDLE_CHECK(!golden.gguf.has_value(), golden.name + " exists only as GGUF");
  std::filesystem::create_directories(folder);
  WriteFile(folder / "config.json", golden.config->dump(2));
  std::vector<TensorToWrite> tensors = SyntheticTensors(golden);
  if (golden.shards > 1) {
    WriteShards(tensors, golden.shards, folder);
  } else {
    WriteFile(folder / "model.safetensors", SafetensorsBytes(tensors));
  }
  return folder;
}

std::filesystem::path WriteSyntheticGguf(const Golden& golden, DType dtype,
                                         const std::filesystem::path& path) {
  const json& config = *golden.config;
  std::string model_type = config.at("model_type");
  bool is_llama = model_type == "llama" || model_type == "mistral";
  GgufWriter writer;
  AddMetadata(config, is_llama ? "llama" : model_type, &writer);
  for (const SyntheticTensor& tensor : golden.tensors) {
    AddTensor(golden, tensor, /*permute=*/is_llama, dtype, &writer);
  }
  if (!golden.rope_divisors.empty()) {
    std::vector<int64_t> shape = {static_cast<int64_t>(golden.rope_divisors.size())};
    writer.Tensor("rope_freqs.weight", GgmlTypeId(DType::kF32), shape,
                  std::as_bytes(std::span(golden.rope_divisors)));
  }
  WriteFile(path, writer.Bytes());
  return path;
}

std::filesystem::path WriteGoldenModel(const Golden& golden, const std::filesystem::path& folder) {
  if (!golden.gguf) return WriteSyntheticModel(golden, folder / "model");
  const kernels::DType dtype =
      *golden.gguf == "Q8_0" ? kernels::DType::kQ8_0 : kernels::DType::kQ4_0;
  return WriteSyntheticGguf(golden, dtype, folder / "model.gguf");
}

}  // namespace heddle::test
