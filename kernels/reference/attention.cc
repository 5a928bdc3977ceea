#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

// The slots of a sequence's context in order.
std::vector<int64_t> ContextSlots(const HostBatch& batch, int32_t s, int32_t page_tokens) {
  std::vector<int64_t> slots;
  for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
    for (int32_t j = 0; j < batch.span_tokens[i]; ++j) {
      slots.push_back(static_cast<int64_t>(batch.span_page[i]) * page_tokens + j);
    }
  }
  return slots;
}

double Score(const AttentionArgs& args, const float* q, const float* key) {
  double dot = 0;
  for (int32_t i = 0; i < args.cache.head_dim; ++i) {
    dot += static_cast<double>(q[i]) * key[i];
  }
  double score = dot * args.scale;
  return args.softcap > 0 ? args.softcap * std::tanh(score / args.softcap) : score;
}

// Computes one head of one row over `slots`.
void AttendHead(const AttentionArgs& args, std::span<const int64_t> slots, int64_t t, int32_t h) {
  const KvCacheView& cache = args.cache;
  int32_t kv_head = h / (args.n_heads / cache.n_kv_heads);
  const float* q = args.q.row<float>(t) + static_cast<int64_t>(h) * cache.head_dim;
  float* out = args.out.row<float>(t) + static_cast<int64_t>(h) * cache.head_dim;
  double sink = args.sinks ? args.sinks[h] : -std::numeric_limits<double>::infinity();
  double max = sink;
  std::vector<double> scores;
  std::vector<float> row(static_cast<size_t>(cache.head_dim));
  for (int64_t slot : slots) {
    LoadKvRow(cache, cache.keys, slot, kv_head, row.data());
    scores.push_back(Score(args, q, row.data()));
    max = std::max(max, scores.back());
  }
  double sum = std::exp(sink - max);
  std::vector<double> sums(cache.head_dim, 0.0);
  for (size_t j = 0; j < slots.size(); ++j) {
    double weight = std::exp(scores[j] - max);
    sum += weight;
    LoadKvRow(cache, cache.values, slots[j], kv_head, row.data());
    for (int32_t i = 0; i < cache.head_dim; ++i) sums[i] += weight * row[i];
  }
  for (int32_t i = 0; i < cache.head_dim; ++i) out[i] = static_cast<float>(sums[i] / sum);
  if (args.lse) args.lse[t * args.n_heads + h] = static_cast<float>(max + std::log(sum));
}

// The slots of sequence s that its row i sees.
std::vector<int64_t> VisibleSlots(const HostBatch& batch, const AttentionArgs& args, int32_t s,
                                  int32_t i, const std::vector<int64_t>& slots) {
  const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
  const int32_t before = batch.context_len[s] - rows;
  if (args.both_ways) {
    const int32_t at = before + i;
    const int32_t reach = args.window > 0 ? args.window : batch.context_len[s];
    const auto begin = slots.begin() + std::max(0, at + 1 - reach);
    return {begin, slots.begin() + std::min(batch.context_len[s], at + reach)};
  }
  const bool tree = batch.IsTree(s) && !args.in_order;
  const int32_t row = batch.q_begin[s] + i;
  const int32_t depth = tree ? batch.positions[row] - batch.positions[batch.q_begin[s]] : i;
  const int32_t window = args.in_chunks ? batch.positions[row] % args.window + 1 : args.window;
  const int32_t first = args.window > 0 ? std::max(0, before + depth + 1 - window) : 0;
  const int32_t from = tree ? std::min(first, before) : first;
  std::vector<int64_t> visible;
  for (int32_t j = from; j < before + rows; ++j) {
    const int32_t drafted = j - before;  // the row of slot j
    if (drafted >= 0 && (tree ? (batch.tree_mask[row] >> drafted & 1) == 0 : drafted > i)) continue;
    // Rows of a tree that are before the chunk have an earlier multiple of the window.
    if (args.in_chunks && drafted >= 0 &&
        batch.positions[batch.q_begin[s] + drafted] / args.window !=
            batch.positions[row] / args.window) {
      continue;
    }
    visible.push_back(slots[j]);
  }
  return visible;
}

}  // namespace

void Attention(const HostBatch& batch, const AttentionArgs& args) {
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    std::vector<int64_t> slots = ContextSlots(batch, s, args.cache.page_tokens);
    int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    for (int32_t i = 0; i < rows; ++i) {
      const std::vector<int64_t> visible = VisibleSlots(batch, args, s, i, slots);
      for (int32_t h = 0; h < args.n_heads; ++h) {
        AttendHead(args, visible, batch.q_begin[s] + i, h);
      }
    }
  }
}

}  // namespace heddle::kernels::reference
