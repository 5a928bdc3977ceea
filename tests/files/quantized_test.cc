// Quantised matrices of Hugging Face checkpoints against what the packages that write them, or
// numpy from the published layouts, decode (tests/golden/make_quantized_goldens.py); and what is
// said of parts that do not fit.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/checkpoint.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/files/safetensors.h"
#include "kernels/row_picker.h"
#include "kernels/weight_sources.h"
#include "nlohmann/json.hpp"
#include "tests/support/block_goldens.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/paths.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using test::CheckError;
using test::TensorToWrite;

json Goldens() { return test::LoadGoldenJson("quantized/quantized.json"); }

std::map<std::string, TensorToWrite> TensorsOf(const std::string& name) {
  const auto path = test::SourceDir() / "tests" / "golden" / "quantized" / (name + ".safetensors");
  auto file = SafetensorsFile::Open(path);
  REQUIRE(file.ok());
  std::map<std::string, TensorToWrite> tensors;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    tensors[tensor.name] = {tensor.name,
                            std::string(tensor.type->name),
                            tensor.shape,
                            {tensor.data.begin(), tensor.data.end()}};
  }
  return tensors;
}

void WriteFolder(const test::TempDir& dir, const json& quantization,
                 const std::map<std::string, TensorToWrite>& tensors) {
  std::vector<TensorToWrite> list;
  list.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) list.push_back(tensor);
  test::WriteFile(dir / "config.json", json{{"quantization_config", quantization}}.dump());
  test::WriteFile(dir / "model.safetensors", test::SafetensorsBytes(list));
}

// All rows in the order of input features, read `count` at a time.
std::vector<float> Decode(const CheckpointTensor& tensor, int64_t count) {
  const kernels::WeightSource source = SourceOf(tensor);
  std::vector<float> values(static_cast<size_t>(source.rows * source.cols));
  std::vector<uint8_t> buffer;
  for (int64_t r = 0; r < source.rows; r += count) {
    const int64_t n = std::min(count, source.rows - r);
    const uint8_t* rows = kernels::SourceRows(source, r, n, &buffer);
    for (int64_t i = 0; i < n; ++i) {
      kernels::DecodeSourceRow(source, rows + i * kernels::RowBytes(source.dtype, source.cols),
                               values.data() + (r + i) * source.cols);
    }
  }
  return values;
}

TEST_CASE("Quantised matrices decode to the bits that their own packages give", "[files][golden]") {
  const json goldens = Goldens();
  REQUIRE(goldens.size() == 37);
  for (const auto& [name, golden] : goldens.items()) {
    INFO(name);
    test::TempDir dir;
    WriteFolder(dir, golden["quantization_config"], TensorsOf(name));
    auto checkpoint = OpenCheckpoint(dir.path());
    INFO(checkpoint.status().ToString());
    REQUIRE(checkpoint.ok());
    REQUIRE(checkpoint->tensors().size() == 1);  // the companions are part of it
    const CheckpointTensor* tensor = checkpoint->Find("m.weight");
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == golden["shape"].get<std::vector<int64_t>>());
    for (int64_t count : {1, 7, 1000}) {
      const std::vector<float> values = Decode(*tensor, count);
      CHECK(std::vector<float>(values.begin(), values.begin() + 8) ==
            golden["first"].get<std::vector<float>>());
      CHECK(test::HashOf(values) == golden["hash"].get<std::string>());
    }
    CHECK(tensor->quantized->CheckCodes().ok());
  }
}

// Also with rows to leave out between them.
TEST_CASE("Picked rows of quantised matrices are those that are read", "[files][golden]") {
  const json goldens = Goldens();
  int32_t pickers = 0;
  for (const auto& [name, golden] : goldens.items()) {
    INFO(name);
    test::TempDir dir;
    WriteFolder(dir, golden["quantization_config"], TensorsOf(name));
    auto checkpoint = OpenCheckpoint(dir.path());
    REQUIRE(checkpoint.ok());
    const QuantizedMatrix& matrix = *checkpoint->Find("m.weight")->quantized;
    const auto* picker = dynamic_cast<const kernels::RowPicker*>(&matrix);
    if (picker == nullptr) continue;
    ++pickers;
    std::vector<int32_t> numbers;
    numbers.reserve(static_cast<size_t>(matrix.rows));
    for (int32_t row = 1; row < matrix.rows; row += row % 4 == 1 ? 1 : 3) numbers.push_back(row);
    const auto row_bytes = static_cast<size_t>(kernels::RowBytes(matrix.dtype, matrix.cols));
    std::vector<uint8_t> all(static_cast<size_t>(matrix.rows) * row_bytes);
    std::vector<uint8_t> picked(numbers.size() * row_bytes);
    matrix.ReadRows(0, matrix.rows, all.data());
    picker->PickRows(numbers, picked.data());
    for (size_t i = 0; i < numbers.size(); ++i) {
      CHECK(std::memcmp(picked.data() + i * row_bytes,
                        all.data() + static_cast<size_t>(numbers[i]) * row_bytes, row_bytes) == 0);
    }
    picker->PickRows({}, nullptr);
  }
  CHECK(pickers > 10);
}

