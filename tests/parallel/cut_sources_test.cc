// Parts of matrices decode to the same numbers as the same places of the whole.
#include "engine/parallel/cut_sources.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/dtype.h"
#include "kernels/row_picker.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

// A matrix of random bytes, which every block format decodes to something.
struct Stored {
  std::vector<uint8_t> bytes;
  WeightSource source;

  Stored(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
    std::mt19937_64 random(seed);
    bytes.resize(static_cast<size_t>(rows * kernels::RowBytes(dtype, cols)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    source = {.data = bytes.data(), .dtype = dtype, .rows = rows, .cols = cols, .name = "w"};
  }
};

std::vector<std::vector<float>> Decoded(const WeightSource& source) {
  std::vector<std::vector<float>> rows;
  std::vector<uint8_t> buffer;
  for (int64_t r = 0; r < source.rows; ++r) {
    rows.emplace_back(static_cast<size_t>(source.cols));
    kernels::DecodeSourceRow(source, kernels::SourceRows(source, r, 1, &buffer),
                             rows.back().data());
  }
  return rows;
}

bool SameBits(const std::vector<float>& a, const float* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(float)) == 0;
}

TEST_CASE("Columns of every format are cut at borders of blocks", "[unit]") {
  for (int32_t type = 0; type < kernels::kNumDTypes; ++type) {
    const auto dtype = static_cast<DType>(type);
    const int64_t block = kernels::Info(dtype).block_elements;
    const Stored stored(dtype, 3, 4 * block, 7);
    const std::vector<std::vector<float>> whole = Decoded(stored.source);
    for (const Range columns :
         {Range{0, block}, Range{block, 2 * block}, Range{3 * block, block}}) {
      INFO(std::string(kernels::Info(dtype).name) << " from " << columns.first);
      const CutSources cut({&stored.source, 1}, CutColumns(columns));
      REQUIRE(cut.sources().size() == 1);
      const std::vector<std::vector<float>> part = Decoded(cut.sources()[0]);
      for (size_t r = 0; r < part.size(); ++r) {
        CHECK(SameBits(part[r], whole[r].data() + columns.first));
      }
    }
  }
}

TEST_CASE("Rows of stacked matrices are cut wherever they lie", "[unit]") {
  const Stored first(DType::kF32, 5, 4, 1);
  const Stored second(DType::kQ8_0, 3, 32, 2);
  const Stored third(DType::kF32, 4, 4, 3);
  const WeightSource stack[] = {first.source, third.source};
  const CutSources cut(stack, CutRows({{3, 4}, {0, 1}, {8, 1}}));
  std::vector<std::vector<float>> kept;
  for (const WeightSource& part : cut.sources()) {
    for (std::vector<float>& row : Decoded(part)) kept.push_back(std::move(row));
  }
  std::vector<std::vector<float>> all = Decoded(first.source);
  for (std::vector<float>& row : Decoded(third.source)) all.push_back(std::move(row));
  const size_t expected[] = {3, 4, 5, 6, 0, 8};
  REQUIRE(kept.size() == 6);
  for (size_t i = 0; i < 6; ++i) CHECK(SameBits(kept[i], all[expected[i]].data()));
  const CutSources whole({&second.source, 1}, {});
  CHECK(whole.sources()[0].data == second.source.data);
}

TEST_CASE("Rows that a reader makes are cut too", "[unit]") {
  const Stored stored(DType::kQ4_0, 6, 128, 4);
  const CutSources columns({&stored.source, 1}, CutColumns({32, 64}));
  const CutSources both(columns.sources(), CutRows({{2, 3}}));
  REQUIRE(both.sources()[0].data == nullptr);
  const std::vector<std::vector<float>> whole = Decoded(stored.source);
  const std::vector<std::vector<float>> part = Decoded(both.sources()[0]);
  for (size_t r = 0; r < 3; ++r) CHECK(SameBits(part[r], whole[r + 2].data() + 32));
}

TEST_CASE("Input features in an order of their own are cut by feature", "[unit]") {
  Stored stored(DType::kInt4G32, 4, 96, 5);
  for (size_t i = 0; i + 21 <= stored.bytes.size(); i += 21) {  // scale, zero point, 16 of codes
    const float scale = 0.25f + 0.001f * static_cast<float>(i);
    std::memcpy(&stored.bytes[i], &scale, sizeof(scale));
    stored.bytes[i + 4] = 8;
  }
  std::vector<int32_t> order(96);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(6));
  stored.source.column_order = order;
  const std::vector<std::vector<float>> whole = Decoded(stored.source);
  for (const Range features : {Range{0, 17}, Range{17, 50}, Range{67, 29}}) {
    const CutSources cut({&stored.source, 1}, CutColumns(features));
    const WeightSource& part = cut.sources()[0];
    CHECK(part.dtype == DType::kF16);
    CHECK(part.column_order.empty());
    const std::vector<std::vector<float>> rows = Decoded(part);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t c = 0; c < features.count; ++c) {
        // F16 keeps 11 bits.
        const float value = whole[r][static_cast<size_t>(features.first + c)];
        CHECK(rows[r][static_cast<size_t>(c)] == Approx(value).epsilon(1.0 / 2048).margin(1e-6));
      }
    }
  }
}

// A layer of 96 features in another order, and what a rank has of them.
struct Ordered {
  LayerShare share;

  explicit Ordered(Range inner) {
    std::vector<int32_t> order(96);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(8));
    share.inner = inner;
    share.inner_order = std::make_shared<const std::vector<int32_t>>(std::move(order));
  }
  int32_t Feature(int64_t place) const {
    return (*share.inner_order)[static_cast<size_t>(share.inner.first + place)];
  }
};

