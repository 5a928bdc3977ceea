// Models that are quantised, in their folder or while loading, against the same model with the
// rounded weights as plain floats: the logits must agree, up to activations rounded to 8 bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/checkpoint.h"
#include "engine/model/load.h"
#include "engine/model/quantize.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using nlohmann::json;
using test::TensorToWrite;

constexpr int64_t kGroup = 32;

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A matrix rounded to 4 bits with a scale and a zero point per row and group.
struct Rounded {
  std::vector<int32_t> codes;  // [rows, cols]
  std::vector<int32_t> zeros;  // [rows, groups]
  std::vector<uint16_t> scales;
  std::vector<float> values;
};

Rounded Round(const std::vector<float>& w, int64_t rows, int64_t cols) {
  Rounded out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < cols / kGroup; ++g) {
      const float* x = w.data() + r * cols + g * kGroup;
      const float low = std::min(0.0f, *std::min_element(x, x + kGroup));
      const float high = std::max(0.0f, *std::max_element(x, x + kGroup));
      out.scales.push_back(kernels::F32ToF16((high - low) / 15));
      const float scale = kernels::F16ToF32(out.scales.back());
      out.zeros.push_back(std::clamp(static_cast<int32_t>(std::lround(-low / scale)), 0, 15));
      for (int64_t i = 0; i < kGroup; ++i) {
        const auto q = static_cast<int32_t>(std::lround(x[i] / scale)) + out.zeros.back();
        out.codes.push_back(std::clamp(q, 0, 15));
        out.values.push_back(scale * static_cast<float>(out.codes.back() - out.zeros.back()));
      }
    }
  }
  return out;
}

// GPTQ's tensors of a matrix, whose values are stored 8 to a word, transposed.
void AddGptq(const std::string& module, const Rounded& matrix, int64_t rows, int64_t cols,
             std::vector<TensorToWrite>* out) {
  const int64_t groups = cols / kGroup;
  std::vector<uint32_t> words(cols / 8 * rows), zeros(groups * (rows / 8));
  std::vector<uint16_t> scales(groups * rows);
  std::vector<int32_t> order;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      words[c / 8 * rows + r] |= static_cast<uint32_t>(matrix.codes[r * cols + c]) << (c % 8 * 4);
    }
    for (int64_t g = 0; g < groups; ++g) {
      const auto stored = static_cast<uint32_t>(matrix.zeros[r * groups + g] + 15) % 16;
      zeros[g * (rows / 8) + r / 8] |= stored << (r % 8 * 4);
      scales[g * rows + r] = matrix.scales[r * groups + g];
    }
  }
  for (int64_t c = 0; c < cols; ++c) order.push_back(static_cast<int32_t>(c / kGroup));
  out->push_back({module + "qweight", "I32", {cols / 8, rows}, Bytes(words)});
  out->push_back({module + "qzeros", "I32", {groups, rows / 8}, Bytes(zeros)});
  out->push_back({module + "scales", "F16", {groups, rows}, Bytes(scales)});
  out->push_back({module + "g_idx", "I32", {cols}, Bytes(order)});
}

