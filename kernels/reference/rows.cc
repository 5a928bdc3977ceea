// Ops that only look rows up or scale them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {

void Embed(const HostBatch& batch, const Weight& table, float scale, Tensor out) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    int32_t token = batch.token_ids[t];
    HEDDLE_CHECK(token >= 0, "embed: a negative token id");
    if (token >= table.rows) token = 0;
    for (int64_t i = 0; i < table.cols; ++i) out.row<float>(t)[i] = table.row(token)[i] * scale;
  }
}

void AdaptEmbedding(const HostBatch& batch, const AdapterMatrix& adapters, Tensor x) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    const int32_t slot = SlotOf(batch, {}, t);
    if (slot < 0) continue;
    const AdapterFactors& f = adapters.factors[int64_t{slot} * adapters.slot_stride];
    const int64_t token = batch.token_ids[static_cast<size_t>(t)] - adapters.first_token;
    if (token < 0 || token >= adapters.num_tokens) continue;
    float* row = x.row<float>(t);
    std::vector<double> sums(row, row + x.cols);
    for (int64_t i = 0; i < x.cols; ++i) {
      auto& sum = sums[static_cast<size_t>(i)];
      if (f.gain != nullptr) sum += double{f.vector_scale} * f.gain[i] * row[i];
      for (int32_t j = 0; j < f.rank; ++j) {
        if (f.b == nullptr && i != j) continue;
        const double b = f.b == nullptr ? 1.0
                                        : LoadElement(adapters.dtype, f.b[j / f.block_rows],
                                                      int64_t{j % f.block_rows} * x.cols + i);
        sum += f.scale * b *
               LoadElement(adapters.dtype, f.a[token / f.token_rows],
                           token % f.token_rows * f.rank + j);
      }
    }
    for (int64_t i = 0; i < x.cols; ++i) row[i] = static_cast<float>(sums[static_cast<size_t>(i)]);
  }
}

void AddPositions(const HostBatch& batch, const Weight& table, int32_t offset, Tensor x) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    int64_t row = static_cast<int64_t>(batch.positions[t]) + offset;
    HEDDLE_CHECK(row >= 0 && row < table.rows, "add_positions: position outside the table");
    for (int64_t i = 0; i < table.cols; ++i) x.row<float>(t)[i] += table.row(row)[i];
  }
}

// A type that the table lacks counts as 0: models with one type read pairs, too.
void AddTokenTypes(const HostBatch& batch, const Weight& table, Tensor x) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    const int64_t given = batch.token_types.empty() ? 0 : batch.token_types[static_cast<size_t>(t)];
    const int64_t type = given < table.rows ? given : 0;
    for (int64_t i = 0; i < table.cols; ++i) x.row<float>(t)[i] += table.row(type)[i];
  }
}

void AddSegments(const HostBatch& batch, const SegmentArgs& args) {
  for (int64_t t = 0; t < batch.n_tokens(); ++t) {
    const int64_t segment = batch.segments.empty() ? 0 : batch.segments[static_cast<size_t>(t)];
    HEDDLE_CHECK(segment < args.n_segments, "add_segments: a segment outside the table");
    for (int64_t i = 0; i < args.x.cols; ++i) {
      args.x.row<float>(t)[i] += args.table[segment * args.width + i % args.width];
    }
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

void SumRows(const SumRowsArgs& args) {
  const int64_t dim = args.x.cols;
  for (size_t i = 0; i < args.ranges.size(); ++i) {
    for (int64_t c = 0; c < dim; ++c) {
      double sum = 0;
      for (int32_t t = 0; t < args.ranges[i].num_rows; ++t) {
        sum += args.x.row<float>(args.ranges[i].row + t)[c];
      }
      args.out[static_cast<int64_t>(i) * dim + c] = static_cast<float>(sum);
    }
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

void Multiply(Tensor factor, Tensor x) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t c = 0; c < x.cols; ++c) x.row<float>(t)[c] *= factor.row<float>(t)[c];
  }
}

void Sharpen(const HostBatch& batch, const SharpenArgs& args) {
  for (int64_t t = 0; t < args.x.rows; ++t) {
    const double times =
        std::floor((static_cast<double>(batch.positions[t]) + args.offset) / args.length);
    const double factor = 1.0 + args.factor * std::log1p(times);
    for (int64_t c = 0; c < args.x.cols; ++c) {
      float& value = args.x.row<float>(t)[c];
      value = static_cast<float>(value * factor);
    }
  }
}

void Xielu(const XieluArgs& args) {
  for (int64_t t = 0; t < args.x.rows; ++t) {
    for (int64_t c = 0; c < args.x.cols; ++c) {
      float& value = args.x.row<float>(t)[c];
      const double x = value;
      const double bent =
          x > 0 ? double{args.alpha_positive} * x * x
                : args.alpha_negative * (std::expm1(std::min(x, double{args.eps})) - x);
      value = static_cast<float>(bent + args.beta * x);
    }
  }
}

}  // namespace heddle::kernels::reference
