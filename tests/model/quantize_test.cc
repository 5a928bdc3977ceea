// Quantising at load: the encoders against exact arithmetic, what is kept as what, and a model that
// is quantised while loading against the same model quantised before.
#include "engine/model/quantize.h"

#include <cmath>
#include <random>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;

std::vector<float> Normals(size_t n) {
  std::mt19937 engine(20240607);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(engine);
  return values;
}

std::vector<float> RoundTrip(DType dtype, const std::vector<float>& row) {
  const auto cols = static_cast<int64_t>(row.size());
  std::vector<uint8_t> bytes(static_cast<size_t>(kernels::RowBytes(dtype, cols)));
  EncodeRow(dtype, row.data(), cols, bytes.data());
  std::vector<float> decoded(row.size());
  kernels::DequantizeRow(dtype, bytes.data(), cols, decoded.data());
  return decoded;
}

TEST_CASE("Q8_0 errs by at most half a step of the block's largest value", "[model][unit]") {
  std::vector<float> row = Normals(512);
  row[40] = 100.0f;
  row[511] = -1e-30f;
  const std::vector<float> decoded = RoundTrip(DType::kQ8_0, row);
  for (size_t b = 0; b < row.size(); b += 32) {
    float largest = 0;
    for (size_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(row[i]));
    // The scale is rounded to F16, which 127 steps add up.
    const float slack = largest / 127 * 0.5f + largest * 0x1p-11f;
    for (size_t i = b; i < b + 32; ++i) CHECK(std::fabs(decoded[i] - row[i]) <= slack);
  }
}

TEST_CASE("Q4_0 is never worse than the plain rule, and exact where values are its own",
          "[model][unit]") {
  std::vector<float> own(32);
  for (int i = 0; i < 32; ++i) own[i] = 0.25f * static_cast<float>(i % 16 - 8);
  CHECK(RoundTrip(DType::kQ4_0, own) == own);
  const std::vector<float> row = Normals(32 * 256);
  const std::vector<float> decoded = RoundTrip(DType::kQ4_0, row);
  double error = 0;
  double plain = 0;
  for (size_t b = 0; b < row.size(); b += 32) {
    float extreme = 0;
    for (size_t i = b; i < b + 32; ++i) {
      if (std::fabs(row[i]) > std::fabs(extreme)) extreme = row[i];
    }
    const float scale = kernels::F16ToF32(kernels::F32ToF16(extreme / -8));
    for (size_t i = b; i < b + 32; ++i) {
      const float q = std::min(7.0f, std::max(-8.0f, std::nearbyint(row[i] / scale)));
      plain += std::pow(row[i] - q * scale, 2);
      error += std::pow(row[i] - decoded[i], 2);
    }
  }
  CHECK(error < 0.95 * plain);
}

TEST_CASE("FP8 errs by at most half a unit of E4M3 of the row's largest value / 448",
          "[model][unit]") {
  std::vector<float> row = Normals(512);
  row[40] = 100.0f;
  for (DType dtype : {DType::kF8G32, DType::kF8G128}) {
    const std::vector<float> decoded = RoundTrip(dtype, row);
    CHECK(decoded[40] == 100.0f);
    for (size_t i = 0; i < row.size(); ++i) {
      // Three bits of mantissa, and multiples of 2^-9 below 2^-6.
      const float unit = std::max(std::fabs(row[i]) * 0x1p-4f, 100.0f / 448 * 0x1p-10f);
      CHECK(std::fabs(decoded[i] - row[i]) <= unit * 1.001f);
    }
  }
}

TEST_CASE("Zeros, and values too small for an F16 scale, decode to finite numbers",
          "[model][unit]") {
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    CHECK(RoundTrip(dtype, std::vector<float>(32, 0.0f)) == std::vector<float>(32, 0.0f));
    for (float x : RoundTrip(dtype, std::vector<float>(32, 1e-20f))) CHECK(x == 0.0f);
  }
  CHECK(RoundTrip(DType::kF8G32, std::vector<float>(64, 0.0f)) == std::vector<float>(64, 0.0f));
  for (float x : RoundTrip(DType::kF8G32, std::vector<float>(64, 1e-38f))) {
    CHECK(std::fabs(x) < 1e-30f);
  }
}

