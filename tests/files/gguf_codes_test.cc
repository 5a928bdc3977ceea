// GGUF's formats that are read into others, on random blocks: against the gguf package's
// dequantiser (tests/golden/make_block_goldens.py) or, where it has none, the formats' definition.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/checkpoint.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/support/block_goldens.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using kernels::DType;

struct Case {
  const char* name;
  DType dtype;
};
constexpr Case kCases[] = {
    {"TQ1_0", DType::kTQ2_0},    {"IQ1_S", DType::kIQ1},  {"IQ1_M", DType::kIQ1},
    {"IQ2_XXS", DType::kIQ2},    {"IQ2_XS", DType::kIQ2}, {"IQ2_S", DType::kIQ2},
    {"IQ3_XXS", DType::kIQ3XXS}, {"IQ3_S", DType::kIQ3S},
};

absl::StatusOr<Checkpoint> OpenOne(const test::TempDir& dir, int type,
                                   const std::vector<int64_t>& shape,
                                   const std::vector<uint8_t>& bytes) {
  test::GgufWriter writer;
  writer.String("general.architecture", "llama")
      .Tensor("w.weight", type, shape, std::as_bytes(std::span(bytes)));
  test::WriteFile(dir / "m.gguf", writer.Bytes());
  return OpenCheckpoint(dir / "m.gguf");
}

// The rows of a matrix, `count` at a time.
std::vector<float> DecodeRows(const QuantizedMatrix& matrix, int64_t count) {
  const int64_t row_bytes = kernels::RowBytes(matrix.dtype, matrix.cols);
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t r = 0; r < matrix.rows; r += count) {
    const int64_t n = std::min(count, matrix.rows - r);
    std::vector<uint8_t> rows(static_cast<size_t>(n * row_bytes));
    matrix.ReadRows(r, n, rows.data());
    for (int64_t i = 0; i < n; ++i) {
      kernels::DequantizeRow(matrix.dtype, rows.data() + i * row_bytes, matrix.cols,
                             values.data() + (r + i) * matrix.cols);
    }
  }
  return values;
}

TEST_CASE("Formats of 1 to 3 bits decode to the bits that the gguf package gives",
          "[files][golden]") {
  const nlohmann::json goldens = test::LoadGoldenJson("blocks.json");
  for (const Case& c : kCases) {
    INFO(c.name);
    const nlohmann::json& golden = goldens.at(c.name);
    const int64_t columns = golden["columns"];
    const std::vector<uint8_t> bytes = test::RandomBlocks(c.name, golden);
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{16, 4 * columns}, {4, 8, 2 * columns}, {64 * columns}}) {
      test::TempDir dir;
      auto checkpoint = OpenOne(dir, golden["type"], shape, bytes);
      INFO(checkpoint.status().ToString());
      REQUIRE(checkpoint.ok());
      const CheckpointTensor* tensor = checkpoint->Find("w.weight");
      REQUIRE((tensor != nullptr && tensor->quantized != nullptr));
      CHECK(tensor->shape == shape);
      CHECK(tensor->type_name == c.name);
      CHECK(tensor->quantized->dtype == c.dtype);
      for (const int64_t count : {1, 3, 1000}) {
        const std::vector<float> values = DecodeRows(*tensor->quantized, count);
        const auto first = golden["first"].get<std::vector<float>>();
        CHECK(std::vector<float>(values.begin(), values.begin() + 8) == first);
        CHECK(test::HashOf(values) == golden["hash"].get<std::string>());
      }
    }
  }
}

TEST_CASE("Q1_0 has signs, and Q2_0 the numbers from -1 to 2", "[files][unit]") {
  const auto decode = [](int type, const std::vector<int64_t>& shape,
                         const std::vector<uint8_t>& bytes) {
    test::TempDir dir;
    auto checkpoint = OpenOne(dir, type, shape, bytes);
    REQUIRE(checkpoint.ok());
    return DecodeRows(*checkpoint->Find("w.weight")->quantized, 2);
  };
  std::vector<uint8_t> one(2 * 18, 0);
  one[1] = 0x40;         // 2
  one[2] = 0b00000101;   // columns 0 and 2
  one[17] = 0b10000000;  // the last column
  one[19] = 0xc0;        // -2
  const std::vector<float> signs = decode(41, {2, 128}, one);
  for (int k = 0; k < 128; ++k) {
    CHECK(signs[static_cast<size_t>(k)] == (k == 0 || k == 2 || k == 127 ? 2.0f : -2.0f));
    CHECK(signs[static_cast<size_t>(128 + k)] == 2.0f);
  }
  std::vector<uint8_t> two(18, 0);
  two[1] = 0x38;        // 0.5
  two[2] = 0b11100100;  // columns 0 to 3: -1, 0, 1, 2
  two[17] = 0b01000000;
  const std::vector<float> numbers = decode(42, {1, 64}, two);
  CHECK(std::vector<float>(numbers.begin(), numbers.begin() + 5) ==
        std::vector<float>{-0.5f, 0, 0.5f, 1, -0.5f});
  CHECK((numbers[62] == -0.5f && numbers[63] == 0));
}

TEST_CASE("Rows of half a block are refused", "[files][unit]") {
  test::TempDir dir;
  const auto status = OpenOne(dir, 16, {2, 128}, std::vector<uint8_t>(66)).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  INFO(status.ToString());
  CHECK(status.message().find("256") != std::string::npos);
}

}  // namespace
}  // namespace heddle::engine
