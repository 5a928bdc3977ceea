#include "engine/adapter/pack_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/image_writer.h"
#include "kernels/kv_element.h"

namespace heddle::engine {
namespace {

using kernels::DType;

// Rows of a tensor that are turned at a time.
constexpr int64_t kTurnedRows = 64;

// A factor's rows in the image.
struct Blocks {
  std::span<const ImagePlace> places;
  int32_t block_rows = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

class Packer {
 public:
  explicit Packer(const AdapterTarget& target)
      : target_(target), writer_(target.dtype, target.page_bytes) {}

  absl::StatusOr<std::shared_ptr<AdapterImage>> Pack(std::span<const FactorSource> sources) {
    for (size_t i = 0; i < sources.size(); ++i) {
      HEDDLE_RETURN_IF_ERROR(Place(sources, i));
    }
    HEDDLE_RETURN_IF_ERROR(writer_.Allocate(target_.max_bytes));
    for (size_t i = 0; i < sources.size(); ++i) {
      HEDDLE_RETURN_IF_ERROR(Write(sources, i));
    }
    return writer_.Take();
  }

 private:
  // Parts of one module lie in blocks of the same size, so that they can share them.
  static bool SameModule(const FactorSource& a, const FactorSource& b) {
    return a.name == b.name && a.factors.layer == b.factors.layer &&
           a.factors.site == b.factors.site && a.factors.member == b.factors.member;
  }

  static int64_t LongestOf(std::span<const FactorSource> sources, size_t index) {
    int64_t longest = 0;
    for (const FactorSource& source : sources) {
      if (!SameModule(source, sources[index])) continue;
      const int64_t inputs = source.factors.gathers() ? 0 : source.factors.inputs;
      longest = std::max<int64_t>({longest, inputs, source.factors.outputs});
    }
    return longest;
  }

  absl::Status Place(std::span<const FactorSource> sources, size_t index) {
    const FactorSource& source = sources[index];
    ImageFactors made = source.factors;
    if (made.rank > 0) HEDDLE_RETURN_IF_ERROR(PlaceProduct(sources, index, &made));
    if (!source.gain.empty()) {
      HEDDLE_ASSIGN_OR_RETURN(made.gain, writer_.PlaceVector(source.name, made.outputs));
    }
    if (!source.bias.empty()) {
      HEDDLE_ASSIGN_OR_RETURN(made.bias, writer_.PlaceVector(source.name, made.outputs));
    }
    writer_.Add(std::move(made));
    return absl::OkStatus();
  }

  absl::Status PlaceProduct(std::span<const FactorSource> sources, size_t index,
                            ImageFactors* made) {
    const FactorSource& source = sources[index];
    if (index == 0 || !SameModule(sources[index - 1], source)) {
      longest_ = LongestOf(sources.subspan(index, std::min<size_t>(sources.size() - index, 8)), 0);
    }
    HEDDLE_ASSIGN_OR_RETURN(made->block_rows,
                            writer_.BlockRows(source.name, made->rank, longest_, made->rank));
    made->a_block_rows = made->block_rows;
    if (made->gathers()) {
      HEDDLE_ASSIGN_OR_RETURN(made->a_block_rows, writer_.BlockRows(source.name, made->inputs,
                                                                    made->rank, made->inputs));
    }
    if (source.a.tensor != nullptr) {
      made->a = SharedBlocks(sources, index, *made);
      const Blocks a = BlocksOfA(*made);
      if (made->a.empty()) made->a = writer_.PlaceBlocks(a.rows, a.block_rows, a.cols);
    }
    if (source.b.tensor != nullptr) {
      made->b = SharedBlocksOfB(sources, index, *made);
      if (made->b.empty()) {
        made->b = writer_.PlaceBlocks(made->rank, made->block_rows, made->outputs);
      }
    }
    return absl::OkStatus();
  }

