#include "engine/model/head_projections.h"

#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "engine/model/expert_sources.h"
#include "kernels/weight_sources.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

// `count` rows from row `first` of a tensor whose rows are `cols` long.
WeightSource RowsOf(const CheckpointTensor& tensor, int64_t first, int64_t count, int64_t cols) {
  WeightSource whole = SourceOf(tensor);
  HEDDLE_CHECK(whole.cols == cols, "a projection was not validated");
  return kernels::PartOf(whole, first, count);
}

}  // namespace

// Transposes rows [first_row, first_row + nope] of kv_b to [kv_rank, nope]. Block formats cannot be
// transposed as they are: their values become F16, whose 11 bits are more than the blocks had.
void HeadProjections::AddTransposed(const CheckpointTensor& tensor, int64_t first_row) {
  const int64_t rows = mla_.nope_dim;
  const int64_t cols = mla_.kv_rank;
  const bool f32 = *tensor.dtype == DType::kF32;
  const int64_t size = f32 ? 4 : 2;
  const bool bf16 = *tensor.dtype == DType::kBF16;
  std::vector<std::byte> turned(static_cast<size_t>(rows * cols * size));
  std::vector<float> row(static_cast<size_t>(cols));
  std::vector<uint8_t> buffer;
  for (int64_t r = 0; r < rows; ++r) {
    const WeightSource source = RowsOf(tensor, first_row + r, 1, cols);
    kernels::DecodeSourceRow(source, kernels::SourceRows(source, 0, 1, &buffer), row.data());
    for (int64_t c = 0; c < cols; ++c) {
      const float value = row[static_cast<size_t>(c)];
      const uint16_t half = bf16 ? kernels::F32ToBF16(value) : kernels::F32ToF16(value);
      const void* from = f32 ? static_cast<const void*>(&value) : &half;
      std::memcpy(&turned[(c * rows + r) * size], from, static_cast<size_t>(size));
    }
  }
  turned_.push_back(std::move(turned));
  keys_.push_back({.data = turned_.back().data(),
                   .dtype = f32    ? DType::kF32
                            : bf16 ? DType::kBF16
                                   : DType::kF16,
                   .rows = cols,
                   .cols = rows,
                   .name = std::string(tensor.name)});
}

void HeadProjections::Split(const CheckpointTensor& kv_b) {
  const int64_t each = mla_.nope_dim + mla_.v_dim;
  for (int64_t h = 0; h < n_heads_; ++h) {
    AddTransposed(kv_b, h * each);
    values_.push_back(RowsOf(kv_b, h * each + mla_.nope_dim, mla_.v_dim, mla_.kv_rank));
  }
}

absl::Status HeadProjections::Read(const LayerNames& names) {
  if (!names.kv_b.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* kv_b, FindTensor(checkpoint_, names.kv_b));
    Split(*kv_b);
    return absl::OkStatus();
  }
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* k_b, FindTensor(checkpoint_, names.k_b));
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* v_b, FindTensor(checkpoint_, names.v_b));
  for (int64_t h = 0; h < n_heads_; ++h) {
    keys_.push_back(RowsOf(*k_b, h * mla_.kv_rank, mla_.kv_rank, mla_.nope_dim));
    values_.push_back(RowsOf(*v_b, h * mla_.v_dim, mla_.v_dim, mla_.kv_rank));
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
