#include "engine/files/quantized/integer_matrix.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/message.h"
#include "base/status.h"

namespace heddle::engine {

using kernels::DType;

absl::Status IntegerMatrix::Finish(const CheckpointTensor& tensor, std::string_view method,
                                   const TensorSet& set) {
  if (bits_ != 2 && bits_ != 3 && bits_ != 4 && bits_ != 8) {
    return set.Error(tensor,
                     base::StrCat("has codes of ", bits_, " bits; supported are 2, 3, 4 and 8"));
  }
  if (group_ < 1 || cols % group_ != 0 || group_ % 32 != 0) {
    return set.Error(tensor, base::StrCat("has groups of ", group_, " in rows of ", cols,
                                          " columns; supported are groups of whole 32 columns that "
                                          "divide the rows"));
  }
  type_name = base::StrCat(method, " int", bits_);
  if (group_ != cols) type_name += base::StrCat(", groups of ", group_);
  if (!column_order.empty()) type_name += ", act-order";
  const bool wide = group_ % 128 == 0;
  if (bits_ == 8) {
    dtype = wide ? DType::kInt8G128 : DType::kInt8G32;
  } else {
    dtype = wide ? DType::kInt4G128 : group_ % 64 == 0 ? DType::kInt4G64 : DType::kInt4G32;
  }
  return absl::OkStatus();
}

absl::Status IntegerMatrix::SetOrder(const CheckpointTensor& tensor,
                                     std::span<const int32_t> groups, const TensorSet& set) {
  const int64_t n_groups = cols / group_;
  std::vector<int64_t> sizes(static_cast<size_t>(n_groups), 0);
  for (int32_t group : groups) {
    if (group < 0 || group >= n_groups) {
      return set.Error(tensor, base::StrCat("puts a column into group ", group, " of ", n_groups));
    }
    if (++sizes[static_cast<size_t>(group)] > group_) {
      return set.Error(tensor,
                       base::StrCat("puts more than ", group_, " columns into group ", group));
    }
  }
  if (std::is_sorted(groups.begin(), groups.end())) return absl::OkStatus();
  column_order.resize(static_cast<size_t>(cols));
  std::iota(column_order.begin(), column_order.end(), 0);
  std::stable_sort(column_order.begin(), column_order.end(),
                   [&](int32_t a, int32_t b) { return groups[a] < groups[b]; });
  return absl::OkStatus();
}

void IntegerMatrix::ReadRows(int64_t begin, int64_t count, uint8_t* out) const {
  std::vector<uint8_t> unpacked(static_cast<size_t>(count * cols));
  Codes(begin, count, unpacked.data());
  WriteRows(
      unpacked, [begin](int64_t i) { return begin + i; }, out);
}

void IntegerMatrix::PickRows(std::span<const int32_t> picked, uint8_t* out) const {
  std::vector<uint8_t> unpacked(picked.size() * static_cast<size_t>(cols));
  PickCodes(picked, unpacked.data());
  WriteRows(
      unpacked, [picked](int64_t i) { return picked[static_cast<size_t>(i)]; }, out);
}

void IntegerMatrix::PickCodes(std::span<const int32_t> picked, uint8_t* out) const {
  for (size_t i = 0; i < picked.size(); ++i) {
    Codes(picked[i], 1, out + static_cast<int64_t>(i) * cols);
  }
}

template <typename RowAt>
void IntegerMatrix::WriteRows(std::span<const uint8_t> unpacked, const RowAt& row_at,
                              uint8_t* out) const {
  std::vector<uint8_t> ordered(column_order.size());
  const int64_t row_bytes = kernels::RowBytes(dtype, cols);
  const int64_t count = static_cast<int64_t>(unpacked.size()) / cols;
  for (int64_t r = 0; r < count; ++r) {
    const uint8_t* row = unpacked.data() + r * cols;
    for (size_t c = 0; c < ordered.size(); ++c) ordered[c] = row[column_order[c]];
    WriteRow(row_at(r), ordered.empty() ? row : ordered.data(), out + r * row_bytes);
  }
}

void IntegerMatrix::WriteRow(int64_t row, const uint8_t* codes, uint8_t* out) const {
  const kernels::DTypeInfo& info = kernels::Info(dtype);
  for (int64_t k = 0; k < cols; k += info.block_elements, out += info.block_bytes) {
    const float scale = Scale(row, k / group_);
    std::memcpy(out, &scale, 4);
    const int32_t zero = Zero(row, k / group_);
    if (bits_ == 8) {  // signed bytes: code and zero point are both lowered by 128
      out[4] = static_cast<uint8_t>(zero - 128);
      for (int32_t i = 0; i < info.block_elements; ++i) out[5 + i] = codes[k + i] ^ 0x80;
      continue;
    }
    out[4] = static_cast<uint8_t>(zero);
    for (int32_t part = 0; part < info.block_elements; part += 32) {
      const uint8_t* from = codes + k + part;
      uint8_t* to = out + 5 + part / 2;
      for (int32_t i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(from[i] | from[i + 16] << 4);
    }
  }
}

}  // namespace heddle::engine
