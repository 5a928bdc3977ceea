// Layers of recurrences, texts and their pages, for tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/recurrence.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

// Positions of a page, and pages.
inline constexpr int32_t kStatePage = 32;
inline constexpr int32_t kStatePages = 12;

struct RecurrenceCase {
  RecurrenceShape shape;
  bool skip = false;
  int64_t norm_width = 0;  // 0: no norm
  bool gates_first = false;
  bool gates = true;
};

// Weights and the inputs of a text.
struct RecurrentLayer {
  RecurrentLayer(const RecurrenceCase& c, int64_t rows, uint32_t seed)
      : in(MakeInputs(c, rows, seed)), steps(MakeSteps(c, rows, seed)) {
    Random random(seed + 1);
    const RecurrenceShape& shape = c.shape;
    const bool selects = shape.is_selective();
    conv = random.Normals(shape.taps * shape.channels());
    conv_bias = random.Normals(shape.channels());
    step_bias = random.Normals(shape.n_heads);
    skip = random.Normals(selects ? shape.values() : shape.n_heads);
    norm = random.Normals(std::max<int64_t>(1, shape.values()));
    const int64_t decays =
        selects ? ChannelBlocks(shape.values()) * kChannelBlock * shape.key_dim : shape.n_heads;
    for (int64_t i = 0; i < decays; ++i) decay.push_back(-random.Uniform(0.02f, 2.0f));
  }
  // dt, k and q, which products make of the rows between the two calls of a selective scan.
  static Matrix MakeSteps(const RecurrenceCase& c, int64_t rows, uint32_t seed) {
    Random random(seed + 2);
    return Matrix::RandomOf(random, rows, c.shape.values() + 2 * int64_t{c.shape.key_dim});
  }
  static Matrix MakeInputs(const RecurrenceCase& c, int64_t rows, uint32_t seed) {
    Random random(seed);
    return Matrix::RandomOf(random, rows, c.shape.cols(), /*pad=*/3, /*shift=*/1);
  }
  Matrix in;
  Matrix steps;
  std::vector<float> conv, conv_bias, step_bias, skip, norm, decay;
};

// Pages of snapshots, and a text's place in them.
class SnapshotPages {
 public:
  explicit SnapshotPages(const RecurrenceShape& shape)
      : floats_(RecurrenceState(shape).floats),
        memory_(static_cast<size_t>(kStatePages * (floats_ + 5)), std::nanf("")) {}
  KvCacheView view() {
    return {.keys = memory_.data(),
            .values = memory_.data(),
            .dtype = DType::kF32,
            .num_pages = kStatePages,
            .page_tokens = 1,
            .n_kv_heads = 1,
            .head_dim = static_cast<int32_t>(floats_),
            .page_stride = (floats_ + 5) * static_cast<int64_t>(sizeof(float))};
  }

 private:
  int64_t floats_;
  std::vector<float> memory_;
};

// Rows [begin, begin + n) of a layer's text.
struct Piece {
  RecurrentLayer* layer;
  std::vector<int32_t> pages;  // of the text from its beginning
  int32_t begin;
  int32_t n;
  int32_t dropped = 0;  // pages that the window has passed
};

