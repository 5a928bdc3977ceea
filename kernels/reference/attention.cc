#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

// A key of a sequence's context.
struct Key {
  int64_t slot = 0;
  int32_t position = 0;  // as ContextPiece says; without pieces it is not used
  int32_t turn = 0;
  int32_t place = 0;  // in the context
};

// The keys of a sequence's context in order.
std::vector<Key> ContextKeys(const HostBatch& batch, int32_t s, int32_t page_tokens) {
  std::vector<Key> keys;
  for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
    for (int32_t j = 0; j < batch.span_tokens[i]; ++j) {
      keys.push_back({static_cast<int64_t>(batch.span_page[i]) * page_tokens + j});
      keys.back().place = static_cast<int32_t>(keys.size()) - 1;
    }
  }
  // Where the pieces have more tokens than the list, those are missing at its front.
  auto at = static_cast<std::ptrdiff_t>(keys.size());
  for (const ContextPiece& piece : batch.PiecesOf(s)) at -= piece.num_tokens;
  for (const ContextPiece& piece : batch.PiecesOf(s)) {
    for (int32_t i = 0; i < piece.num_tokens; ++i, ++at) {
      if (at < 0) continue;
      keys[static_cast<size_t>(at)].position = piece.position + i;
      keys[static_cast<size_t>(at)].turn = piece.turn;
    }
  }
  return keys;
}

// A head's query, rotated further by `turn` positions.
std::vector<float> TurnedQuery(const QueryRotation& rotation, const float* q, int32_t head_dim,
                               int32_t turn) {
  std::vector<float> turned(q, q + head_dim);
  const size_t half = rotation.inv_freq.size();
  for (size_t i = 0; turn != 0 && i < half; ++i) {
    const double angle = double{rotation.inv_freq[i]} * turn;
    const size_t first = rotation.layout == RopeLayout::kHalf ? i : 2 * i;
    const size_t second = rotation.layout == RopeLayout::kHalf ? i + half : 2 * i + 1;
    turned[first] = static_cast<float>(q[first] * std::cos(angle) - q[second] * std::sin(angle));
    turned[second] = static_cast<float>(q[second] * std::cos(angle) + q[first] * std::sin(angle));
  }
  return turned;
}

// Row t's query of head h, [head_dim]; with half_keys the other half is zero.
std::vector<float> WholeQuery(const AttentionArgs& args, int64_t t, int32_t h) {
  const int32_t dim = args.cache.head_dim;
  const int32_t own = args.half_keys ? dim / 2 : dim;
  const float* q = args.q.row<float>(t) + int64_t{h} * own;
  std::vector<float> whole(static_cast<size_t>(dim));
  std::copy_n(q, own, whole.begin() + (args.half_keys ? h % 2 * own : 0));
  return whole;
}

double Score(const AttentionArgs& args, const float* q, const float* key) {
  double dot = 0;
  for (int32_t i = 0; i < args.cache.head_dim; ++i) {
    dot += static_cast<double>(q[i]) * key[i];
  }
  double score = dot * args.scale;
  return args.softcap > 0 ? args.softcap * std::tanh(score / args.softcap) : score;
}

double BiasOf(const DistanceBias& bias, int32_t h, int32_t distance) {
  return bias.table == nullptr ? 0.0 : bias.table[h * bias.stride() + bias.reach + distance];
}

// Computes one head of row t, at `place` of its context, over `keys`.
void AttendHead(const AttentionArgs& args, std::span<const Key> keys, int64_t t, int32_t place,
                int32_t h) {
  const KvCacheView& cache = args.cache;
  int32_t kv_head = h / (args.n_heads / cache.n_kv_heads);
  const std::vector<float> whole = WholeQuery(args, t, h);
  const float* q = whole.data();
  float* out = args.out.row<float>(t) + static_cast<int64_t>(h) * cache.head_dim;
  double sink = args.sinks ? args.sinks[h] : -std::numeric_limits<double>::infinity();
  double max = sink;
  std::vector<double> scores;
  std::vector<float> row(static_cast<size_t>(cache.head_dim));
  std::vector<float> turned = whole;
  int32_t turn = 0;  // of `turned`
  for (const Key& key : keys) {
    if (key.turn != turn && args.rotation != nullptr) {
      turned = TurnedQuery(*args.rotation, q, cache.head_dim, key.turn);
    }
    turn = key.turn;
    LoadKvRow(cache, cache.keys, key.slot, kv_head, row.data());
    scores.push_back(Score(args, turned.data(), row.data()) +
                     BiasOf(args.bias, h, key.place - place));
    max = std::max(max, scores.back());
  }
  double sum = std::exp(sink - max);
  std::vector<double> sums(cache.head_dim, 0.0);
  for (size_t j = 0; j < keys.size(); ++j) {
    double weight = std::exp(scores[j] - max);
    sum += weight;
    LoadKvRow(cache, cache.values, keys[j].slot, kv_head, row.data());
    for (int32_t i = 0; i < cache.head_dim; ++i) sums[i] += weight * row[i];
  }
  for (int32_t i = 0; i < cache.head_dim; ++i) out[i] = static_cast<float>(sums[i] / sum);
  if (args.lse) args.lse[t * args.n_heads + h] = static_cast<float>(max + std::log(sum));
}

