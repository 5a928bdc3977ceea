#include "engine/files/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "catch2/catch.hpp"
#include "engine/files/json_file.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using test::CheckError;
using test::GgufWriter;
using test::TempDir;
using test::TensorToWrite;
using test::WriteFile;

TensorToWrite Tensor(const std::string& name, const std::string& dtype = "F32") {
  size_t bytes = dtype == "F32" ? 24 : (dtype == "I64" ? 48 : 12);
  return {name, dtype, {2, 3}, std::vector<std::byte>(bytes, std::byte{1})};
}

void WriteSafetensors(const std::filesystem::path& path, std::vector<TensorToWrite> tensors) {
  WriteFile(path, test::SafetensorsBytes(tensors));
}

absl::Status OpenError(const std::filesystem::path& path) { return OpenCheckpoint(path).status(); }

TEST_CASE("A folder with one safetensors file opens with its config", "[files][unit]") {
  TempDir dir;
  WriteFile(dir / "config.json", R"({"model_type": "llama"})");
  WriteFile(dir / "generation_config.json", R"({"eos_token_id": [1, 2]})");
  WriteSafetensors(dir / "model.safetensors",
                   {Tensor("w"), Tensor("a", "BF16"), Tensor("i", "I64")});
  auto checkpoint = OpenCheckpoint(dir.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->format() == CheckpointFormat::kHuggingFace);
  CHECK(checkpoint->gguf() == nullptr);
  CHECK(checkpoint->config().at("model_type") == "llama");
  CHECK(checkpoint->generation_config().at("eos_token_id").size() == 2);
  REQUIRE(checkpoint->tensors().size() == 3);
  CHECK(checkpoint->tensors()[0].name == "a");
  CHECK(checkpoint->Find("w")->dtype == kernels::DType::kF32);
  CHECK(checkpoint->Find("a")->dtype == kernels::DType::kBF16);
  CHECK(checkpoint->Find("x") == nullptr);
  CHECK(checkpoint->total_bytes() == 24 + 12 + 48);
}

TEST_CASE("A tensor without kernels is an error only for who asks for it", "[files][unit]") {
  TempDir dir;
  WriteFile(dir / "config.json", "{}");
  WriteSafetensors(dir / "model.safetensors", {Tensor("w"), Tensor("ids", "I64")});
  auto checkpoint = OpenCheckpoint(dir.path());
  REQUIRE(checkpoint.ok());
  const CheckpointTensor& ids = *checkpoint->Find("ids");
  CHECK_FALSE(ids.dtype.has_value());
  CheckError(UnsupportedType(*checkpoint, ids), StatusCode::kInvalidArgument,
             {dir.path().string(), "\"ids\" is stored as I64", "F32, F16, BF16, Q8_0, Q4_0"});
  std::vector<TypeUsage> types = checkpoint->types();
  REQUIRE(types.size() == 2);
  CHECK(types[0].type_name == "I64");  // the largest first
  CHECK_FALSE(types[0].supported);
  CHECK(types[1].bytes == 24);
  CHECK(types[1].num_elements == 6);
}

TEST_CASE("Shards are found by the index and joined", "[files][unit]") {
  TempDir dir;
  WriteFile(dir / "config.json", "{}");
  WriteSafetensors(dir / "model-1.safetensors", {Tensor("a"), Tensor("b")});
  WriteSafetensors(dir / "model-2.safetensors", {Tensor("c")});
  WriteFile(dir / "model.safetensors.index.json",
            R"({"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors",
                              "c":"model-2.safetensors"}})");
  auto checkpoint = OpenCheckpoint(dir.path());
  REQUIRE(checkpoint.ok());
  CHECK(checkpoint->tensors().size() == 3);
  checkpoint->WillNeed(*checkpoint->Find("c"));
  checkpoint->DontNeed(*checkpoint->Find("c"));
  CHECK(checkpoint->Find("c")->data[23] == std::byte{1});  // still readable
}

TEST_CASE("A broken index says which shard or tensor is wrong", "[files][unit]") {
  TempDir dir;
  WriteFile(dir / "config.json", "{}");
  WriteSafetensors(dir / "one.safetensors", {Tensor("a")});
  WriteSafetensors(dir / "two.safetensors", {Tensor("a")});
  auto with_index = [&](const std::string& index) {
    WriteFile(dir / "model.safetensors.index.json", index);
    return OpenError(dir.path());
  };
  CheckError(with_index(R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})"),
             StatusCode::kNotFound,
             {"model.safetensors.index.json", "three.safetensors", "missing"});
  CheckError(with_index(R"({"weight_map":{"b":"one.safetensors"}})"), StatusCode::kInvalidArgument,
             {"\"b\" is not in one.safetensors"});
  CheckError(with_index(R"({"weight_map":{"a":"../one.safetensors"}})"),
             StatusCode::kInvalidArgument, {"\"../one.safetensors\"", "expected a file name"});
  CheckError(with_index(R"({"weight_map":{"a":7}})"), StatusCode::kInvalidArgument,
             {"\"a\" is not a string"});
  CheckError(with_index(R"({"weight_map":{}})"), StatusCode::kInvalidArgument, {"no tensors"});
  CheckError(with_index(R"({"weights":{}})"), StatusCode::kInvalidArgument, {"\"weight_map\""});
  CheckError(with_index("{"), StatusCode::kInvalidArgument, {"not valid JSON"});
  CheckError(with_index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"),
             StatusCode::kInvalidArgument, {"\"b\" is not in two.safetensors"});
}

