#include "engine/files/gguf.h"

#include <cstring>
#include <limits>

#include "catch2/catch.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/paths.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using test::CheckError;
using test::GgufWriter;

absl::StatusOr<GgufFile> ParseGguf(const std::string& bytes) {
  return GgufFile::Parse(std::as_bytes(std::span(bytes)), "m.gguf");
}

absl::Status ParseError(const std::string& bytes) { return ParseGguf(bytes).status(); }

// 2 x 3 F32 and 2 x 32 Q8_0, with one key of each kind.
GgufWriter Example() {
  static const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  static const std::vector<std::byte> blocks(2 * 34);
  GgufWriter writer;
  writer.String("general.architecture", "llama")
      .U32("llama.block_count", 7)
      .F32("llama.eps", 0.5f)
      .Bool("flag", true)
      .Strings("tokens", std::vector<std::string>{"a", "", "bcd"})
      .Ints("types", std::vector<int32_t>{-1, 5})
      .Floats("scores", std::vector<float>{0.25f, -8.0f})
      .Tensor("matrix", 0, std::vector<int64_t>{2, 3}, std::as_bytes(std::span(matrix)))
      .Tensor("quantised", 8, std::vector<int64_t>{2, 32}, blocks);
  return writer;
}

TEST_CASE("Metadata of every kind comes back as it was written", "[files][unit]") {
  std::string bytes = Example().Bytes();
  auto file = ParseGguf(bytes);
  REQUIRE(file.ok());
  CHECK(file->version() == 3);
  CHECK(file->keys().size() == 7);
  CHECK(*file->String("general.architecture") == "llama");
  CHECK(*file->Int("llama.block_count") == 7);
  CHECK(*file->Float("llama.eps") == 0.5);
  CHECK(*file->Float("llama.block_count") == 7.0);
  CHECK(*file->Bool("flag"));
  CHECK(*file->Strings("tokens") == std::vector<std::string_view>{"a", "", "bcd"});
  CHECK(*file->Ints("types") == std::vector<int64_t>{-1, 5});
  CHECK(*file->Floats("scores") == std::vector<float>{0.25f, -8.0f});
  CHECK(file->IsArray("tokens"));
  CHECK(file->ArrayLength("tokens") == 3);
  CHECK_FALSE(file->IsArray("flag"));
}

TEST_CASE("An absent key is NOT_FOUND, or the value for it; a wrong type is an error either way",
          "[files][unit]") {
  std::string bytes = Example().Bytes();
  auto file = ParseGguf(bytes);
  REQUIRE(file.ok());
  CheckError(file->Int("none").status(), StatusCode::kNotFound, {"m.gguf", "\"none\""});
  CHECK(*file->IntOr("none", 9) == 9);
  CHECK(*file->StringOr("none", "x") == "x");
  CheckError(file->Int("tokens").status(), StatusCode::kInvalidArgument,
             {"m.gguf", "\"tokens\"", "array of string", "expected an integer"});
  CheckError(file->BoolOr("llama.eps", true).status(), StatusCode::kInvalidArgument,
             {"\"llama.eps\" is f32, expected a bool"});
  CheckError(file->Floats("tokens").status(), StatusCode::kInvalidArgument,
             {"expected an array of numbers"});
}

TEST_CASE("Tensors have shapes with rows first and lie where the table says", "[files][unit]") {
  std::string bytes = Example().Bytes();
  auto file = ParseGguf(bytes);
  REQUIRE(file.ok());
  REQUIRE(file->tensors().size() == 2);
  const GgufTensor* matrix = file->FindTensor("matrix");
  REQUIRE(matrix != nullptr);
  CHECK(matrix->type->name == "F32");
  CHECK(matrix->shape == std::vector<int64_t>{2, 3});
  float last = 0.0f;
  REQUIRE(matrix->data.size() == 24);
  std::memcpy(&last, matrix->data.data() + 20, sizeof(last));
  CHECK(last == 6.0f);
  CHECK(file->FindTensor("quantised")->data.size() == 2 * 34);
  CHECK(file->FindTensor("other") == nullptr);
}

