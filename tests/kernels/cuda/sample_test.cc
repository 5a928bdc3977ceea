// Sampling on the emulated CUDA device against the reference, which sorts.
#include <cmath>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/emulate/emulator.h"
#include "tests/kernels/cuda/emulated.h"

namespace heddle::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Drawn {
  std::vector<int32_t> tokens, top_tokens;
  std::vector<float> logprobs, top_logprobs;
};

Drawn Draw(Device& device, Matrix& logits, const std::vector<SampleRowParams>& rows,
           int32_t max_top) {
  Drawn drawn;
  drawn.tokens.assign(rows.size(), -7);
  drawn.logprobs.assign(rows.size(), 7);
  drawn.top_tokens.assign(rows.size() * max_top, -7);
  drawn.top_logprobs.assign(rows.size() * max_top, 7);
  SampleArgs args;
  args.logits = logits.tensor();
  args.rows = rows;
  args.max_top = max_top;
  args.tokens = drawn.tokens.data();
  args.logprobs = drawn.logprobs.data();
  args.top_tokens = drawn.top_tokens.data();
  args.top_logprobs = drawn.top_logprobs.data();
  MustRun(device, [&](Ops& ops) { ops.Sample(args); });
  return drawn;
}

// The two differ in how they round sums of probabilities, by 1e-6 at most; among so many draws none
// happens to fall that close to a boundary. Logprobs are compared where they were asked for.
void Check(Matrix& logits, const std::vector<SampleRowParams>& rows, int32_t max_top,
           int64_t workspace_bytes = int64_t{4} << 20) {
  Drawn expected = Draw(*CreateReferenceDevice(), logits, rows, max_top);
  Drawn found = Draw(*EmulatedDevice(DType::kBF16, workspace_bytes), logits, rows, max_top);
  CHECK(found.tokens == expected.tokens);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].num_top < 0) continue;
    INFO("row " << i);
    auto close = [](float a, float b) { return a == b || std::fabs(a - b) < 1e-4f; };
    CHECK(close(found.logprobs[i], expected.logprobs[i]));
    for (int32_t j = 0; j < rows[i].num_top; ++j) {
      CHECK(found.top_tokens[i * max_top + j] == expected.top_tokens[i * max_top + j]);
      CHECK(close(found.top_logprobs[i * max_top + j], expected.top_logprobs[i * max_top + j]));
    }
  }
}

Matrix RandomLogits(Random& random, int64_t rows, int64_t vocab, int64_t pad = 3) {
  Matrix logits = Matrix::RandomOf(random, rows, vocab, pad);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < vocab; ++i) *logits.at(t, i) *= 3;
  }
  return logits;
}

TEST_CASE("Draws with any filters are those of the reference", "[cuda]") {
  for (int64_t vocab : {1, 2, 31, 512, 1500}) {
    Random random(static_cast<uint32_t>(vocab));
    Matrix logits = RandomLogits(random, 3, vocab);
    std::vector<SampleRowParams> rows;
    for (uint64_t i = 0; i < 60; ++i) {
      SampleRowParams row;
      row.logit_row = random.Below(3);
      row.temperature = i % 5 == 0 ? 0.0f : random.Uniform(0.2f, 2.0f);
      row.xtc_probability = i % 9 > 5 ? random.Uniform(0.3f, 1.0f) : 0.0f;
      row.xtc_threshold = random.Uniform(0.005f, 0.3f);
      row.top_n_sigma = i % 8 == 3 || i % 8 == 6 ? random.Uniform(0.05f, 4.0f) : -1.0f;
      row.top_k = i % 2 == 0 ? 1 + random.Below(50) : 0;
      row.top_p = i % 3 == 0 ? random.Uniform(0.0f, 1.0f) : 1.0f;
      row.min_p = i % 7 == 0 ? random.Uniform(0.0f, 0.5f) : 0.0f;
      row.typical_p = i % 6 == 1 || i % 6 == 4 ? random.Uniform(0.05f, 1.0f) : 1.0f;
      row.seed = 11;
      row.counter = i;
      row.num_top = i % 4 == 0 ? random.Below(6) : -1;
      rows.push_back(row);
    }
    // A workspace of two rows: thirty launches.
    Check(logits, rows, 5, vocab == 512 ? 2 * 512 * 4 : int64_t{4} << 20);
  }
}

// A prompt whose every token is to be reported comes as rows of one step.
TEST_CASE("There is room for the alternatives of 65,536 rows of a step", "[cuda]") {
  constexpr int32_t kRows = 65536, kTop = 20;
  Random random(4);
  Matrix logits = RandomLogits(random, 1, 40);
  std::vector<SampleRowParams> rows(1);
  rows[0].temperature = 0;
  rows[0].num_top = kTop;
  rows[0].forced_token = 3;
  Check(logits, rows, kRows * kTop);  // one row, as wide as all of them
}

