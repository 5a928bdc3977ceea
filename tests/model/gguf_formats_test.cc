// GGUF files whose matrices are blocks of each type, dense ones and experts', against transformers
// with the weights that the gguf package decodes (tests/golden/make_gguf_format_goldens.py).
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/gguf.h"
#include "engine/model/load.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/paths.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/synthetic_weights.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using nlohmann::json;

constexpr uint32_t kGgmlF32 = 0;

std::vector<uint8_t> RandomBytes(const std::string& name, int64_t count) {
  std::vector<uint8_t> bytes;
  for (float value : test::SyntheticValues(name, count, 1.0f, 0.0f, /*bits=*/8)) {
    bytes.push_back(static_cast<uint8_t>((value + 1) * 128));
  }
  return bytes;
}

template <typename T>
void Append(T value, std::vector<uint8_t>* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out->insert(out->end(), bytes, bytes + sizeof(T));
}

// Multiples of 2^-10, which every plain type holds exactly.
std::vector<uint8_t> PlainValues(const std::vector<uint8_t>& codes, const std::string& type) {
  std::vector<uint8_t> out;
  for (uint8_t code : codes) {
    const float value = static_cast<float>(static_cast<int8_t>(code)) * 0x1p-10f;
    if (type == "F32") Append(value, &out);
    if (type == "F16") Append(kernels::F32ToF16(value), &out);
    if (type == "BF16") Append(kernels::F32ToBF16(value), &out);
  }
  return out;
}

std::vector<uint8_t> TensorBytes(const json& golden, const std::string& tensor, uint32_t type_id,
                                 const std::vector<int64_t>& shape) {
  const std::string type = golden.at("type_names").at(std::to_string(type_id));
  int64_t count = 1;
  for (int64_t n : shape) count *= n;
  const std::string name = tensor + "/" + type;
  if (!golden.at("variants").contains(type)) return PlainValues(RandomBytes(name, count), type);
  const engine::GgmlTypeInfo& info = *engine::FindGgmlType(type_id);
  const int64_t blocks = count / info.block_elements;
  std::vector<uint8_t> bytes = RandomBytes(name, blocks * info.block_bytes);
  const json& variants = golden.at("variants").at(type);
  for (int64_t b = 0; b < blocks; ++b) {
    for (const json& patch : variants.at(static_cast<size_t>(b) % variants.size())) {
      const auto data = patch.at(1).get<std::vector<uint8_t>>();
      std::copy(data.begin(), data.end(),
                bytes.begin() + b * info.block_bytes + patch.at(0).get<int64_t>());
    }
  }
  return bytes;
}

void AddFloats(const std::string& name, const std::vector<int64_t>& shape,
               const std::vector<float>& values, test::GgufWriter* writer) {
  writer->Tensor(name, kGgmlF32, shape, std::as_bytes(std::span(values)));
}

// Norms of ones and the routers, which stay F32 in real files too.
void AddSmallTensors(int layers, int64_t hidden, int64_t experts, test::GgufWriter* writer) {
  const std::vector<float> ones(static_cast<size_t>(hidden), 1.0f);
  AddFloats("output_norm.weight", {hidden}, ones, writer);
  for (int i = 0; i < layers; ++i) {
    const std::string at = "blk." + std::to_string(i) + ".";
    AddFloats(at + "attn_norm.weight", {hidden}, ones, writer);
    AddFloats(at + "ffn_norm.weight", {hidden}, ones, writer);
    AddFloats(at + "ffn_gate_inp.weight", {experts, hidden},
              test::SyntheticValues(at + "router", experts * hidden, 0.125f, 0.0f), writer);
  }
}