TEST_CASE("Every prefix of a GGUF file is refused as truncated, not read past", "[files][unit]") {
  std::string bytes = Example().Bytes();
  size_t end_of_data =
      bytes.size() - (32 - 68 % 32);  // the padding of the last tensor is not needed
  for (size_t size = 0; size < end_of_data; ++size) {
    // A copy of exactly this size, so that the address sanitizer sees a read past it.
    std::vector<char> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    auto file = GgufFile::Parse(std::as_bytes(std::span(part)), "m.gguf");
    INFO("prefix of " << size);
    REQUIRE(file.status().code() == StatusCode::kInvalidArgument);
  }
  CHECK(ParseGguf(bytes.substr(0, end_of_data)).ok());
  CheckError(ParseError(bytes.substr(0, 30)), StatusCode::kInvalidArgument, {"m.gguf"});
}

TEST_CASE("A wrong magic or version names what was found", "[files][unit]") {
  GgufWriter magic = Example();
  magic.magic = 0x04034b50;  // a zip file, as PyTorch writes
  CheckError(ParseError(magic.Bytes()), StatusCode::kInvalidArgument,
             {"m.gguf: not a GGUF file", "PK", "expected \"GGUF\""});
  GgufWriter old = Example();
  old.version = 1;
  CheckError(ParseError(old.Bytes()), StatusCode::kInvalidArgument,
             {"version 1 is not supported", "2 or 3"});
  GgufWriter big_endian = Example();
  big_endian.version = 0x03000000;
  CheckError(ParseError(big_endian.Bytes()), StatusCode::kInvalidArgument, {"big-endian"});
  GgufWriter second = Example();
  second.version = 2;
  std::string bytes = second.Bytes();
  CHECK(ParseGguf(bytes).ok());
}

TEST_CASE("Huge counts are refused before memory is taken", "[files][unit]") {
  GgufWriter tensors = Example();
  tensors.extra_tensors = int64_t{1} << 60;
  CheckError(ParseError(tensors.Bytes()), StatusCode::kInvalidArgument, {"claims", "tensors"});
  GgufWriter metadata = Example();
  metadata.extra_metadata = int64_t{1} << 60;
  CheckError(ParseError(metadata.Bytes()), StatusCode::kInvalidArgument, {"metadata entries"});

  std::string strings("\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12);  // 2^64 - 1 strings
  CheckError(ParseError(GgufWriter().Raw("t", GgufType::kArray, strings).Bytes()),
             StatusCode::kInvalidArgument,
             {"\"t\" claims 18446744073709551615 elements of string"});
  std::string floats("\x06\0\0\0\xff\xff\xff\xff\xff\xff\xff\x3f", 12);  // 4 x this overflows
  CheckError(ParseError(GgufWriter().Raw("f", GgufType::kArray, floats).Bytes()),
             StatusCode::kInvalidArgument, {"\"f\" claims", "elements of f32"});
  std::string text("\xff\xff\xff\xff\xff\xff\xff\xff", 8);
  CheckError(ParseError(GgufWriter().Raw("s", GgufType::kString, text).Bytes()),
             StatusCode::kInvalidArgument, {"truncated", "18446744073709551615 bytes"});
}

TEST_CASE("Arrays in arrays are followed to a bounded depth", "[files][unit]") {
  std::string nested("\x05\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0", 16);  // an array of one i32
  for (int depth = 1; depth < 4; ++depth) {
    nested = std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12) + nested;
  }
  CHECK(ParseGguf(GgufWriter().Raw("a", GgufType::kArray, nested).Bytes()).ok());
  nested = std::string("\x09\0\0\0\x01\0\0\0\0\0\0\0", 12) + nested;
  CheckError(ParseError(GgufWriter().Raw("a", GgufType::kArray, nested).Bytes()),
             StatusCode::kInvalidArgument, {"\"a\" nests arrays deeper than 4"});
}

