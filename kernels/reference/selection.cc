#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

// The places in a sequence's context that its row i sees, ascending.
std::vector<int32_t> VisiblePlaces(const HostBatch& batch, int32_t s, int32_t i) {
  const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
  const int32_t before = batch.context_len[s] - rows;
  std::vector<int32_t> places;
  for (int32_t place = 0; place < before + rows; ++place) {
    const int32_t drafted = place - before;
    const bool sees =
        drafted < 0 ||
        (batch.IsTree(s)
             ? (batch.tree_mask[static_cast<size_t>(int64_t{batch.q_begin[s]} + i)] >> drafted &
                1) != 0
             : drafted <= i);
    if (sees) places.push_back(place);
  }
  return places;
}

// The scores of all places of a sequence's context for row t.
std::vector<double> Scores(const HostBatch& batch, const SelectArgs& args, int32_t s, int64_t t) {
  const int32_t dim = args.cache.head_dim;
  std::vector<float> key(static_cast<size_t>(dim));
  std::vector<double> scores;
  for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
    for (int32_t j = 0; j < batch.span_tokens[i]; ++j) {
      const int64_t slot = int64_t{batch.span_page[i]} * args.cache.page_tokens + j;
      LoadKvRow(args.cache, args.cache.keys, slot, 0, key.data());
      double score = 0;
      for (int32_t h = 0; h < args.n_heads; ++h) {
        const float* q = args.q.row<float>(t) + int64_t{h} * dim;
        double dot = 0;
        for (int32_t d = 0; d < dim; ++d) dot += double{q[d]} * key[static_cast<size_t>(d)];
        score += args.weights.row<float>(t)[h] * std::max(0.0, dot);
      }
      scores.push_back(std::isnan(score) ? -std::numeric_limits<double>::infinity() : score);
    }
  }
  return scores;
}

}  // namespace

void SelectPositions(const HostBatch& batch, const SelectArgs& args) {
  const ChosenPlaces chosen{args.out, args.top_k};
  const auto top_k = static_cast<size_t>(args.top_k);
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    bool any = false;
    for (int32_t i = 0; i < rows; ++i) any = any || VisiblePlaces(batch, s, i).size() > top_k;
    for (int32_t i = 0; i < rows; ++i) {
      const int64_t t = batch.q_begin[s] + i;
      int32_t* const out = args.out + t * chosen.stride();
      std::vector<int32_t> places = VisiblePlaces(batch, s, i);
      *out = 0;
      if (places.size() <= top_k && !(any && batch.IsTree(s))) continue;
      const std::vector<double> scores = Scores(batch, args, s, t);
      std::stable_sort(places.begin(), places.end(), [&](int32_t a, int32_t b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
      });
      places.resize(std::min(places.size(), top_k));
      std::sort(places.begin(), places.end());
      *out = static_cast<int32_t>(places.size());
      std::copy(places.begin(), places.end(), out + 1);
    }
  }
}

}  // namespace heddle::kernels::reference