std::vector<float> ValuesOf(const engine::CheckpointTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// Writes both folders from the F32 model at `plain`: `rounded` with floats, `gptq` with codes.
void WriteFolders(const std::filesystem::path& plain, const std::filesystem::path& rounded,
                  const std::filesystem::path& gptq) {
  auto checkpoint = engine::OpenCheckpoint(plain);
  REQUIRE(checkpoint.ok());
  std::vector<TensorToWrite> floats, codes;
  for (const engine::CheckpointTensor& tensor : checkpoint->tensors()) {
    const std::string name(tensor.name);
    TensorToWrite copy{name, "F32", tensor.shape, {tensor.data.begin(), tensor.data.end()}};
    if (name.ends_with("_proj.weight")) {
      const Rounded matrix = Round(ValuesOf(tensor), tensor.shape[0], tensor.shape[1]);
      AddGptq(name.substr(0, name.size() - 6), matrix, tensor.shape[0], tensor.shape[1], &codes);
      copy.data = Bytes(matrix.values);
    } else {
      codes.push_back(copy);
    }
    floats.push_back(std::move(copy));
  }
  json config = checkpoint->config();
  for (const auto& folder : {rounded, gptq}) std::filesystem::create_directories(folder);
  test::WriteFile(rounded / "config.json", config.dump());
  test::WriteFile(rounded / "model.safetensors", test::SafetensorsBytes(floats));
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", kGroup}};
  test::WriteFile(gptq / "config.json", config.dump());
  test::WriteFile(gptq / "model.safetensors", test::SafetensorsBytes(codes));
}

std::vector<float> LogitsOf(const std::filesystem::path& path, const std::string& ops,
                            const std::vector<int32_t>& prompt,
                            const std::string& weights = "auto") {
  engine::LoadOptions options;
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  options.weights = weights;
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return test::AllLogits(*model->executor, prompt, 64);
}

double Spread(const std::vector<float>& logits) {
  double squares = 0;
  for (float x : logits) squares += double{x} * x;
  return std::sqrt(squares / static_cast<double>(logits.size()));
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max<double>(largest, std::fabs(a[i] - b[i]));
  return largest;
}

// As in golden_test.cc: a relative error per product; those of 7 products a layer add up as
// independent ones do, and the largest of thousands of logits is within 6 deviations.
double Bound(double error, const std::vector<float>& logits, int32_t n_layers) {
  return 6 * error * std::sqrt(7.0 * n_layers) * Spread(logits);
}

// The errors of int8 activations with a scale per block, and beside int4 weights, where blocks of a
// group have scales that are powers of two apart: their largest code is anywhere between 64 and
// 127, and the mean square of 127 / code over that octave is 2.2. The errors of int8 and int4
// weights are explained in quantize_test.cc.
constexpr double kActivationError = 0.006;
constexpr double kGroupedActivationError = 0.006 * 1.48;
constexpr double kInt8Error = 0.0055;
constexpr double kInt4Error = 0.08;
// Half a step of E4M3 at the bottom of an octave, where it is largest: 2^-4 / sqrt(3).
constexpr double kFp8Error = 0.0361;

TEST_CASE("A GPTQ folder gives the logits of its weights as floats", "[golden]") {
  const test::Golden golden = test::LoadGolden("llama");
  const auto n_layers = golden.config->at("num_hidden_layers").get<int32_t>();
  test::TempDir dir;
  WriteFolders(test::WriteSyntheticModel(golden, dir / "plain"), dir / "rounded", dir / "gptq");
  const std::vector<float> expected = LogitsOf(dir / "rounded", "reference", golden.prompt);
  CHECK(LargestDifference(LogitsOf(dir / "gptq", "reference", golden.prompt), expected) < 1e-4);
  for (const char* ops : {"portable", "auto"}) {
    CHECK(LargestDifference(LogitsOf(dir / "gptq", ops, golden.prompt), expected) <
          Bound(kGroupedActivationError, expected, n_layers));
  }
}

TEST_CASE("A model quantised while loading gives the logits of its rounded weights", "[golden]") {
  const test::Golden golden = test::LoadGolden("llama");
  const auto n_layers = golden.config->at("num_hidden_layers").get<int32_t>();
  const std::string weights = GENERATE("int8", "int4", "fp8");
  test::TempDir dir;
  const auto plain = test::WriteSyntheticModel(golden, dir / "plain");
  const std::vector<float> exact = LogitsOf(plain, "reference", golden.prompt);
  const std::vector<float> expected = LogitsOf(plain, "reference", golden.prompt, weights);
  const double moved = LargestDifference(expected, exact);
  CHECK(moved > 0);
  const double rounding = weights == "int8"   ? kInt8Error
                          : weights == "int4" ? kInt4Error
                                              : kFp8Error;
  CHECK(moved < Bound(rounding, exact, n_layers));
  const double error = weights == "int4" ? kGroupedActivationError : kActivationError;
  for (const char* ops : {"portable", "auto"}) {
    CHECK(LargestDifference(LogitsOf(plain, ops, golden.prompt, weights), expected) <
          Bound(error, expected, n_layers));
  }
}

TEST_CASE("A NaN among FP8 codes is refused wherever it lies, and the tensor named", "[golden]") {
  const test::Golden golden = test::LoadGolden("deepseek_v3_fp8");
  const std::string layer = "model.layers.1.";
  for (const std::string& name :
       {layer + "self_attn.kv_b_proj.weight", layer + "self_attn.kv_a_proj_with_mqa.weight",
        layer + "mlp.experts.5.down_proj.weight", layer + "mlp.shared_experts.up_proj.weight"}) {
    test::TempDir dir;
    const auto folder = test::WriteSyntheticModel(golden, dir / "model");
    std::vector<TensorToWrite> tensors = test::SyntheticTensors(golden);
    auto broken = std::find_if(tensors.begin(), tensors.end(),
                               [&](const TensorToWrite& t) { return t.name == name; });
    REQUIRE(broken != tensors.end());
    broken->data[broken->data.size() / 2] = std::byte{0xff};
    test::WriteFile(folder / "model.safetensors", test::SafetensorsBytes(tensors));
    const engine::LoadOptions options;
    const absl::Status status = engine::LoadLocalModel(folder, options).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Contains(name) && Catch::Contains("NaN"));
  }
}

}  // namespace
}  // namespace heddle
