// The writers of tests/support against the reference tools: what they write is what others read.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/files/checkpoint.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/quantize.h"
#include "tests/support/synthetic_weights.h"

namespace heddle::test {
namespace {

std::string Hex(const std::vector<std::byte>& bytes) {
  std::string text;
  for (std::byte b : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

TEST_CASE("Quantised blocks equal those of the gguf package, and decode to its values",
          "[files][golden]") {
  nlohmann::json golden = LoadGoldenJson("quantize.json");
  for (std::string name : {"Q8_0", "Q4_0"}) {
    kernels::DType dtype = *engine::FindDType(name);
    for (size_t i = 0; i < golden["rows"].size(); ++i) {
      INFO(name << " row " << i);
      auto row = golden["rows"][i].get<std::vector<float>>();
      std::vector<std::byte> blocks = Encode(row, static_cast<int64_t>(row.size()), dtype);
      CHECK(Hex(blocks) == golden[name][i].get<std::string>());
      std::vector<float> decoded(row.size());
      kernels::DequantizeRow(dtype, blocks.data(), static_cast<int64_t>(row.size()),
                             decoded.data());
      CHECK(decoded == golden[name + "_values"][i].get<std::vector<float>>());
    }
  }
}

TEST_CASE("Synthetic weights equal those of the Python script", "[files][golden]") {
  nlohmann::json golden = LoadGoldenJson("quantize.json");
  auto row = golden["rows"][0].get<std::vector<float>>();  // the one that the script leaves as is
  CHECK(SyntheticValues("quantize", 64, 2.0f, 0.0f) == row);
}

}  // namespace
}  // namespace heddle::test
