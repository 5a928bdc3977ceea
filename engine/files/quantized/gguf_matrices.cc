#include <utility>

#include "base/status.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {

absl::Status GroupGgufMatrices(const TensorSet::FileOf& file_of,
                               std::vector<CheckpointTensor>* tensors,
                               std::vector<std::unique_ptr<QuantizedMatrix>>* matrices) {
  TensorSet set(*tensors, file_of);
  std::vector<CheckpointTensor> kept = *tensors;
  for (CheckpointTensor& tensor : kept) {
    if (tensor.shape.empty() || NumElements(tensor) < 1) continue;
    std::unique_ptr<QuantizedMatrix> matrix = ReadGgufCodes(tensor);
    const bool has_companion = tensor.shape.size() >= 2 && tensor.name.ends_with(".weight");
    if (tensor.type_name == "NVFP4" && has_companion) {
      HEDDLE_ASSIGN_OR_RETURN(matrix, ReadGgufNvfp4(tensor, &set));
    }
    if (matrix == nullptr) continue;
    tensor.dtype = matrix->dtype;
    tensor.quantized = matrix.get();
    matrices->push_back(std::move(matrix));
  }
  std::erase_if(kept, [&](const CheckpointTensor& tensor) { return set.IsUsed(tensor.name); });
  *tensors = std::move(kept);
  return absl::OkStatus();
}

}  // namespace heddle::engine
