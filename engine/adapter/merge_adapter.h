// Merges an adapter into its base's weights, tensor by tensor, while the model is loaded: it then
// has the adapter for good, and runs at the speed of its base.
//
// The same files as LoadAdapter's, the same checks, the same sums: a merged tensor has row r
//   (1 + gain[r]) * W[r] + scale * B[r] A,  and of a vector or a bias  v[r] + difference[r].
// Thread-safety: immutable once loaded; Apply may be called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/build_factors.h"
#include "engine/adapter/load_adapter.h"

namespace heddle::engine {

class AdapterMerge {
 public:
  // `base`: of the files whose tensors are merged; the adapter's ranks may be up to
  // kernels::kMaxAdapterRank. Errors as LoadAdapter's, and INVALID_ARGUMENT for changes that cannot
  // be merged: of an embedding or a head that are one matrix, of a bias that the base lacks, of
  // experts that the base stores transposed or in blocks of 4 bits.
  static absl::StatusOr<std::unique_ptr<AdapterMerge>> Load(const std::filesystem::path& path,
                                                            const ModelDescription& model,
                                                            const std::filesystem::path& base);

  // The base's tensors that it changes.
  std::vector<std::string> tensors() const;

  // Turns row `row` of the tensor (a vector has one) into that of the merged tensor. REQUIRES: it
  // is one of tensors(), and values are the row's.
  void Apply(const std::string& tensor, int64_t row, std::span<float> values) const;

 private:
  // Factors in F32 of one entry of an image.
  struct Change {
    bool is_token_row = false;  // the row is a token of an embedding
    bool is_turned = false;     // the row is an input of the decoder's matrix: keys' heads
    float scale = 1.0f;
    int64_t rank = 0;
    std::vector<float> rows;        // [matrix rows, rank] of the factor that the row belongs to;
                                    // of whole matrices [matrix rows, cols], with a rank of 0
    std::vector<float> directions;  // [rank, cols]
    std::vector<float> gain;        // [matrix rows], of an embedding [cols]
  };
  struct RowChange {
    const Change* change = nullptr;
    int64_t index = 0;  // of the row in the change
  };
  struct TensorChange {
    std::map<int64_t, RowChange> rows;
    const Change* all_rows = nullptr;  // of an embedding
    std::vector<float> added;          // of a vector
  };

  AdapterMerge() = default;
  absl::Status Add(const FactorSource& source, const ModelDescription& model,
                   const AdapterPlaces& places);
  absl::Status AddProduct(const FactorSource& source, const ModelDescription& model,
                          const BasePart& part);
  absl::Status AddVector(const std::string& tensor, std::span<const float> values,
                         std::span<const int32_t> rows);
  // Rows [rows, cols] of a factor.
  std::vector<float> RowsOf(const RankRows& from, int64_t rows, int64_t cols);

  std::map<std::string, TensorChange> tensors_;
  std::vector<std::unique_ptr<Change>> changes_;
  std::map<const AdapterTensor*, std::vector<float>> decoded_;  // of one module, while loading
};

}  // namespace heddle::engine