  // Those of the source before, if that has the same rows.
  std::vector<ImagePlace> SharedBlocks(std::span<const FactorSource> sources, size_t index,
                                       const ImageFactors& made) const {
    return SharesA(sources, index, made) ? writer_.factors()[index - 1].a
                                         : std::vector<ImagePlace>{};
  }
  std::vector<ImagePlace> SharedBlocksOfB(std::span<const FactorSource> sources, size_t index,
                                          const ImageFactors& made) const {
    return SharesB(sources, index, made) ? writer_.factors()[index - 1].b
                                         : std::vector<ImagePlace>{};
  }
  bool SharesA(std::span<const FactorSource> sources, size_t index,
               const ImageFactors& made) const {
    return index > 0 && sources[index - 1].a == sources[index].a &&
           writer_.factors()[index - 1].block_rows == made.block_rows;
  }
  bool SharesB(std::span<const FactorSource> sources, size_t index,
               const ImageFactors& made) const {
    return index > 0 && sources[index - 1].b == sources[index].b &&
           sources[index].b.tensor != nullptr &&
           writer_.factors()[index - 1].block_rows == made.block_rows;
  }

  static Blocks BlocksOfA(const ImageFactors& made) {
    if (made.gathers()) return {made.a, made.a_block_rows, made.inputs, made.rank};
    return {made.a, made.block_rows, made.rank, made.inputs};
  }

  absl::Status Write(std::span<const FactorSource> sources, size_t index) {
    const FactorSource& source = sources[index];
    const ImageFactors& made = writer_.factors()[index];
    if (made.rank > 0 && source.a.tensor != nullptr && !SharesA(sources, index, made)) {
      HEDDLE_RETURN_IF_ERROR(WriteRows(source.a, BlocksOfA(made)));
    }
    if (made.rank > 0 && source.b.tensor != nullptr && !SharesB(sources, index, made)) {
      HEDDLE_RETURN_IF_ERROR(
          WriteRows(source.b, {made.b, made.block_rows, made.rank, made.outputs}));
    }
    for (const auto& [values, place] :
         {std::pair(&source.gain, made.gain), std::pair(&source.bias, made.bias)}) {
      if (values->empty()) continue;
      for (const float value : *values) {
        if (!std::isfinite(value)) {
          return absl::InvalidArgumentError(base::StrCat(
              "module ", base::Quote(source.name), " has a vector with a NaN or an infinity"));
        }
      }
      std::memcpy(writer_.At(place), values->data(), values->size() * sizeof(float));
    }
    return absl::OkStatus();
  }

  absl::Status WriteRows(const RankRows& from, const Blocks& to) {
    const bool copies = from.tensor->dtype == DType::kBF16 && target_.dtype == DType::kBF16;
    if (!from.turned) return WriteStraight(from, to, copies);
    if (from.step != 1) return WriteStrided(from, to);
    return copies && from.factors.empty() ? TurnHalves(from, to) : Turn(from, to);
  }

  static const std::byte* TensorRow(const AdapterTensor& tensor, int64_t row) {
    return tensor.data.data() + row * kernels::RowBytes(tensor.dtype, tensor.cols);
  }
  std::byte* RowOf(const Blocks& blocks, int64_t j) {
    return writer_.Row(blocks.places, blocks.block_rows, j, blocks.cols);
  }
  static absl::Status NotFinite(const AdapterTensor& tensor) {
    return absl::InvalidArgumentError(
        base::StrCat("tensor ", base::Quote(tensor.name), " holds a NaN or an infinity"));
  }

  std::span<const float> Values(const AdapterTensor& tensor, int64_t row) {
    values_.resize(static_cast<size_t>(tensor.cols));
    kernels::DequantizeRow(tensor.dtype, TensorRow(tensor, row), tensor.cols, values_.data());
    return values_;
  }

  absl::Status WritePicked(const RankRows& from, const Blocks& to) {
    std::vector<float> picked(static_cast<size_t>(to.cols));
    for (int64_t j = 0; j < to.rows; ++j) {
      const std::span<const float> row = Values(*from.tensor, from.first + j);
      for (size_t i = 0; i < picked.size(); ++i) {
        picked[i] = row[static_cast<size_t>(from.columns[i])];
      }
      if (!writer_.Store(picked, RowOf(to, j))) return NotFinite(*from.tensor);
    }
    return absl::OkStatus();
  }