TEST_CASE("Features in a stored order stay in whole blocks", "[unit]") {
  for (const Range inner : {Range{0, 64}, Range{64, 32}, Range{0, 96}}) {
    const Ordered layer(inner);
    Stored stored(DType::kInt4G32, 4, 96, 5);
    stored.source.column_order = *layer.share.inner_order;
    const std::vector<std::vector<float>> whole = Decoded(stored.source);
    const CutSources cut({&stored.source, 1}, CutInner(layer.share));
    REQUIRE(cut.sources().size() == 1);
    const WeightSource& part = cut.sources()[0];
    CHECK(part.dtype == DType::kInt4G32);
    CHECK(part.column_order.empty());
    CHECK(part.cols == inner.count);
    const std::vector<std::vector<float>> kept = Decoded(part);
    for (size_t r = 0; r < kept.size(); ++r) {
      for (int64_t c = 0; c < inner.count; ++c) {
        const float expected = whole[r][static_cast<size_t>(layer.Feature(c))];
        CHECK(std::memcmp(&kept[r][static_cast<size_t>(c)], &expected, sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("Rows of stacked matrices are kept in the order of features", "[unit]") {
  const Ordered layer({60, 20});
  const Stored both(DType::kF32, 192, 4, 1), gate(DType::kF32, 96, 4, 2),
      up(DType::kQ4_0, 96, 32, 3);
  const WeightSource one[] = {both.source};
  const WeightSource two[] = {gate.source, up.source};
  const Cut cut = CutRows({{60, 20}, {96 + 60, 20}}, layer.share);
  const CutSources of_one(one, cut), of_two(two, cut);
  REQUIRE(of_one.sources().size() == 2);
  REQUIRE(of_two.sources().size() == 2);
  for (size_t matrix = 0; matrix < 2; ++matrix) {
    const std::vector<std::vector<float>> whole = Decoded(both.source);
    const std::vector<std::vector<float>> apart = Decoded(two[matrix]);
    const std::vector<std::vector<float>> kept = Decoded(of_one.sources()[matrix]);
    const std::vector<std::vector<float>> others = Decoded(of_two.sources()[matrix]);
    REQUIRE(kept.size() == 20);
    REQUIRE(others.size() == 20);
    for (size_t i = 0; i < 20; ++i) {
      const auto feature = static_cast<size_t>(layer.Feature(static_cast<int64_t>(i)));
      CHECK(SameBits(kept[i], whole[96 * matrix + feature].data()));
      CHECK(SameBits(others[i], apart[feature].data()));
    }
  }
  std::vector<float> values(192);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::vector<float> kept = CutValues(values, cut);
  REQUIRE(kept.size() == 40);
  CHECK(kept[3] == static_cast<float>(layer.Feature(3)));
  CHECK(kept[23] == static_cast<float>(96 + layer.Feature(3)));
}

// Rows of one F32, which count how often they were read.
class CountingReader final : public kernels::RowReader, public kernels::RowPicker {
 public:
  explicit CountingReader(int64_t rows) : reads(static_cast<size_t>(rows)) {}
  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t i = 0; i < count; ++i) Read(begin + i, out + 4 * i);
  }
  void PickRows(std::span<const int32_t> rows, uint8_t* out) const override {
    CHECK(std::is_sorted(rows.begin(), rows.end()));
    for (size_t i = 0; i < rows.size(); ++i) Read(rows[i], out + 4 * i);
  }
  mutable std::vector<int32_t> reads;

 private:
  void Read(int64_t row, uint8_t* out) const {
    ++reads[static_cast<size_t>(row)];
    const auto value = static_cast<float>(row);
    std::memcpy(out, &value, sizeof(value));
  }
};

TEST_CASE("Ranks together read the rows of features in another order once", "[unit]") {
  constexpr int64_t kRows = 300;  // more than a block
  std::vector<int32_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(9));
  LayerShare share;
  share.inner_order = std::make_shared<const std::vector<int32_t>>(order);
  const CountingReader reader(2 * kRows);
  const WeightSource source = {.rows = kRows, .cols = 1, .reader = &reader, .first_row = kRows};
  for (const Range inner : {Range{0, 100}, Range{100, 0}, Range{100, 200}}) {
    const CutSources cut({&source, 1}, CutRows({inner}, share));
    REQUIRE(cut.sources().size() == (inner.count > 0 ? 1 : 0));
    if (inner.count == 0) continue;
    std::vector<float> kept(static_cast<size_t>(inner.count));
    for (int64_t i = 0; i < inner.count; i += 10) {  // as a device that packs some at a time
      cut.sources()[0].reader->ReadRows(i, 10, reinterpret_cast<uint8_t*>(&kept[i]));
    }
    for (int64_t i = 0; i < inner.count; ++i) {
      CHECK(kept[i] == static_cast<float>(kRows + order[inner.first + i]));
    }
  }
  for (int64_t row = 0; row < 2 * kRows; ++row) CHECK(reader.reads[row] == (row < kRows ? 0 : 1));
}

TEST_CASE("A cut that keeps nothing has no sources", "[unit]") {
  const Stored stored(DType::kF32, 4, 4, 1);
  CHECK(CutSources({&stored.source, 1}, CutRows({{2, 0}})).sources().empty());
  CHECK(CutSources({&stored.source, 1}, CutColumns({0, 0})).sources().empty());
}

TEST_CASE("Values are cut like the rows that they belong to", "[unit]") {
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  CHECK(CutValues(values, CutRows({{4, 2}, {1, 1}})) == std::vector<float>{4, 5, 1});
  CHECK(CutValues(values, CutColumns({0, 1})) == values);
  CHECK(CutValues({}, CutRows({{4, 2}})).empty());
}

}  // namespace
}  // namespace heddle::engine