TEST_CASE("Quantised matrices take about the bytes of their file", "[files][unit]") {
  const json goldens = Goldens();
  for (const auto& [name, golden] : goldens.items()) {
    // Rows of whole 128 columns, as those of real models are; 3-bit codes take four bits.
    if (golden["shape"][1].get<int64_t>() % 128 != 0 || name == "gptq_3bit") continue;
    INFO(name);
    test::TempDir dir;
    const auto tensors = TensorsOf(name);
    WriteFolder(dir, golden["quantization_config"], tensors);
    auto checkpoint = OpenCheckpoint(dir.path());
    REQUIRE(checkpoint.ok());
    size_t parts = 0;
    for (const auto& [part, tensor] : tensors) parts += tensor.data.size();
    // NVFP4's F32 is repeated for every 64 columns, and gemv_fast's scales for every 32.
    const double most = name.ends_with("nvfp4") ? 1.12 : name == "awq_gemv_fast" ? 1.12 : 1.1;
    CHECK(static_cast<double>(checkpoint->total_bytes()) <= most * static_cast<double>(parts));
  }
}

// The error for golden `name` after `change`.
absl::Status ErrorOf(
    const std::string& name,
    const std::function<void(json*, std::map<std::string, TensorToWrite>*)>& change) {
  test::TempDir dir;
  json quantization = Goldens().at(name).at("quantization_config");
  std::map<std::string, TensorToWrite> tensors = TensorsOf(name);
  change(&quantization, &tensors);
  WriteFolder(dir, quantization, tensors);
  return OpenCheckpoint(dir.path()).status();
}

absl::Status ErrorWithout(const std::string& name, const std::string& companion) {
  return ErrorOf(name, [&](json*, auto* tensors) { REQUIRE(tensors->erase(companion) == 1); });
}

// Drops the last row of a tensor.
absl::Status ErrorWithShort(const std::string& name, const std::string& companion) {
  return ErrorOf(name, [&](json*, auto* tensors) {
    TensorToWrite& tensor = tensors->at(companion);
    tensor.data.resize(tensor.data.size() / tensor.shape[0] * (tensor.shape[0] - 1));
    --tensor.shape[0];
  });
}

TEST_CASE("A missing companion is named, with the tensor that needs it and the file",
          "[files][unit]") {
  const std::pair<const char*, const char*> cases[] = {{"gptq_g32", "m.scales"},
                                                       {"gptq_g32", "m.qzeros"},
                                                       {"awq_g32", "m.scales"},
                                                       {"awq_g32", "m.qzeros"},
                                                       {"ct_w4_group", "m.weight_shape"},
                                                       {"ct_w4_group", "m.weight_scale"},
                                                       {"ct_int8", "m.weight_scale"},
                                                       {"ct_nvfp4", "m.weight_global_scale"},
                                                       {"ct_mxfp4", "m.weight_scale"},
                                                       {"mxfp8", "m.weight_scale"},
                                                       {"llm_int8", "m.SCB"},
                                                       {"awq_gemv", "m.qzeros"},
                                                       {"awq_gemv", "m.scales"},
                                                       {"awq_gemv_fast", "m.scales"},
                                                       {"awq_gemv_fast", "m.qzeros"},
                                                       {"awq_marlin", "m.scales"},
                                                       {"gptq_marlin", "m.s"},
                                                       {"auto_round", "m.scales"},
                                                       {"fp8_block", "m.weight_scale_inv"},
                                                       {"fp4", "m.weight.absmax"},
                                                       {"nf4", "m.weight.absmax"},
                                                       {"nf4", "m.weight.quant_map"},
                                                       {"nf4_nested", "m.weight.nested_absmax"},
                                                       {"nf4_nested", "m.weight.nested_quant_map"}};
  for (const auto& [name, companion] : cases) {
    INFO(name << " without " << companion);
    std::string expected = companion;
    if (expected == "m.weight_scale_inv") expected = "m.weight_scale";
    CheckError(ErrorWithout(name, companion), absl::StatusCode::kInvalidArgument,
               {"model.safetensors: tensor \"m.", "is quantised, but its companion \"" + expected,
                "is missing"});
  }
}