TEST_CASE("Ties are cut by id, in the ranking and in the draw", "[cuda]") {
  Random random(2);
  Matrix logits(1, 1000);
  for (int64_t i = 0; i < 1000; ++i) *logits.at(0, i) = static_cast<float>(random.Below(4));
  *logits.at(0, 17) = -0.0f;
  std::vector<SampleRowParams> rows;
  for (uint64_t i = 0; i < 60; ++i) {
    SampleRowParams row;
    row.xtc_probability = i % 7 > 4 ? random.Uniform(0.3f, 1.0f) : 0.0f;
    row.xtc_threshold = random.Uniform(0.0005f, 0.01f);
    row.top_n_sigma = i % 5 == 1 ? random.Uniform(0.05f, 4.0f) : -1.0f;
    row.top_k = i % 3 == 0 ? 0 : 1 + random.Below(999);
    row.top_p = i % 3 == 1 ? 1.0f : random.Uniform(0.01f, 0.99f);
    row.typical_p = i % 4 == 2 ? random.Uniform(0.05f, 0.99f) : 1.0f;
    row.seed = i;
    row.num_top = 5;
    rows.push_back(row);
  }
  Check(logits, rows, 5);
}

TEST_CASE("Edits and masks apply before the draw and not to the logprobs", "[cuda]") {
  Random random(6);
  Matrix logits = RandomLogits(random, 2, 100);
  std::vector<LogitEdit> edits = {
      {3, 1.5f, 2.0f}, {40, 1.0f, -kInf}, {99, 2.0f, 9.0f}, {7, 3.0f, 0.5f, -2.0f}};
  std::vector<uint32_t> mask = {0xF0F0F0F0u, 0x12345678u, 0u, 0xFu};
  std::vector<uint32_t> nothing(4, 0);
  std::vector<SampleRowParams> rows(12);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logit_row = static_cast<int32_t>(i % 2);
    rows[i].counter = i;
    rows[i].temperature = i < 6 ? 0.0f : 1.0f;
    if (i % 3 != 0) rows[i].edits = edits;
    if (i % 3 != 1) rows[i].allowed = mask.data();
    rows[i].num_top = 3;
  }
  rows[4].allowed = nothing.data();  // nothing can be drawn
  rows[5].forced_token = 40;
  Check(logits, rows, 3);
}

TEST_CASE("Infinities and NaN do not disturb the draw", "[cuda]") {
  Random random(9);
  Matrix logits = RandomLogits(random, 3, 64);
  for (int64_t i = 0; i < 64; i += 3) *logits.at(0, i) = std::nanf("");
  for (int64_t i = 0; i < 64; i += 2) *logits.at(1, i) = -kInf;
  *logits.at(1, 5) = kInf;
  for (int64_t i = 0; i < 64; ++i) *logits.at(2, i) = -kInf;
  std::vector<SampleRowParams> rows(9);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logit_row = static_cast<int32_t>(i % 3);
    rows[i].counter = i;
    rows[i].temperature = i < 3 ? 0.0f : 1.0f;
    rows[i].top_k = i < 6 ? 0 : 5;
    rows[i].top_p = i < 6 ? 1.0f : 0.7f;
    rows[i].num_top = i == 1 || i == 2 ? -1 : 2;
  }
  Check(logits, rows, 2);
}

// The emulated device has 6 multiprocessors: up to six rows of so many tokens have several blocks.
constexpr int64_t kLargeVocab = 20011;

std::vector<SampleRowParams> MixedRows(Random& random, size_t count, int32_t n_logit_rows) {
  std::vector<SampleRowParams> rows(count);
  for (size_t i = 0; i < count; ++i) {
    SampleRowParams& row = rows[i];
    row.logit_row = random.Below(n_logit_rows);
    row.temperature = i % 5 == 0 ? 0.0f : i % 5 == 1 ? 1.0f : random.Uniform(0.3f, 1.5f);
    row.top_k = i % 4 == 1 ? 1 + random.Below(60) : i % 8 == 6 ? 1 + random.Below(9000) : 0;
    row.top_p = i % 3 == 1 ? random.Uniform(0.05f, 0.99f) : 1.0f;
    row.min_p = i % 7 == 3 ? random.Uniform(0.0f, 0.2f) : 0.0f;
    row.typical_p = i % 11 == 8 ? random.Uniform(0.2f, 0.95f) : 1.0f;
    row.seed = 5;
    row.counter = i;
    row.num_top = i % 3 == 0 ? random.Below(8) : -1;
  }
  return rows;
}

