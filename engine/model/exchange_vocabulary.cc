#include "engine/model/exchange_vocabulary.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/files/quantized/quantized_matrix.h"

namespace heddle::engine {
namespace {

// Rows of a matrix in another order, some of them several times.
class ChosenRows final : public QuantizedMatrix {
 public:
  ChosenRows(const CheckpointTensor& tensor, std::shared_ptr<const std::vector<TokenId>> chosen)
      : tensor_(tensor), chosen_(std::move(chosen)) {
    const kernels::WeightSource source = SourceOf(tensor);
    name = source.name;
    type_name = std::string(tensor.type_name);
    dtype = source.dtype;
    rows = static_cast<int64_t>(chosen_->size());
    cols = source.cols;
    column_order.assign(source.column_order.begin(), source.column_order.end());
    takes_int8_x = source.takes_int8_x;
    code_bytes = tensor.data;
    row_bytes_ = kernels::RowBytes(dtype, cols);
  }

  absl::Status CheckCodes() const override {
    return tensor_.quantized == nullptr ? absl::OkStatus() : tensor_.quantized->CheckCodes();
  }

  void ReadRows(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t i = begin; i < begin + count; ++i, out += row_bytes_) {
      const int64_t row = (*chosen_)[static_cast<size_t>(i)];
      if (tensor_.quantized != nullptr) {
        tensor_.quantized->ReadRows(row, 1, out);
      } else {
        std::memcpy(out, tensor_.data.data() + row * row_bytes_, static_cast<size_t>(row_bytes_));
      }
    }
  }

 private:
  const CheckpointTensor tensor_;
  const std::shared_ptr<const std::vector<TokenId>> chosen_;
  int64_t row_bytes_ = 0;
};

}  // namespace

void ExchangeVocabulary(const std::vector<TokenId>& ids, Checkpoint* checkpoint,
                        ModelDescription* model) {
  const auto chosen = std::make_shared<const std::vector<TokenId>>(ids);
  for (const std::string& name : {model->names.embed, model->names.lm_head}) {
    if (name.empty()) continue;
    const CheckpointTensor* tensor = checkpoint->Find(name);
    HEDDLE_CHECK(tensor != nullptr && tensor->dtype, "a tensor was not validated");
    checkpoint->ReplaceRows(name, std::make_unique<ChosenRows>(*tensor, chosen));
  }
  model->spec.vocab = static_cast<int32_t>(ids.size());
}

}  // namespace heddle::engine