TEST_CASE("Scales and zero points of the wrong count are refused by name", "[files][unit]") {
  const std::pair<const char*, const char*> cases[] = {{"gptq_g32", "m.scales"},
                                                       {"gptq_g32", "m.qzeros"},
                                                       {"gptq_g128_act_order", "m.g_idx"},
                                                       {"awq_g128", "m.scales"},
                                                       {"awq_g128", "m.qzeros"},
                                                       {"ct_w4_group", "m.weight_scale"},
                                                       {"ct_w4_asymmetric", "m.weight_zero_point"},
                                                       {"ct_w4_act_order", "m.weight_g_idx"},
                                                       {"ct_int8", "m.weight_scale"},
                                                       {"nvfp4", "m.weight_scale"},
                                                       {"ct_nvfp4", "m.weight_scale"},
                                                       {"ct_mxfp4", "m.weight_scale"},
                                                       {"mxfp8", "m.weight_scale"},
                                                       {"mxfp8_e8m0", "m.weight_scale_inv"},
                                                       {"llm_int8", "m.SCB"},
                                                       {"awq_gemv", "m.qzeros"},
                                                       {"awq_gemv", "m.scales"},
                                                       {"awq_gemv_fast", "m.qzeros"},
                                                       {"auto_round", "m.qzeros"},
                                                       {"fp8_block", "m.weight_scale_inv"},
                                                       {"nf4", "m.weight.absmax"},
                                                       {"fp4", "m.weight.absmax"},
                                                       {"nf4_nested", "m.weight.nested_absmax"}};
  for (const auto& [name, companion] : cases) {
    INFO(name << " with a short " << companion);
    CheckError(ErrorWithShort(name, companion), absl::StatusCode::kInvalidArgument,
               {"model.safetensors: tensor \"" + std::string(companion) + "\" has shape ["});
  }
}

TEST_CASE("Methods, widths, groups and orders that are not supported say so", "[files][unit]") {
  auto with = [](const std::string& name, const char* key, const json& value) {
    return ErrorOf(name, [&](json* quantization, auto*) { (*quantization)[key] = value; });
  };
  CheckError(with("gptq_g32", "quant_method", "aqlm"), absl::StatusCode::kUnimplemented,
             {"config.json: \"quant_method\" is \"aqlm\"", "gptq, awq, compressed-tensors"});
  CheckError(with("gptq_g32", "checkpoint_format", "bitblas"), absl::StatusCode::kUnimplemented,
             {"\"checkpoint_format\" is \"bitblas\"", "gptq, gptq_v2, marlin"});
  CheckError(with("awq_g32", "version", "llm-awq"), absl::StatusCode::kUnimplemented,
             {"\"version\" is \"llm-awq\"", "gemm, gemv, gemv_fast, marlin"});
  CheckError(with("gptq_g32", "bits", 5), absl::StatusCode::kInvalidArgument,
             {"\"m.qweight\"", "5"});
  CheckError(with("gptq_g32", "bits", 1'000'000'000'000), absl::StatusCode::kInvalidArgument,
             {"\"m.qweight\""});
  CheckError(with("gptq_g32", "group_size", 7), absl::StatusCode::kInvalidArgument,
             {"\"m.qweight\" has groups of 7"});
  CheckError(with("fp8_block", "weight_block_size", {0, 128}), absl::StatusCode::kInvalidArgument,
             {"weight_block_size"});
  CheckError(ErrorOf("gptq_g128_act_order",
                     [](json*, auto* tensors) {
                       TensorToWrite& order = tensors->at("m.g_idx");
                       std::fill(order.data.begin(), order.data.end(), std::byte{0});
                     }),
             absl::StatusCode::kInvalidArgument, {"\"m.g_idx\" puts more than 128 columns"});
  CheckError(
      ErrorOf("gptq_g128_act_order",
              [](json*, auto* tensors) { tensors->at("m.g_idx").data[3] = std::byte{0x80}; }),
      absl::StatusCode::kInvalidArgument, {"\"m.g_idx\" puts a column into group -"});
  CheckError(ErrorOf("ct_w4_group",
                     [](json*, auto* tensors) {
                       tensors->at("m.weight_shape").data[15] = std::byte{0x7f};
                     }),
             absl::StatusCode::kInvalidArgument, {"\"m.weight_shape\" says [33, 91"});
  CheckError(
      ErrorOf(
          "nf4",
          [](json*, auto* tensors) { tensors->at("m.weight.quant_map").data[5] = std::byte{1}; }),
      absl::StatusCode::kInvalidArgument, {"\"m.weight.quant_map\" is not the table of NF4"});
}

