// Phi-4-mini-flash's layers beside what else a server does: quantised weights, caches of all types,
// and chunks, whose bits they keep.
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

engine::LocalModel LoadSambaY(const std::filesystem::path& path, const std::string& weights,
                              const std::string& kv_type) {
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  options.weights = weights;
  options.kv_type = kv_type;
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.max_batch_tokens = 64;
  auto model = engine::LoadLocalModel(path, options);
  INFO(weights << " and " << kv_type << ": " << model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model).value();
}

// Root of the mean square of what differs, as a part of that of `expected`.
double RelativeError(const std::vector<float>& found, const std::vector<float>& expected) {
  REQUIRE(found.size() == expected.size());
  double squares = 0, all = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = double{found[i]} - expected[i];
    squares += error * error;
    all += double{expected[i]} * expected[i];
  }
  return std::sqrt(squares / all);
}

TEST_CASE("SambaY's layers take weights and caches of all types, with the same bits in any chunks",
          "[golden]") {
  struct Types {
    const char* weights;
    const char* kv_type;
    double error;  // each product's rounding, over two dozen products
  };
  const Types all[] = {{"auto", "f16", 0.01}, {"auto", "bf16", 0.05}, {"auto", "int8", 0.05},
                       {"auto", "fp8", 0.2},  {"int8", "int8", 0.1},  {"int4", "int8", 0.5},
                       {"fp8", "fp8", 0.4}};
  const std::string name = GENERATE("phi4flash", "phi4flash_biases");
  const test::Golden golden = test::LoadGolden(name);
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(golden, dir.path());
  const std::vector<float> exact =
      test::AllLogits(*LoadSambaY(path, "auto", "f32").executor, golden.prompt, 64);
  for (const Types& types : all) {
    const engine::LocalModel model = LoadSambaY(path, types.weights, types.kv_type);
    const std::vector<float> whole = test::AllLogits(*model.executor, golden.prompt, 64);
    const double error = RelativeError(whole, exact);
    INFO(name << ", weights " << types.weights << ", cache " << types.kv_type << ": " << error);
    CHECK(error > 0);
    CHECK(error < types.error);
    CHECK(test::AllLogits(*model.executor, golden.prompt, 7) == whole);
    CHECK(test::AllLogits(*model.executor, golden.prompt, 1) == whole);
  }
}

}  // namespace
}  // namespace heddle
