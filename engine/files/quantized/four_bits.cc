// NF4 and FP4 of bitsandbytes: two codes per byte, the first in the high nibble, over the matrix as
// one row of numbers. Each block has its largest magnitude, which may itself be quantised to 8 bits
// with a table, a scale per 256 and an offset ("double quantisation"). Source: Dettmers et al. 2023
// (QLoRA), section 3; the state that bitsandbytes saves beside a weight.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/json_file.h"
#include "engine/files/quantized/quantized_tensors.h"
#include "kernels/block_format.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr int64_t kBlock = 64;  // of kNF4 and kFP4

// A table of sixteen numbers, and how bitsandbytes calls it in the name of a matrix' state.
struct Kind {
  std::string_view name;
  std::string_view suffix;
  kernels::DType dtype;
  std::span<const float, 16> values;
};
constexpr Kind kKinds[] = {
    {"NF4", ".quant_state.bitsandbytes__nf4", kernels::DType::kNF4, kernels::kNf4Values},
    {"FP4", ".quant_state.bitsandbytes__fp4", kernels::DType::kFP4, kernels::kFp4Values}};

class FourBitMatrix final : public QuantizedMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, TensorSet* set) {
    name = tensor.name;
    for (const Kind& kind : kKinds) {
      if (set->Find(name + std::string(kind.suffix)) != nullptr) kind_ = &kind;
    }
    HEDDLE_RETURN_IF_ERROR(ReadState(tensor, set));
    HEDDLE_RETURN_IF_ERROR(CheckTable(tensor, set));
    HEDDLE_RETURN_IF_ERROR(ReadLargest(tensor, set));
    code_bytes = tensor.data;
    dtype = kind_->dtype;
    type_name = base::StrCat(kind_->name, ", blocks of ", block_size_, nested_ ? ", nested" : "");
    return absl::OkStatus();
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t at = begin * cols; at < (begin + count) * cols; at += kBlock, out += 36) {
      const float largest = Largest(at / block_size_);
      std::memcpy(out, &largest, 4);
      const auto* from = reinterpret_cast<const uint8_t*>(code_bytes.data()) + at / 2;
      for (int32_t part = 0; part < 2; ++part, from += 16) {
        for (int32_t i = 0; i < 16; ++i) {
          out[4 + part * 16 + i] =
              static_cast<uint8_t>(NibbleAt(from, i) | NibbleAt(from, i + 16) << 4);
        }
      }
    }
  }

 private:
  static int32_t NibbleAt(const uint8_t* bytes, int32_t i) {
    return i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
  }

  float Largest(int64_t block) const {
    if (!nested_) return largest_[block];
    const auto code = std::to_integer<size_t>(coded_largest_[static_cast<size_t>(block)]);
    return table_[static_cast<int64_t>(code)] * largest_[block / nested_block_size_] + offset_;
  }

  absl::Status ReadState(const CheckpointTensor& tensor, TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* state,
                            set->Need(tensor, name + std::string(kind_->suffix), {"U8"}));
    const std::string_view text(reinterpret_cast<const char*>(state->data.data()),
                                state->data.size());
    HEDDLE_ASSIGN_OR_RETURN(const json fields, ParseJson(text, state->name));
    const json shape = fields.is_object() ? fields.value("shape", json()) : json();
    if (!shape.is_array() || shape.size() != 2 || !shape[0].is_number_integer() ||
        !shape[1].is_number_integer() || !IsSize(fields, "blocksize")) {
      return set->Error(*state, "lacks a \"shape\" of two sizes or a \"blocksize\"");
    }
    rows = shape[0].get<int64_t>();
    cols = shape[1].get<int64_t>();
    block_size_ = fields["blocksize"].get<int64_t>();
    const auto bytes = static_cast<int64_t>(tensor.data.size());
    if (rows < 1 || cols < 1 || rows > bytes * 2 / cols || rows * cols != bytes * 2) {
      return set->Error(
          *state, base::StrCat("says [", rows, ", ", cols, "], but the codes are ", bytes * 2));
    }
    if (cols % kBlock != 0 || block_size_ % kBlock != 0) {
      return set->Error(tensor, base::StrCat("has ", cols, " columns and blocks of ", block_size_,
                                             "; supported are multiples of ", kBlock));
    }
    if (IsSize(fields, "nested_blocksize")) {
      nested_block_size_ = fields["nested_blocksize"].get<int64_t>();
    }
    const json offset = fields.value("nested_offset", json(0.0));
    if (offset.is_number()) offset_ = offset.get<float>();
    return absl::OkStatus();
  }

  static bool IsSize(const json& fields, const char* key) {
    return fields.contains(key) && fields[key].is_number_integer() &&
           fields[key].get<int64_t>() > 0 && fields[key].get<int64_t>() <= 1 << 20;
  }

  absl::Status CheckTable(const CheckpointTensor& tensor, TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* map,
                            set->Need(tensor, name + ".quant_map", {"F32"}));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*map, {16}, "one value per code"));
    const FloatView found(*map);
    for (int64_t code = 0; code < 16; ++code) {  // zeros may have either sign
      if (found[code] == kind_->values[static_cast<size_t>(code)]) continue;
      return set->Error(*map, base::StrCat("is not the table of ", kind_->name));
    }
    return absl::OkStatus();
  }

  absl::Status ReadLargest(const CheckpointTensor& tensor, TensorSet* set) {
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* largest,
                            set->Need(tensor, name + ".absmax", {"F32", "U8"}));
    const int64_t blocks = (rows * cols + block_size_ - 1) / block_size_;
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*largest, {blocks}, "one per block"));
    nested_ = largest->type_name == "U8";
    if (!nested_) {
      largest_ = FloatView(*largest);
      return absl::OkStatus();
    }
    coded_largest_ = largest->data;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* table,
                            set->Need(tensor, name + ".nested_quant_map", {"F32"}));
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*table, {256}, "one value per code"));
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* nested,
                            set->Need(tensor, name + ".nested_absmax", {"F32"}));
    const int64_t nested_blocks = (blocks + nested_block_size_ - 1) / nested_block_size_;
    HEDDLE_RETURN_IF_ERROR(set->ExpectShape(*nested, {nested_blocks}, "one per nested block"));
    table_ = FloatView(*table);
    largest_ = FloatView(*nested);
    return absl::OkStatus();
  }

  const Kind* kind_ = &kKinds[0];
  int64_t block_size_ = kBlock;
  bool nested_ = false;
  FloatView largest_;  // per block, or per nested block
  std::span<const std::byte> coded_largest_;
  FloatView table_;
  int64_t nested_block_size_ = 256;
  float offset_ = 0;
};

}  // namespace

MatrixOr ReadFourBits(const CheckpointTensor& tensor, TensorSet* set) {
  auto matrix = std::make_unique<FourBitMatrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace heddle::engine