TEST_CASE("What config.json says of newer layouts is checked", "[files][unit]") {
  auto with = [](const std::string& name, const char* key, const json& value) {
    return ErrorOf(name, [&](json* quantization, auto*) { (*quantization)[key] = value; });
  };
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  CheckError(with("gptq_marlin", "desc_act", true), unimplemented, {"\"desc_act\" is \"true\""});
  CheckError(with("gptq_marlin", "sym", false), unimplemented, {"\"sym\" is \"false\""});
  CheckError(with("auto_round", "packing_format", "auto_round:fp8"), unimplemented,
             {"\"packing_format\" is \"auto_round:fp8\"", "auto_round:auto_gptq"});
  CheckError(with("auto_round", "packing_format", 4), unimplemented,
             {"\"packing_format\" is \"4\""});
  CheckError(with("auto_round", "data_type", "mx_fp"), unimplemented,
             {"\"data_type\" is \"mx_fp\"", "int"});
  CheckError(with("nvfp4", "quant_algo", "W4A16_AWQ"), unimplemented,
             {"\"quant_algo\" is \"W4A16_AWQ\"", "NVFP4"});
  CheckError(with("nvfp4", "quant_algo", json::array()), unimplemented, {"\"quant_algo\" is"});
  CheckError(with("nvfp4", "quantized_layers", {{"m", {{"quant_algo", "W4A8_AWQ"}}}}),
             unimplemented, {"\"quant_algo\" is \"W4A8_AWQ\""});
  CheckError(with("modelopt_fp8", "quantization", {{"quant_algo", "INT4"}}), unimplemented,
             {"\"quant_algo\" is \"INT4\""});
  CheckError(with("ct_mxfp4", "format", "marlin-24"), unimplemented,
             {"\"format\" is \"marlin-24\"", "mxfp4-pack-quantized"});
  CheckError(with("ct_mxfp4", "config_groups", {{"group_0", {{"format", "lut"}}}}), unimplemented,
             {"\"format\" is \"lut\""});
  CheckError(with("ct_nvfp4", "transform_config", {{"config_groups", {{"u", json::object()}}}}),
             unimplemented, {"\"transform_config\" is \"set\""});
  CheckError(with("ct_int8", "sparsity_config", {{"format", "sparse-24-bitmask"}}), unimplemented,
             {"\"format\" is \"sparse-24-bitmask\""});
}

// The error for golden `name` with `bytes` in the place of the first of a tensor.
absl::Status ErrorWithBytes(const std::string& name, const std::string& part,
                            const std::vector<uint8_t>& bytes) {
  return ErrorOf(name, [&](json*, auto* tensors) {
    std::memcpy(tensors->at(part).data.data(), bytes.data(), bytes.size());
  });
}