TEST_CASE("Rows that several blocks share are drawn as the reference does", "[cuda]") {
  // Rows at 16-byte boundaries and others; whole pieces and a part at the end.
  for (int64_t vocab : {kLargeVocab, int64_t{16384}, int64_t{8704}}) {
    Random random(static_cast<uint32_t>(vocab));
    Matrix logits = RandomLogits(random, 2, vocab, /*pad=*/vocab % 2 == 0 ? 4 : 2);
    for (const SampleRowParams& row : MixedRows(random, 24, 2)) Check(logits, {row}, 8);
  }
}

TEST_CASE("Filters that keep more tokens than are listed narrow them first", "[cuda]") {
  Random random(31);
  Matrix logits(2, kLargeVocab);
  for (int64_t i = 0; i < kLargeVocab; ++i) {
    *logits.at(0, i) = random.Uniform(0.0f, 1.0f);           // 4096 tokens in no time
    *logits.at(1, i) = static_cast<float>(random.Below(3));  // thousands of ties
  }
  std::vector<SampleRowParams> rows(24);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logit_row = static_cast<int32_t>(i % 2);
    rows[i].counter = i;
    rows[i].top_k = i % 3 == 0 ? 0 : 5000 + random.Below(15000);
    rows[i].top_p = i % 3 == 1 ? 1.0f : random.Uniform(0.3f, 0.99f);
    rows[i].typical_p = i % 6 == 5 ? 0.7f : 1.0f;
  }
  Check(logits, rows, 0);
}

TEST_CASE("Top-p next to 1 keeps all that has a weight", "[cuda]") {
  Random random(8);
  Matrix logits = RandomLogits(random, 1, 3000);
  *logits.at(0, 11) = 80.0f;  // others far below it: their sum is rounding of its mass
  std::vector<SampleRowParams> rows(12);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].counter = i;
    rows[i].temperature = i % 2 == 0 ? 30.0f : 1.0f;
    rows[i].top_p = std::nextafter(1.0f, 0.0f);
    rows[i].top_k = i % 3 == 0 ? 2500 : 0;
  }
  Check(logits, rows, 0);
}

TEST_CASE("Masks and edits reach every piece of a row", "[cuda]") {
  Random random(14);
  Matrix logits = RandomLogits(random, 1, kLargeVocab, 1);
  std::vector<uint32_t> mask((kLargeVocab + 31) / 32);
  for (uint32_t& word : mask) word = random.Below(4) == 0 ? 0x80402010u : 0u;
  std::vector<LogitEdit> edits;
  edits.reserve(300);
  for (int32_t i = 0; i < 300; ++i) {
    edits.push_back({i * 66 + random.Below(60), 1.3f, random.Uniform(-1.0f, 9.0f)});
  }
  std::vector<SampleRowParams> rows(12);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].counter = i;
    rows[i].temperature = i % 4 == 0 ? 0.0f : 1.0f;
    rows[i].top_p = i % 4 == 1 ? 0.8f : 1.0f;
    rows[i].num_top = i % 2 == 0 ? 3 : -1;
    if (i % 3 != 0) rows[i].edits = edits;
    if (i % 3 != 1) rows[i].allowed = mask.data();
    Check(logits, {rows[i]}, 3);
  }
  Check(logits, rows, 3, /*workspace_bytes=*/3 * kLargeVocab * 4);
}

TEST_CASE("A row draws the same alone, in several blocks, and in a batch, in one", "[cuda]") {
  Random random(77);
  Matrix logits = RandomLogits(random, 4, kLargeVocab);
  const std::vector<SampleRowParams> rows = MixedRows(random, 40, 4);
  auto device = EmulatedDevice(DType::kBF16);
  const Drawn all = Draw(*device, logits, rows, 8);
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i);
    const Drawn alone = Draw(*device, logits, {rows[i]}, 8);
    CHECK(alone.tokens[0] == all.tokens[i]);
    if (rows[i].num_top >= 0) CHECK(alone.logprobs[0] == all.logprobs[i]);  // to the bit
    for (int32_t j = 0; j < rows[i].num_top; ++j) {
      CHECK(alone.top_logprobs[j] == all.top_logprobs[i * 8 + j]);
    }
  }
}

TEST_CASE("The order of threads changes no token", "[cuda]") {
  Random random(12);
  Matrix logits = RandomLogits(random, 1, 3000);
  std::vector<SampleRowParams> rows(20);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].counter = i;
    rows[i].top_p = 0.9f;
  }
  auto device = EmulatedDevice(DType::kBF16);
  Drawn forward = Draw(*device, logits, rows, 0);
  cuda::emulate::SetOrder(cuda::emulate::Order::kBackward);
  Drawn backward = Draw(*device, logits, rows, 0);
  cuda::emulate::SetOrder(cuda::emulate::Order::kForward);
  CHECK(forward.tokens == backward.tokens);
}

}  // namespace
}  // namespace heddle::kernels::test