  absl::Status WriteStraight(const RankRows& from, const Blocks& to, bool copies) {
    if (!from.columns.empty()) return WritePicked(from, to);
    for (int64_t j = 0; j < to.rows; ++j) {
      if (copies) {
        std::memcpy(RowOf(to, j),
                    TensorRow(*from.tensor, from.first + j) + writer_.RowBytes(from.first_column),
                    static_cast<size_t>(writer_.RowBytes(to.cols)));
        if (HoldsNonFinite(reinterpret_cast<const uint16_t*>(RowOf(to, j)), to.cols)) {
          return NotFinite(*from.tensor);
        }
        continue;
      }
      const std::span<const float> row =
          Values(*from.tensor, from.first + j)
              .subspan(static_cast<size_t>(from.first_column), static_cast<size_t>(to.cols));
      if (!writer_.Store(row, RowOf(to, j))) return NotFinite(*from.tensor);
    }
    return absl::OkStatus();
  }

  // Turn for values that stay as they are. A tile is turned in the first-level cache: rows of the
  // image often lie a multiple of 4 KiB apart, where it holds few lines at a time.
  absl::Status TurnHalves(const RankRows& from, const Blocks& to) {
    const int64_t row_bytes = kernels::RowBytes(from.tensor->dtype, from.tensor->cols);
    const std::byte* first =
        from.tensor->data.data() + from.row_offset * row_bytes + 2 * from.first;
    halves_.resize(static_cast<size_t>(to.rows * kTurnedRows));
    for (int64_t begin = 0; begin < to.cols; begin += kTurnedRows) {
      const int64_t count = std::min(kTurnedRows, to.cols - begin);
      for (int64_t i = 0; i < count; ++i) {
        const std::byte* row = first + from.rows[static_cast<size_t>(begin + i)] * row_bytes;
        for (int64_t j = 0; j < to.rows; ++j) {
          std::memcpy(&halves_[static_cast<size_t>(j * kTurnedRows + i)], row + 2 * j, 2);
        }
      }
      for (int64_t j = 0; j < to.rows; ++j) {
        const uint16_t* column = halves_.data() + j * kTurnedRows;
        if (HoldsNonFinite(column, count)) return NotFinite(*from.tensor);
        std::memcpy(RowOf(to, j) + writer_.RowBytes(begin), column, static_cast<size_t>(2 * count));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Turn(const RankRows& from, const Blocks& to) {
    columns_.resize(static_cast<size_t>(to.rows * kTurnedRows));
    for (int64_t begin = 0; begin < to.cols; begin += kTurnedRows) {
      const int64_t count = std::min(kTurnedRows, to.cols - begin);
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(begin + i);
        const float factor = from.factors.empty() ? 1.0f : from.factors[at];
        const float* row =
            Values(*from.tensor, from.rows[at] + from.row_offset).data() + from.first;
        for (int64_t j = 0; j < to.rows; ++j) {
          columns_[static_cast<size_t>(j * kTurnedRows + i)] = factor * row[j];
        }
      }
      for (int64_t j = 0; j < to.rows; ++j) {
        const auto column = std::span(columns_).subspan(static_cast<size_t>(j * kTurnedRows),
                                                        static_cast<size_t>(count));
        if (!writer_.Store(column, RowOf(to, j) + writer_.RowBytes(begin))) {
          return NotFinite(*from.tensor);
        }
      }
    }
    return absl::OkStatus();
  }

  // For few columns of long rows: element by element.
  absl::Status WriteStrided(const RankRows& from, const Blocks& to) {
    columns_.resize(static_cast<size_t>(to.cols));
    for (int64_t j = 0; j < to.rows; ++j) {
      for (int64_t i = 0; i < to.cols; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t row = from.rows[at] + from.row_offset;
        const float factor = from.factors.empty() ? 1.0f : from.factors[at];
        columns_[at] =
            factor * kernels::LoadElement(from.tensor->dtype, from.tensor->data.data(),
                                          row * from.tensor->cols + from.first + j * from.step);
      }
      if (!writer_.Store(columns_, RowOf(to, j))) return NotFinite(*from.tensor);
    }
    return absl::OkStatus();
  }

  const AdapterTarget& target_;
  ImageWriter writer_;
  int64_t longest_ = 0;  // row of the module whose parts are placed
  std::vector<float> values_, columns_;
  std::vector<uint16_t> halves_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<AdapterImage>> PackAdapter(std::span<const FactorSource> sources,
                                                          const AdapterTarget& target) {
  return Packer(target).Pack(sources);
}

}  // namespace heddle::engine
