#include "engine/files/safetensors.h"

#include "catch2/catch.hpp"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using test::CheckError;
using test::SafetensorsBytes;

absl::StatusOr<SafetensorsFile> ParseSafetensors(const std::string& bytes) {
  return SafetensorsFile::Parse(std::as_bytes(std::span(bytes)), "m.safetensors");
}

// The error for a header, with 24 bytes of data behind it.
absl::Status HeaderError(const std::string& header) {
  return ParseSafetensors(SafetensorsBytes(header, std::string(24, 'x'))).status();
}

constexpr const char* kGood = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

TEST_CASE("Tensors come back with type, shape and bytes, in the order of the data",
          "[files][unit]") {
  std::string bytes = SafetensorsBytes(
      R"({"__metadata__":{"format":"pt"},
          "b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},
          "none":{"dtype":"F32","shape":[0,7],"data_offsets":[12,12]},
          "a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":{"deep":[1,{"x":null}]}},
          "scalar":{"dtype":"I64","shape":[],"data_offsets":[12,20]}} )",
      "aaaabbbbbbbbssssssss");
  auto file = ParseSafetensors(bytes);
  REQUIRE(file.ok());
  REQUIRE(file->tensors().size() == 4);
  CHECK(file->tensors()[0].name == "a");
  CHECK(file->tensors()[0].type->name == "U8");
  CHECK(file->tensors()[1].name == "b");
  CHECK(file->tensors()[1].shape == std::vector<int64_t>{2, 2});
  CHECK(file->tensors()[1].data[0] == std::byte{'b'});
  CHECK(file->tensors()[2].data.empty());
  CHECK(file->tensors()[3].shape.empty());
  CHECK(file->tensors()[3].data.size() == 8);
}

TEST_CASE("Every prefix of a safetensors file is refused, not read past", "[files][unit]") {
  std::string bytes = SafetensorsBytes(kGood, std::string(24, 'x'));
  REQUIRE(ParseSafetensors(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::vector<char> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    auto file = SafetensorsFile::Parse(std::as_bytes(std::span(part)), "m.safetensors");
    INFO("prefix of " << size);
    REQUIRE(file.status().code() == StatusCode::kInvalidArgument);
  }
  CheckError(ParseSafetensors(bytes.substr(0, 20)).status(), StatusCode::kInvalidArgument,
             {"m.safetensors: truncated", "claims 57 bytes", "only 12 follow"});
}

TEST_CASE("A file of another kind is told from a truncated one", "[files][unit]") {
  CheckError(ParseSafetensors(std::string("GGUF\x03\0\0\0....", 12)).status(),
             StatusCode::kInvalidArgument, {"not a safetensors file"});
  CheckError(ParseSafetensors(std::string("\x04\0\0\0\0\0\0\0HTML", 12)).status(),
             StatusCode::kInvalidArgument, {"not a safetensors file", "\"HTML\""});
  CheckError(HeaderError(R"({"a":{"dtype":"F32",)"), StatusCode::kInvalidArgument,
             {"not valid JSON at byte"});
}

TEST_CASE("Headers that lie about a tensor are refused by its name", "[files][unit]") {
  auto error = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return HeaderError(R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape +
                       R"(,"data_offsets":)" + offsets + "}}");
  };
  CheckError(error("F32", "[2,3]", "[0,28]"), StatusCode::kInvalidArgument,
             {"\"a\"", "[0, 28]", "holds 24 bytes"});
  CheckError(error("F32", "[2,3]", "[24,0]"), StatusCode::kInvalidArgument, {"\"a\"", "[24, 0]"});
  CheckError(error("F32", "[2,2]", "[0,24]"), StatusCode::kInvalidArgument,
             {"\"a\"", "24 bytes", "shape [2, 2] of F32 takes 16"});
  CheckError(error("F32", "[4611686018427387904,8]", "[0,24]"), StatusCode::kInvalidArgument,
             {"\"a\"", "overflows"});
  CheckError(error("F32", "[18446744073709551615]", "[0,24]"), StatusCode::kInvalidArgument,
             {"\"a\"", "overflow"});
  CheckError(error("F32", "[-2,3]", "[0,24]"), StatusCode::kInvalidArgument,
             {"\"a\"", "negative number -2"});
  CheckError(error("F32", "[2.5,3]", "[0,24]"), StatusCode::kInvalidArgument, {"\"a\"", "2.5"});
  CheckError(error("F33", "[2,3]", "[0,24]"), StatusCode::kInvalidArgument,
             {"\"a\"", "dtype \"F33\""});
  CheckError(error("F4", "[3]", "[0,1]"), StatusCode::kInvalidArgument,
             {"\"a\"", "whole number of bytes"});
  CheckError(error("F32", "[2,3]", "[0]"), StatusCode::kInvalidArgument,
             {"\"a\"", "two \"data_offsets\""});
  CheckError(error("F32", "[[2,3]]", "[0,24]"), StatusCode::kInvalidArgument,
             {"\"a\"", "the header has an array where"});
  CheckError(error("F32", "6", "[0,24]"), StatusCode::kInvalidArgument,
             {"the header has a number where"});
  CheckError(HeaderError(R"({"a":[1,2]})"), StatusCode::kInvalidArgument, {"\"a\""});
  CheckError(HeaderError(R"({"a":{"shape":[6],"data_offsets":[0,24]}})"),
             StatusCode::kInvalidArgument, {"\"a\" needs a \"dtype\""});
}

TEST_CASE("Overlaps, holes, trailing bytes and duplicate names are refused", "[files][unit]") {
  auto two = [](const std::string& second, const std::string& offsets) {
    return HeaderError(R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[0,12]},")" + second +
                       R"(":{"dtype":"U8","shape":[8],"data_offsets":)" + offsets + "}}");
  };
  CheckError(two("b", "[8,16]"), StatusCode::kInvalidArgument,
             {"\"b\"", "begins at byte 8", "overlaps", "ends at 12"});
  CheckError(two("b", "[16,24]"), StatusCode::kInvalidArgument, {"\"b\"", "leaves a hole"});
  CheckError(two("b", "[12,20]"), StatusCode::kInvalidArgument,
             {"end at byte 20", "24 bytes follow the header"});
  CheckError(two("a", "[12,20]"), StatusCode::kInvalidArgument, {"\"a\" occurs twice"});
}

TEST_CASE("A header of absurd length is refused by its length", "[files][unit]") {
  std::string bytes("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  CheckError(ParseSafetensors(bytes).status(), StatusCode::kInvalidArgument,
             {"header of 18446744073709551615 bytes", "at most 100000000"});
}

TEST_CASE("Deeply nested headers neither overflow the stack nor pass", "[files][unit]") {
  std::string deep = R"({"a":{"x":)" + std::string(200000, '[') + std::string(200000, ']') + "}}";
  CheckError(HeaderError(deep), StatusCode::kInvalidArgument, {"\"a\" needs"});
}

}  // namespace
}  // namespace heddle::engine