TEST_CASE("Parts of newer layouts that mean nothing are refused by name", "[files][unit]") {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const char* part : {"m.weight_scale_2"}) {
    CheckError(ErrorWithBytes("nvfp4", part, {0, 0, 0xc0, 0x7f}), invalid, {part, "is nan"});
    CheckError(ErrorWithBytes("nvfp4", part, {0, 0, 0, 0}), invalid, {part, "is 0"});
    CheckError(ErrorWithBytes("nvfp4", part, {0, 0, 0x80, 0xbf}), invalid, {part, "is -1"});
  }
  CheckError(ErrorWithBytes("ct_nvfp4", "m.weight_global_scale", {0, 0, 0, 0}), invalid,
             {"m.weight_global_scale", "is 0"});
  CheckError(ErrorWithBytes("llm_int8", "m.weight_format", {1}), invalid,
             {"\"m.weight_format\" is 1"});
  CheckError(ErrorOf("nvfp4",
                     [](json*, auto* tensors) {
                       tensors->at("m.weight").shape = {18, 48};
                     }),
             invalid, {"\"m.weight\" has 96 columns", "64"});
  CheckError(ErrorOf("modelopt_fp8",
                     [](json*, auto* tensors) {
                       (*tensors)["m.pre_quant_scale"] = {
                           "m.pre_quant_scale", "F32", {96}, std::vector<std::byte>(384)};
                     }),
             invalid, {"\"m.pre_quant_scale\" multiplies activations"});
  CheckError(
      ErrorOf("mxfp8", [](json*, auto* tensors) { tensors->at("m.weight_scale").shape = {45}; }),
      invalid, {"\"m.weight_scale\" has shape [45]"});
  CheckError(ErrorOf("gptq_marlin",
                     [](json*, auto* tensors) {
                       tensors->at("m.B").shape = {64, 32};
                     }),
             invalid, {"\"m.B\" has lines of 32 words"});
  CheckError(ErrorOf("gptq_marlin",
                     [](json*, auto* tensors) {
                       tensors->at("m.s").shape = {4, 32};
                     }),
             invalid, {"\"m.s\" has shape [4, 32], expected [2, 64]"});
  CheckError(ErrorOf("awq_gemv_fast",
                     [](json* quantization, auto*) { (*quantization)["group_size"] = 48; }),
             invalid, {"\"m.qweight\" has 256 columns and groups of 48"});
  CheckError(ErrorOf("awq_gemv", [](json* quantization, auto*) { (*quantization)["bits"] = 8; }),
             invalid, {"\"m.qweight\" has 2 dimensions and 8 bits"});
}

TEST_CASE("NaN among scales is found when the weight is read", "[files][unit]") {
  const std::pair<const char*, const char*> cases[] = {{"nvfp4", "m.weight_scale"},
                                                       {"ct_mxfp4", "m.weight_scale"},
                                                       {"mxfp8", "m.weight_scale"},
                                                       {"fp8_block_e8m0", "m.weight_scale_inv"}};
  for (const auto& [name, part] : cases) {
    INFO(name);
    test::TempDir dir;
    auto tensors = TensorsOf(name);
    tensors.at(part).data.back() = std::byte{0xff};
    WriteFolder(dir, Goldens().at(name).at("quantization_config"), tensors);
    auto checkpoint = OpenCheckpoint(dir.path());
    REQUIRE(checkpoint.ok());
    CheckError(checkpoint->Find("m.weight")->quantized->CheckCodes(),
               absl::StatusCode::kInvalidArgument, {"holds NaN"});
  }
}

TEST_CASE("GGUF's NVFP4 takes its scales from tensors of their own", "[files][golden]") {
  const json goldens = test::LoadGoldenJson("quantized/gguf.json");
  auto checkpoint =
      OpenCheckpoint(test::SourceDir() / "tests" / "golden" / "quantized" / "nvfp4.gguf");
  INFO(checkpoint.status().ToString());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 3);  // the scales are part of them
  for (const auto& [name, golden] : goldens.items()) {
    INFO(name);
    const CheckpointTensor* tensor = checkpoint->Find(name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->type_name == "NVFP4");
    CHECK(tensor->shape == golden["shape"].get<std::vector<int64_t>>());
    for (int64_t count : {1, 2, 1000}) {
      const std::vector<float> values = Decode(*tensor, count);
      CHECK(std::vector<float>(values.begin(), values.begin() + 8) ==
            golden["first"].get<std::vector<float>>());
      CHECK(test::HashOf(values) == golden["hash"].get<std::string>());
    }
  }
}

TEST_CASE("Scales of GGUF's NVFP4 must be one for each matrix", "[files][unit]") {
  auto error = [](const std::vector<int64_t>& shape, float value) {
    const std::vector<std::byte> blocks(3 * 2 * 36);
    const std::vector<float> scales(static_cast<size_t>(shape[0]), value);
    test::GgufWriter writer;
    writer.String("general.architecture", "llama")
        .Tensor("w.weight", 40, std::vector<int64_t>{3, 2, 64}, blocks)
        .Tensor("w.scale", 0, shape, std::as_bytes(std::span(scales)));
    test::TempDir dir;
    test::WriteFile(dir / "m.gguf", writer.Bytes());
    return OpenCheckpoint(dir / "m.gguf").status();
  };
  CHECK(error({3}, 1).ok());
  CHECK(error({1}, 1).ok());
  CheckError(error({2}, 1), absl::StatusCode::kInvalidArgument,
             {"m.gguf: tensor \"w.scale\" has shape [2], expected [3]"});
  CheckError(error({3}, std::numeric_limits<float>::infinity()), absl::StatusCode::kInvalidArgument,
             {"\"w.scale\" holds inf"});
}

