// Every blocked format against the gguf package's dequantiser (tests/golden/make_block_goldens.py),
// on random blocks.
#include "kernels/block_codes.h"

#include <cstring>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/support/block_goldens.h"
#include "tests/support/goldens.h"

namespace heddle::kernels {
namespace {

struct Named {
  const char* name;
  DType dtype;
};
constexpr Named kFormats[] = {
    {"Q8_0", DType::kQ8_0},   {"Q4_0", DType::kQ4_0},     {"Q4_1", DType::kQ4_1},
    {"Q5_0", DType::kQ5_0},   {"Q5_1", DType::kQ5_1},     {"Q2_K", DType::kQ2_K},
    {"Q3_K", DType::kQ3_K},   {"Q4_K", DType::kQ4_K},     {"Q5_K", DType::kQ5_K},
    {"Q6_K", DType::kQ6_K},   {"IQ4_NL", DType::kIQ4_NL}, {"IQ4_XS", DType::kIQ4_XS},
    {"TQ2_0", DType::kTQ2_0}, {"MXFP4", DType::kMXFP4},
};

TEST_CASE("Random blocks of every format decode to the bits that the gguf package gives",
          "[kernels][golden]") {
  const nlohmann::json goldens = test::LoadGoldenJson("blocks.json");
  for (const Named& format : kFormats) {
    INFO(format.name);
    const nlohmann::json& golden = goldens.at(format.name);
    const DTypeInfo& info = Info(format.dtype);
    REQUIRE(golden["columns"] == info.block_elements);
    REQUIRE(golden["block_bytes"] == info.block_bytes);
    const std::vector<uint8_t> bytes = test::RandomBlocks(format.name, golden);
    std::vector<float> values(test::kGoldenBlocks * info.block_elements);
    DequantizeRow(format.dtype, bytes.data(), static_cast<int64_t>(values.size()), values.data());
    const auto first = golden["first"].get<std::vector<float>>();
    CHECK(std::vector<float>(values.begin(), values.begin() + 8) == first);
    CHECK(test::HashOf(values) == golden["hash"].get<std::string>());
  }
}

// Hand arithmetic after the definition in dtype.h.
TEST_CASE("NVFP4 multiplies the block's scale, the group's E4M3 and E2M1", "[kernels][unit]") {
  uint8_t block[40] = {};
  const float scale = 3.0f;
  std::memcpy(block, &scale, 4);
  const uint8_t group_scales[4] = {0x38, 0x01, 0x7e, 0xb8};  // 1, 2^-9, 448, -1
  std::memcpy(block + 4, group_scales, 4);
  block[8] = 0x72;   // columns 0: 1, 16: 6
  block[23] = 0xf9;  // columns 15: -0.5, 31: -6
  block[24] = 0x15;  // columns 32: 3, 48: 0.5
  std::vector<float> values(64);
  DequantizeRow(DType::kNVFP4, block, 64, values.data());
  CHECK(values[0] == 3.0f);
  CHECK(values[15] == -1.5f);
  CHECK(values[16] == 18.0f * 0x1p-9f);
  CHECK(values[31] == -18.0f * 0x1p-9f);
  CHECK(values[32] == 9.0f * 448);
  CHECK(values[48] == -1.5f);
  CHECK(values[1] == 0.0f);
}

TEST_CASE("FP4's numbers are twelfths", "[kernels][unit]") {
  uint8_t block[36] = {};
  const float scale = 12.0f;
  std::memcpy(block, &scale, 4);
  for (int code = 0; code < 16; ++code) block[4 + code] = static_cast<uint8_t>(code);
  std::vector<float> values(64);
  DequantizeRow(DType::kFP4, block, 64, values.data());
  const float expected[8] = {0, 0.0625f, 8, 12, 4, 6, 2, 3};
  for (size_t code = 0; code < 8; ++code) {
    CHECK(values[code] == Approx(expected[code]));
    CHECK(values[code + 8] == -values[code]);
  }
}

}  // namespace
}  // namespace heddle::kernels
