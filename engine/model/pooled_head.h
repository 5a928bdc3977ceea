// Computes embeddings and scores from pooled hidden states: the layers of a PooledOutput, which are
// small and run once for each text, so on the caller's thread in F32, whatever the device is.
//
// Bits depend on the state alone. Thread-safety: immutable after loading.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/pooled_output.h"

namespace heddle::engine {

class PooledHead {
 public:
  // A layer's weights in F32.
  struct Layer {
    HeadLayer shape;
    std::vector<float> weight;  // [out, in], of a norm [in]
    std::vector<float> bias;    // [out] or empty
  };

  // `hidden`: width of pooled states.
  PooledHead(PooledOutput output, std::vector<Layer> layers, int32_t hidden)
      : output_(std::move(output)), layers_(std::move(layers)), hidden_(hidden) {}

  // Reads the weights. REQUIRES: model.pooled. NOT_FOUND or INVALID_ARGUMENT for a module whose
  // tensors are missing or have another shape.
  static absl::StatusOr<std::shared_ptr<const PooledHead>> Load(const Checkpoint& checkpoint,
                                                                const ModelDescription& model);

  // Applies the layers to a pooled state [hidden]: an embedding before it is scaled, or logits.
  std::vector<float> Apply(std::vector<float> state) const;
  // Scores of classes from their logits.
  void Score(std::vector<float>* logits) const;

  const PooledOutput& output() const { return output_; }
  // Numbers that Apply returns.
  int32_t size() const { return layers_.empty() ? hidden_ : layers_.back().shape.out; }

 private:
  PooledOutput output_;
  std::vector<Layer> layers_;
  int32_t hidden_;
};

}  // namespace heddle::engine