TEST_CASE("Offsets of gemv_fast have two names", "[files][unit]") {
  test::TempDir dir;
  auto tensors = TensorsOf("awq_gemv_fast");
  auto zeros = tensors.extract("m.qzeros");
  zeros.key() = zeros.mapped().name = "m.scaled_zeros";
  tensors.insert(std::move(zeros));
  const json golden = Goldens().at("awq_gemv_fast");
  WriteFolder(dir, golden.at("quantization_config"), tensors);
  auto checkpoint = OpenCheckpoint(dir.path());
  REQUIRE(checkpoint.ok());
  CHECK(test::HashOf(Decode(*checkpoint->Find("m.weight"), 8)) ==
        golden.at("hash").get<std::string>());
}

TEST_CASE("Options beside config.json are read where it has none", "[files][unit]") {
  for (const auto& [name, file] :
       {std::pair("nvfp4", "hf_quant_config.json"), std::pair("gptq_g32", "quantize_config.json"),
        std::pair("awq_g128", "quant_config.json")}) {
    INFO(name);
    test::TempDir dir;
    json quantization = Goldens().at(name).at("quantization_config");
    WriteFolder(dir, quantization, TensorsOf(name));
    test::WriteFile(dir / "config.json", "{}");
    quantization.erase("quant_method");
    if (std::string(name) == "nvfp4") {
      quantization = {{"producer", {{"name", "modelopt"}}}, {"quantization", quantization}};
    }
    test::WriteFile(dir / file, quantization.dump());
    auto checkpoint = OpenCheckpoint(dir.path());
    INFO(checkpoint.status().ToString());
    REQUIRE(checkpoint.ok());
    REQUIRE(checkpoint->Find("m.weight") != nullptr);
    CHECK(test::HashOf(Decode(*checkpoint->Find("m.weight"), 8)) == Goldens().at(name).at("hash"));
  }
}

TEST_CASE("NaN codes of FP8 are found when the weight is read", "[files][unit]") {
  test::TempDir dir;
  auto tensors = TensorsOf("fp8_block");
  tensors.at("m.weight").data[77] = std::byte{0xff};
  WriteFolder(dir, Goldens().at("fp8_block").at("quantization_config"), tensors);
  auto checkpoint = OpenCheckpoint(dir.path());
  REQUIRE(checkpoint.ok());
  CheckError(checkpoint->Find("m.weight")->quantized->CheckCodes(),
             absl::StatusCode::kInvalidArgument, {"tensor \"m.weight\" holds NaN"});
}

TEST_CASE("Integers take rows of integers only where the checkpoint says W8A8", "[files][unit]") {
  auto takes_int8_x = [](const json& config_groups) {
    test::TempDir dir;
    json quantization = Goldens().at("ct_int8").at("quantization_config");
    quantization["config_groups"] = config_groups;
    WriteFolder(dir, quantization, TensorsOf("ct_int8"));
    auto checkpoint = OpenCheckpoint(dir.path());
    REQUIRE(checkpoint.ok());
    return SourceOf(*checkpoint->Find("m.weight")).takes_int8_x;
  };
  const json w8a8 = {{"input_activations", {{"num_bits", 8}, {"type", "int"}}}};
  const json w8a16 = {{"input_activations", nullptr}};
  const json floats = {{"input_activations", {{"num_bits", 8}, {"type", "float"}}}};
  CHECK(takes_int8_x({{"group_0", w8a8}}));
  CHECK_FALSE(takes_int8_x({{"group_0", w8a16}}));
  CHECK_FALSE(takes_int8_x({{"group_0", floats}}));
  CHECK_FALSE(takes_int8_x({{"group_0", "w8a8"}}));
  CHECK_FALSE(takes_int8_x(json::array({w8a8})));
}

TEST_CASE("Layers that stayed unquantised lie beside quantised ones", "[files][unit]") {
  test::TempDir dir;
  auto tensors = TensorsOf("awq_g32");
  tensors["n.weight"] = {"n.weight", "F32", {2, 3}, std::vector<std::byte>(24)};
  tensors["m.bias"] = {"m.bias", "F32", {2}, std::vector<std::byte>(8)};
  WriteFolder(dir, Goldens().at("awq_g32").at("quantization_config"), tensors);
  auto checkpoint = OpenCheckpoint(dir.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 3);
  CHECK(checkpoint->Find("n.weight")->quantized == nullptr);
  CHECK(checkpoint->Find("m.weight")->type_name == "AWQ int4, groups of 32");
}

}  // namespace
}  // namespace heddle::engine