TEST_CASE("A policy makes matrices smaller and never larger", "[model][unit]") {
  const WeightPolicy int4 = *ParseWeightPolicy("int4");
  CHECK(KeptAs(int4, WeightRole::kMatrix, DType::kBF16, 64) == DType::kQ4_0);
  CHECK(KeptAs(int4, WeightRole::kTable, DType::kBF16, 64) == DType::kQ8_0);
  CHECK(KeptAs(int4, WeightRole::kExact, DType::kBF16, 64) == DType::kBF16);
  CHECK(KeptAs(int4, WeightRole::kMatrix, DType::kQ8_0, 64) == DType::kQ4_0);
  CHECK(KeptAs(int4, WeightRole::kMatrix, DType::kQ2_K, 256) == DType::kQ2_K);
  CHECK(KeptAs(int4, WeightRole::kMatrix, DType::kBF16, 33) == DType::kBF16);  // no whole blocks
  const WeightPolicy int8 = *ParseWeightPolicy("int8");
  CHECK(KeptAs(int8, WeightRole::kMatrix, DType::kF32, 64) == DType::kQ8_0);
  CHECK(KeptAs(int8, WeightRole::kMatrix, DType::kQ6_K, 256) == DType::kQ6_K);
  CHECK(KeptAs(*ParseWeightPolicy("auto"), WeightRole::kMatrix, DType::kF32, 64) == DType::kF32);
  const WeightPolicy fp8 = *ParseWeightPolicy("fp8");
  CHECK(KeptAs(fp8, WeightRole::kMatrix, DType::kBF16, 256) == DType::kF8G128);
  CHECK(KeptAs(fp8, WeightRole::kMatrix, DType::kBF16, 96) == DType::kF8G32);
  CHECK(KeptAs(fp8, WeightRole::kMatrix, DType::kQ8_0, 256) == DType::kQ8_0);
  CHECK(KeptAs(fp8, WeightRole::kMatrix, DType::kQ6_K, 256) == DType::kQ6_K);
  CHECK(KeptAs(fp8, WeightRole::kTable, DType::kBF16, 256) == DType::kBF16);
  CHECK_FALSE(ParseWeightPolicy("int5").ok());
}

TEST_CASE("Kept sources give the rows that the encoder makes, in any portions", "[model][unit]") {
  const std::vector<float> values = Normals(70 * 64);
  const kernels::WeightSource floats{values.data(), DType::kF32, 70, 64, "w"};
  const KeptSources kept(*ParseWeightPolicy("int8"), WeightRole::kMatrix, {&floats, 1});
  REQUIRE(kept.sources().size() == 1);
  const kernels::WeightSource& source = kept.sources()[0];
  CHECK(source.dtype == DType::kQ8_0);
  std::vector<uint8_t> all(70 * 68);
  for (int64_t r = 0; r < 70; ++r) {
    EncodeRow(DType::kQ8_0, values.data() + r * 64, 64, all.data() + r * 68);
  }
  std::vector<uint8_t> buffer;
  for (int64_t begin : {0, 33}) {
    const uint8_t* rows = kernels::SourceRows(source, begin, 37, &buffer);
    CHECK(std::equal(rows, rows + 37 * 68, all.begin() + begin * 68));
  }
}

// Uniform steps of size s leave errors of s / sqrt(12): for normal values in blocks of 32, whose
// largest is some 2.1 deviations, that is 0.5 % with 254 steps and 8 % with 16.
TEST_CASE("The measured error is that of uniform steps", "[model][unit]") {
  const std::vector<float> values = Normals(256 * 256);
  const kernels::WeightSource source{values.data(), DType::kF32, 256, 256, "w"};
  CHECK(MeasureQuantizing(source, DType::kQ8_0).relative_rms() == Approx(0.0055).epsilon(0.2));
  CHECK(MeasureQuantizing(source, DType::kQ4_0).relative_rms() == Approx(0.08).epsilon(0.2));
}

}  // namespace
}  // namespace heddle::engine