void WriteModel(const json& golden, const json& one, const std::filesystem::path& path) {
  test::GgufWriter writer;
  writer.String("general.architecture", "llama");
  std::map<std::string, int64_t> numbers;
  for (const json& entry : golden.at("metadata")) {
    const std::string key = entry.at(0);
    if (entry.at(1).is_number_integer()) {
      writer.U32(key, entry.at(1));
      numbers[key] = entry.at(1);
    } else {
      writer.F32(key, entry.at(1));
    }
  }
  for (const auto& [tensor, shape] : golden.at("tensors").items()) {
    const auto dims = shape.get<std::vector<int64_t>>();
    const uint32_t type = one.at("types").at(tensor);
    const std::vector<uint8_t> bytes = TensorBytes(golden, tensor, type, dims);
    writer.Tensor(tensor + ".weight", type, dims, std::as_bytes(std::span(bytes)));
  }
  AddSmallTensors(static_cast<int>(numbers.at("llama.block_count")),
                  numbers.at("llama.embedding_length"), numbers.at("llama.expert_count"), &writer);
  test::WriteFile(path, writer.Bytes());
}

std::unique_ptr<engine::LocalExecutor> Load(const std::filesystem::path& path,
                                            const std::string& ops) {
  engine::LoadOptions options;
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

// The largest relative error that a matmul's kernel may make: activations rounded to 8 bits where
// weights are codes, and to BF16 where they are and the machine has its dot products; see
// golden_test.cc for both figures. Then 7 products a layer, and the output, add up as independent
// ones do, and the largest of the logits lies within 6 deviations.
double Bound(const std::string& type, const std::string& ops, int layers, double spread) {
  const bool plain = type == "F32" || type == "F16" || type == "BF16";
  if (ops == "reference" || (plain && type != "BF16")) return 1e-3;
  if (type == "BF16" && ops != "auto") return 1e-3;
  return 6 * (plain ? 0.0016 : 0.006) * std::sqrt(7.0 * layers + 1) * spread;
}

TEST_CASE("Matrices of every GGUF type give the logits of their decoded weights", "[golden]") {
  const json golden = test::LoadGoldenJson("gguf_formats.json");
  const auto prompt = golden.at("prompt").get<std::vector<engine::TokenId>>();
  for (const json& one : golden.at("cases")) {
    const std::string type = one.at("type");
    test::TempDir dir;
    WriteModel(golden, one, dir / "model.gguf");
    for (const char* ops : {"reference", "portable", "auto"}) {
      const auto executor = Load(dir / "model.gguf", ops);
      const std::vector<float> logits = test::AllLogits(*executor, prompt, 64);
      std::vector<float> expected;
      for (const json& row : one.at("logits")) {
        for (float x : row) expected.push_back(x);
      }
      double squares = 0;
      double error = 0;
      const float* last = logits.data() + logits.size() - expected.size();
      for (size_t i = 0; i < expected.size(); ++i) {
        squares += double{expected[i]} * expected[i];
        error = std::max<double>(error, std::abs(last[i] - expected[i]));
      }
      const double spread = std::sqrt(squares / static_cast<double>(expected.size()));
      INFO(type << " on " << ops);
      CHECK(error < Bound(type, ops, 2, spread));
    }
  }
}

TEST_CASE("stories260K in Q4_0 gives the greedy ids of its decoded weights", "[golden]") {
  const json golden = test::LoadGoldenJson("stories_q4_0.json");
  const auto folder = test::SharedDataOrSkip("stories260K");
  const std::string ops = GENERATE("reference", "portable", "auto");
  const auto executor = Load(folder / golden.at("file").get<std::string>(), ops);
  // Activations in 8 bits move a logit by some tenths; what the path does below that is no matter.
  const double tolerance = ops == "reference" ? 1e-3 : 0.5;
  for (const json& one : golden.at("cases")) {
    const auto prompt = one.at("prompt_ids").get<std::vector<engine::TokenId>>();
    const auto greedy = one.at("greedy_ids").get<std::vector<engine::TokenId>>();
    const auto run =
        test::RunGreedy(*executor, prompt, {.max_tokens = static_cast<int32_t>(greedy.size())});
    if (one.at("smallest_margin").get<double>() > 2 * tolerance) CHECK(run.ids == greedy);
    for (const json& top : one.at("first_logits")) {
      CHECK(std::abs(run.first_logits[top.at(0).get<size_t>()] - top.at(1).get<float>()) <
            tolerance);
    }
  }
}

}  // namespace
}  // namespace heddle
