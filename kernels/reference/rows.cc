// Ops that only look rows up or scale them.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {

void Embed(const HostBatch& batch, const Weight& table, float scale, Tensor out) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    int32_t token = batch.token_ids[t];
    HEDDLE_CHECK(token >= 0 && token < table.rows, "embed: token id outside the table");
    for (int64_t i = 0; i < table.cols; ++i) out.row<float>(t)[i] = table.row(token)[i] * scale;
  }
}

void AddPositions(const HostBatch& batch, const Weight& table, int32_t offset, Tensor x) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    int64_t row = static_cast<int64_t>(batch.positions[t]) + offset;
    HEDDLE_CHECK(row >= 0 && row < table.rows, "add_positions: position outside the table");
    for (int64_t i = 0; i < table.cols; ++i) x.row<float>(t)[i] += table.row(row)[i];
  }
}

void GatherLogitRows(const HostBatch& batch, Tensor x, Tensor out) {
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const float* from = x.row<float>(batch.logit_rows[i]);
    std::copy(from, from + x.cols, out.row<float>(static_cast<int64_t>(i)));
  }
}

void CopyRows(Tensor x, Tensor out) {
  for (int64_t t = 0; t < x.rows; ++t) {
    std::copy_n(x.row<float>(t), x.cols, out.row<float>(t));
  }
}

void ScaleLogits(Tensor logits, float scale, float softcap) {
  for (int64_t t = 0; t < logits.rows; ++t) {
    float* row = logits.row<float>(t);
    for (int64_t i = 0; i < logits.cols; ++i) {
      double value = static_cast<double>(row[i]) * scale;
      if (softcap > 0) value = softcap * std::tanh(value / softcap);
      row[i] = static_cast<float>(value);
    }
  }
}

}  // namespace heddle::kernels::reference
