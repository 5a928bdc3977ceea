// Reads the base's own weights for adapters that are said relative to them: DoRA, which divides by
// the norms of adapted rows, and vectors or matrices in place of the base's. Private to
// engine/adapter.
//
// The checkpoint is opened when it is first needed, and mapped while this lives. Thread-safety:
// none; each load has its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_places.h"
#include "engine/files/checkpoint.h"

namespace heddle::engine {

class BaseWeights {
 public:
  // An empty path: there are no files, and every read fails.
  BaseWeights(std::filesystem::path path, const ModelDescription& model)
      : path_(std::move(path)), model_(model), places_(model) {}

  // One part of one matrix.
  struct Part {
    int32_t layer = 0;
    AdapterSite site = AdapterSite::kQkv;
    int32_t member = 0;
    int32_t part = 0;
  };
  using RowFn = std::function<void(int64_t row, std::span<const float> values)>;
  // Calls `fn` for each row of the part in the decoder's order, and for each token of an embedding.
  absl::Status ReadRows(const Part& part, const RowFn& fn);
  // The part's bias, or a norm's vector and bias; zeros where the base has none.
  absl::StatusOr<std::vector<float>> ReadBias(const Part& part, int64_t outputs);
  absl::StatusOr<std::vector<float>> ReadNorm(const Part& part);

 private:
  absl::StatusOr<const CheckpointTensor*> FindIn(const std::string& name);
  absl::Status ReadTransposed(const CheckpointTensor& tensor, std::span<const int32_t> rows,
                              const RowFn& fn) const;

  const std::filesystem::path path_;
  const ModelDescription& model_;
  const AdapterPlaces places_;
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace heddle::engine