// The batch of a step, which it keeps.
class StepBatch {
 public:
  explicit StepBatch(const std::vector<Piece>& pieces, int32_t page_tokens = kStatePage) {
    for (const Piece& piece : pieces) {
      const int32_t end = piece.begin + piece.n;
      for (int32_t p = piece.begin; p < end; ++p) {
        tokens_.push_back(0);
        slots_.push_back(int64_t{piece.pages[static_cast<size_t>(p / page_tokens)]} * page_tokens +
                         p % page_tokens);
      }
      for (int32_t p = piece.dropped * page_tokens; p < end; p += page_tokens) {
        span_page_.push_back(piece.pages[static_cast<size_t>(p / page_tokens)]);
        span_tokens_.push_back(std::min(page_tokens, end - p));
      }
      context_.push_back(end - piece.dropped * page_tokens);
      q_begin_.push_back(static_cast<int32_t>(tokens_.size()));
      span_begin_.push_back(static_cast<int32_t>(span_page_.size()));
    }
  }
  HostBatch view() const {
    return {.token_ids = tokens_,
            .positions = tokens_,
            .kv_slot = slots_,
            .q_begin = q_begin_,
            .span_begin = span_begin_,
            .span_page = span_page_,
            .span_tokens = span_tokens_,
            .context_len = context_,
            .logit_rows = {}};
  }
  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  std::vector<int32_t> tokens_, q_begin_ = {0}, span_begin_ = {0}, span_page_, span_tokens_,
                                context_;
  std::vector<int64_t> slots_;
};

// Columns [first, first + cols) of what `rows` has of the pieces' positions.
template <typename Rows>
void FillRows(const std::vector<Piece>& pieces, const Rows& rows, int64_t first, int64_t cols,
              Matrix* to) {
  int64_t t = 0;
  for (const Piece& piece : pieces) {
    for (int32_t i = 0; i < piece.n; ++i, ++t) {
      std::copy_n(rows(*piece.layer)->at(piece.begin + i, first), cols, to->at(t, 0));
    }
  }
}

// The arguments of a layer's recurrence but for its tensors.
inline RecurrenceArgs ArgsOf(const RecurrenceCase& c, const RecurrentLayer& layer,
                             SnapshotPages& pages, int32_t page_tokens = kStatePage) {
  return {.shape = c.shape,
          .conv = layer.conv.data(),
          .conv_bias = layer.conv_bias.data(),
          .decay = layer.decay.data(),
          .step_bias = layer.step_bias.data(),
          .skip = c.skip ? layer.skip.data() : nullptr,
          .norm = c.norm_width > 0 ? layer.norm.data() : nullptr,
          .norm_width = c.norm_width,
          .gates_first = c.gates_first,
          .gates = c.gates,
          .max_step = 1.5f,
          .cache = pages.view(),
          .page_tokens = page_tokens};
}

inline const std::vector<int32_t> kTextPages = {3, 0, 7, 5};

// Runs a text in slices of these lengths, over and over, beside a text of another sequence; checks
// each row against those of the whole text. `run`: a step of pieces in snapshot pages, which gives
// its rows. `takes_back`: slices that can be are partly taken back, as drafts are.
template <typename Run, typename Rows>
void CheckSlices(const Run& run, const RecurrenceCase& c, RecurrentLayer& layer, int32_t tokens,
                 const Rows& expected, const std::vector<int32_t>& lengths, bool takes_back,
                 int32_t page_tokens = kStatePage) {
  SnapshotPages pages(c.shape);
  const std::vector<int32_t> other_pages = {9, 10, 11};
  int32_t other = 0;
  size_t step = 0;
  for (int32_t begin = 0; begin < tokens; ++step) {
    const int32_t n = std::min(lengths[step % lengths.size()], tokens - begin);
    Piece piece{&layer, kTextPages, begin, n};
    piece.dropped = std::max(0, begin - std::max(2, c.shape.taps) + 1) / page_tokens;
    const int32_t others = std::min(3, 2 * page_tokens - other);
    const std::vector<Piece> pieces = {{&layer, other_pages, other, others}, piece};
    const Rows found = run(pieces, pages);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t col = 0; col < c.shape.values(); ++col) {
        wrong += !(found(others + i, col) == expected(begin + i, col));
      }
    }
    REQUIRE(wrong == 0);
    other = other + others == 2 * page_tokens ? 0 : other + others;
    // At least the first row stays where rows can be taken back.
    begin += takes_back && n <= kScanRows ? 1 + static_cast<int32_t>(step % 5) % n : n;
  }
}

}  // namespace heddle::kernels::test