// Whether the window of a row at `position` has passed a key.
bool HasPassed(const AttentionArgs& args, int32_t position, const Key& key) {
  if (args.window <= 0) return false;
  const int32_t seen_as = position + key.turn;
  const int32_t window = args.in_chunks ? seen_as % args.window + 1 : args.window;
  return key.position < seen_as + 1 - window;
}

// The keys of sequence s that its row i sees, of a context with pieces.
std::vector<Key> VisibleOfPieces(const HostBatch& batch, const AttentionArgs& args, int32_t s,
                                 int32_t i, const std::vector<Key>& keys) {
  const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
  std::vector<Key> visible;
  for (int32_t j = 0; j <= batch.context_len[s] - rows + i; ++j) {
    if (!HasPassed(args, batch.positions[batch.q_begin[s] + i], keys[j]))
      visible.push_back(keys[j]);
  }
  return visible;
}

// The keys of sequence s that its row i sees.
std::vector<Key> VisibleKeys(const HostBatch& batch, const AttentionArgs& args, int32_t s,
                             int32_t i, const std::vector<Key>& keys) {
  if (!batch.PiecesOf(s).empty()) return VisibleOfPieces(batch, args, s, i, keys);
  const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
  const int32_t before = batch.context_len[s] - rows;
  if (args.both_ways) {
    const int32_t at = before + i;
    const int32_t reach = args.window > 0 ? args.window : batch.context_len[s];
    const auto begin = keys.begin() + std::max(0, at + 1 - reach);
    return {begin, keys.begin() + std::min(batch.context_len[s], at + reach)};
  }
  const bool tree = batch.IsTree(s) && !args.in_order;
  const int32_t row = batch.q_begin[s] + i;
  const int32_t depth = tree ? batch.positions[row] - batch.positions[batch.q_begin[s]] : i;
  const int32_t window = args.in_chunks ? batch.positions[row] % args.window + 1 : args.window;
  const int32_t first = args.window > 0 ? std::max(0, before + depth + 1 - window) : 0;
  const int32_t from = tree ? std::min(first, before) : first;
  std::vector<Key> visible;
  for (int32_t j = from; j < before + rows; ++j) {
    const int32_t drafted = j - before;  // the row of key j
    if (drafted >= 0 && (tree ? (batch.tree_mask[row] >> drafted & 1) == 0 : drafted > i)) continue;
    // Rows of a tree that are before the chunk have an earlier multiple of the window.
    if (args.in_chunks && drafted >= 0 &&
        batch.positions[batch.q_begin[s] + drafted] / args.window !=
            batch.positions[row] / args.window) {
      continue;
    }
    visible.push_back(keys[j]);
  }
  return visible;
}

}  // namespace

void Attention(const HostBatch& batch, const AttentionArgs& args) {
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const std::vector<Key> keys = ContextKeys(batch, s, args.cache.page_tokens);
    int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t row = batch.q_begin[s] + i;
      std::vector<Key> visible = VisibleKeys(batch, args, s, i, keys);
      if (args.chosen.rows != nullptr && args.chosen.count(row) > 0) {
        const std::span places(args.chosen.places(row),
                               static_cast<size_t>(args.chosen.count(row)));
        visible.clear();
        for (const int32_t place : places) visible.push_back(keys[static_cast<size_t>(place)]);
      }
      for (int32_t h = 0; h < args.n_heads; ++h) {
        AttendHead(args, visible, row, batch.context_len[s] - rows + i, h);
      }
    }
  }
}

}  // namespace heddle::kernels::reference