TEST_CASE("Paths that are no model say what was expected", "[files][unit]") {
  TempDir dir;
  CheckError(OpenError(dir / "nothing"), StatusCode::kNotFound, {"there is no file or folder"});
  CheckError(OpenError(dir.path()), StatusCode::kNotFound, {"has no config.json"});
  WriteFile(dir / "q4.gguf", "");
  CheckError(OpenError(dir.path()), StatusCode::kNotFound, {"holds q4.gguf", "give the path"});
  std::filesystem::remove(dir / "q4.gguf");
  WriteFile(dir / "config.json", "{}");
  CheckError(OpenError(dir.path()), StatusCode::kNotFound,
             {"no weights", "model.safetensors or model.safetensors.index.json"});
  WriteFile(dir / "pytorch_model.bin", "");
  CheckError(OpenError(dir.path()), StatusCode::kNotFound, {"pytorch_model.bin", "convert"});
  WriteFile(dir / "x.safetensors", "");
  CheckError(OpenError(dir / "x.safetensors"), StatusCode::kInvalidArgument, {"its folder"});
  WriteFile(dir / "readme.txt", "hello");
  CheckError(OpenError(dir / "readme.txt"), StatusCode::kInvalidArgument, {"not a GGUF file"});
  CheckError(OpenError("/dev/null"), StatusCode::kFailedPrecondition, {"not a regular file"});
  WriteFile(dir / "config.json", "[1]");
  CheckError(OpenError(dir.path()), StatusCode::kInvalidArgument, {"array", "expected an object"});
  WriteFile(dir / "config.json", "");
  CheckError(OpenError(dir.path()), StatusCode::kInvalidArgument, {"not valid JSON"});
}

TEST_CASE("A file without read permission says so", "[files][unit]") {
  if (::geteuid() == 0) return;  // root reads everything
  TempDir dir;
  WriteFile(dir / "secret.gguf", "GGUF");
  ::chmod((dir / "secret.gguf").c_str(), 0);
  CheckError(OpenError(dir / "secret.gguf"), StatusCode::kPermissionDenied, {"secret.gguf"});
}

TEST_CASE("A GGUF file opens by itself, and as the first of its parts", "[files][unit]") {
  TempDir dir;
  std::vector<std::byte> data(24);
  std::vector<int64_t> shape = {2, 3};
  WriteFile(dir / "m.gguf", GgufWriter().Tensor("a", 0, shape, data).Bytes());
  auto single = OpenCheckpoint(dir / "m.gguf");
  REQUIRE(single.ok());
  CHECK(single->format() == CheckpointFormat::kGguf);
  CHECK(single->gguf() != nullptr);
  CHECK(single->config().empty());

  auto part = [&](uint32_t number, const std::string& tensor) {
    return GgufWriter()
        .U32("split.no", number)
        .U32("split.count", 2)
        .Tensor(tensor, 0, shape, data)
        .Bytes();
  };
  WriteFile(dir / "s-00001-of-00002.gguf", part(0, "a"));
  CheckError(OpenError(dir / "s-00001-of-00002.gguf"), StatusCode::kNotFound,
             {"s-00002-of-00002.gguf of 2 is missing"});
  WriteFile(dir / "s-00002-of-00002.gguf", part(1, "b"));
  auto split = OpenCheckpoint(dir / "s-00001-of-00002.gguf");
  REQUIRE(split.ok());
  CHECK(split->tensors().size() == 2);
  CheckError(OpenError(dir / "s-00002-of-00002.gguf"), StatusCode::kInvalidArgument,
             {"the first part"});
  WriteFile(dir / "s-00002-of-00002.gguf", part(1, "a"));
  CheckError(OpenError(dir / "s-00001-of-00002.gguf"), StatusCode::kInvalidArgument,
             {"\"a\" occurs twice, in "});
  WriteFile(dir / "odd.gguf", part(0, "a"));
  CheckError(OpenError(dir / "odd.gguf"), StatusCode::kInvalidArgument,
             {"odd.gguf", "expected a name ending in -00001-of-00002.gguf"});
}

TEST_CASE("JSON is bounded in size and depth", "[files][unit]") {
  TempDir dir;
  WriteFile(dir / "big.json", "[" + std::string(1000, ' ') + "]");
  CHECK(ReadJsonFile(dir / "big.json").ok());
  CheckError(ReadJsonFile(dir / "big.json", 100).status(), StatusCode::kInvalidArgument,
             {"big.json has 1002 bytes", "at most 100"});
  auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(ParseJson(nested(64), "n").ok());
  CheckError(ParseJson(nested(65), "n").status(), StatusCode::kInvalidArgument,
             {"nested more than 64 levels"});
  CHECK(ParseJson(R"(["[[[[", "\"[", {"a]": "{"}])", "n").ok());
  CheckError(ParseJson("{\"a\": \"\xff\"}", "n").status(), StatusCode::kInvalidArgument,
             {"n is not valid JSON"});
}

}  // namespace
}  // namespace heddle::engine