TEST_CASE("Tensors that lie about themselves are refused by name", "[files][unit]") {
  using Dims = std::vector<uint64_t>;
  constexpr uint64_t kHuge = uint64_t{1} << 62;
  auto error = [](uint32_t type, const Dims& dims, uint64_t offset) {
    return ParseError(GgufWriter().RawTensor("liar", type, dims, offset).Bytes());
  };
  CheckError(error(0, {kHuge, 8}, 0), StatusCode::kInvalidArgument,
             {"\"liar\"", "shape [8, 4611686018427387904]", "overflows"});
  CheckError(error(0, {~uint64_t{0}}, 0), StatusCode::kInvalidArgument, {"\"liar\"", "overflow"});
  CheckError(error(0, {4}, 0), StatusCode::kInvalidArgument, {"\"liar\"", "ends past"});
  CheckError(error(0, {0}, uint64_t{1} << 63), StatusCode::kInvalidArgument, {"ends past"});
  CheckError(error(0, {0}, 5), StatusCode::kInvalidArgument, {"offset 5", "alignment 32"});
  CheckError(error(8, {33}, 0), StatusCode::kInvalidArgument,
             {"rows of 33 elements", "whole blocks of 32 (Q8_0)"});
  CheckError(error(4711, {32}, 0), StatusCode::kInvalidArgument, {"\"liar\"", "type number 4711"});
  CheckError(error(0, {1, 1, 1, 1, 1}, 0), StatusCode::kInvalidArgument, {"5 dimensions"});
}

TEST_CASE("Names that occur twice and tensors that overlap are refused", "[files][unit]") {
  CheckError(ParseError(Example().Bool("flag", false).Bytes()), StatusCode::kInvalidArgument,
             {"key \"flag\" occurs twice"});
  std::vector<uint64_t> dims = {3, 2};
  CheckError(ParseError(Example().RawTensor("matrix", 0, dims, 0).Bytes()),
             StatusCode::kInvalidArgument, {"tensor \"matrix\" occurs twice"});
  CheckError(ParseError(Example().RawTensor("shadow", 0, dims, 0).Bytes()),
             StatusCode::kInvalidArgument, {"\"matrix\"", "\"shadow\"", "overlap"});
}

TEST_CASE("The alignment of the data is that of the file", "[files][unit]") {
  std::vector<std::byte> data(8, std::byte{7});
  GgufWriter writer;
  writer.Alignment(64)
      .Tensor("a", 0, std::vector<int64_t>{2}, data)
      .Tensor("b", 0, std::vector<int64_t>{2}, data);
  std::string bytes = writer.Bytes();
  auto file = ParseGguf(bytes);
  REQUIRE(file.ok());
  CHECK(file->FindTensor("b")->data.data() - file->FindTensor("a")->data.data() == 64);
  CHECK(file->FindTensor("b")->data[0] == std::byte{7});
  CheckError(ParseError(GgufWriter().U32("general.alignment", 0).Bytes()),
             StatusCode::kInvalidArgument, {"\"general.alignment\" is 0", "power of two"});
  CheckError(ParseError(GgufWriter().U32("general.alignment", 48).Bytes()),
             StatusCode::kInvalidArgument, {"is 48", "power of two"});
}

TEST_CASE("Control characters of a file do not reach the terminal", "[files][unit]") {
  std::string name = "a\x1b[31m\n";
  std::vector<uint64_t> dims = {4};
  absl::Status status = ParseError(GgufWriter().RawTensor(name, 0, dims, 0).Bytes());
  CHECK(status.message().find('\x1b') == absl::string_view::npos);
  CHECK(status.message().find('\n') == absl::string_view::npos);
}

TEST_CASE("Views survive a move of the file they point into", "[files][unit]") {
  test::TempDir dir;
  test::WriteFile(dir / "m.gguf", Example().Bytes());
  auto opened = GgufFile::Open(dir / "m.gguf");
  REQUIRE(opened.ok());
  std::string_view architecture = *opened->String("general.architecture");
  GgufFile moved = *std::move(opened);
  CHECK(architecture == "llama");
  CHECK(moved.FindTensor("matrix")->shape.size() == 2);
  CHECK(moved.mapping().bytes().size() > 0);
}

TEST_CASE("Real files are read whole", "[files][unit]") {
  if (!test::HasSharedData("stories260K")) return;
  auto file = GgufFile::Open(test::SharedDataOrSkip("stories260K/stories260K-Q4_0.gguf"));
  REQUIRE(file.ok());
  CHECK(file->tensors().size() == 47);
  CHECK(file->FindTensor("token_embd.weight")->shape == std::vector<int64_t>{512, 64});
  CHECK(file->FindTensor("blk.0.ffn_down.weight")->type->name == "F16");
  CHECK(file->Strings("tokenizer.ggml.tokens")->size() == 512);
}

}  // namespace
}  // namespace heddle::engine
