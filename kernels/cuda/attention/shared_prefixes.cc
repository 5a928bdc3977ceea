#include "kernels/cuda/attention/shared_prefixes.h"

#include <algorithm>
#include <utility>

namespace heddle::kernels::cuda {
namespace {

using Members = std::vector<int32_t>;  // sequences, rising

struct Division {
  int64_t saved = 0;  // spans that are not read again
  std::vector<SharedPrefix> prefixes;
};

class Finder {
 public:
  explicit Finder(const HostBatch& batch) : batch_(batch) {}

  // Groups of two or more `members`, which agree in their first `from` spans, that also agree in
  // their first `to`.
  std::vector<Members> Agreeing(std::span<const int32_t> members, int32_t from, int32_t to) const {
    std::vector<std::pair<int32_t, int32_t>> order;  // (page, sequence)
    for (const int32_t s : members) {
      if (CommonSpans(s) >= to) {
        order.emplace_back(batch_.span_page[batch_.span_begin[s] + to - 1], s);
      }
    }
    std::sort(order.begin(), order.end());
    std::vector<Members> groups;
    for (size_t i = 0; i < order.size();) {
      Members group = {order[i].second};
      const int32_t page = order[i].first;
      for (++i; i < order.size() && order[i].first == page; ++i) {
        if (Agreement(group[0], order[i].second, from, to) == to) group.push_back(order[i].second);
      }
      if (group.size() > 1) groups.push_back(std::move(group));
    }
    return groups;
  }

  // The best division of `members`, all of which agree in their first `depth` spans.
  Division Divide(const Members& members, int32_t depth) const {
    const int32_t next = 2 * depth;
    int32_t common = next;
    for (const int32_t s : members) common = Agreement(members[0], s, depth, common);
    if (common == next) return Divide(members, next);
    Division together = {static_cast<int64_t>(members.size() - 1) * common, {}};
    together.prefixes.push_back({members, common, 0});
    Division apart;
    for (const Members& group : Agreeing(members, depth, next)) {
      Division part = Divide(group, next);
      apart.saved += part.saved;
      std::move(part.prefixes.begin(), part.prefixes.end(), std::back_inserter(apart.prefixes));
    }
    return apart.saved > together.saved ? apart : together;
  }

 private:
  // Spans of a sequence that others may share: those before its own rows.
  int32_t CommonSpans(int32_t s) const {
    int32_t rows = batch_.q_begin[s + 1] - batch_.q_begin[s];
    int32_t end = batch_.span_begin[s + 1];
    while (rows > 0) rows -= batch_.span_tokens[--end];
    return end - batch_.span_begin[s];
  }

  // The first span in [from, to) in which two sequences differ, or `to`. Both agree up to `from`.
  int32_t Agreement(int32_t a, int32_t b, int32_t from, int32_t to) const {
    if (a == b) return std::min(to, CommonSpans(a));
    const int32_t end = std::min({to, CommonSpans(a), CommonSpans(b)});
    const auto differ = [&](std::span<const int32_t> spans) {
      const int32_t* first = spans.data() + batch_.span_begin[a];
      const int32_t* other = spans.data() + batch_.span_begin[b] + from;
      // A full match is the expensive case, for which memcmp is fast.
      if (std::equal(first + from, first + end, other)) return end;
      return static_cast<int32_t>(std::mismatch(first + from, first + end, other).first - first);
    };
    return std::min(differ(batch_.span_page), differ(batch_.span_tokens));
  }

  const HostBatch& batch_;
};

}  // namespace

std::vector<SharedPrefix> FindSharedPrefixes(const HostBatch& batch,
                                             std::span<const int32_t> candidates,
                                             int32_t min_keys) {
  int32_t longest_span = 1;
  for (const int32_t s : candidates) {
    longest_span = std::max(longest_span, batch.span_tokens[batch.span_begin[s]]);
  }
  const int32_t depth = (min_keys + longest_span - 1) / longest_span;
  const Finder finder(batch);
  std::vector<SharedPrefix> found;
  for (const Members& group : finder.Agreeing(candidates, 0, depth)) {
    for (SharedPrefix& prefix : finder.Divide(group, depth).prefixes) {
      const int32_t first = batch.span_begin[prefix.sequences[0]];
      for (int32_t i = 0; i < prefix.spans; ++i) prefix.keys += batch.span_tokens[first + i];
      if (prefix.keys >= min_keys) found.push_back(std::move(prefix));
    }
  }
  return found;
}

}  // namespace heddle::kernels::cuda
