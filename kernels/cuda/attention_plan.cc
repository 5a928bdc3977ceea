#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace heddle::kernels::cuda {
namespace {

constexpr int32_t kKeyTile = 64;  // splits end where the kernels' key tiles do

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Sequence {
  int32_t seq;
  int32_t packed;
  int32_t context;
  int32_t tiles() const { return static_cast<int32_t>(CeilDiv(packed, kDecodeTileRows)); }
};

int64_t SlotsFor(const std::vector<Sequence>& sequences, int64_t keys_per_split) {
  int64_t slots = 0;
  for (const Sequence& s : sequences) {
    const int64_t splits = CeilDiv(s.context, keys_per_split);
    if (splits > 1) slots += splits * s.tiles();
  }
  return slots;
}

// Keys per part such that all parts together are about target_blocks blocks.
int64_t KeysPerSplit(const std::vector<Sequence>& sequences, int32_t n_kv_heads,
                     int32_t target_blocks, int32_t max_slots) {
  int64_t work = 0;
  for (const Sequence& s : sequences) work += int64_t{s.context} * s.tiles() * n_kv_heads;
  int64_t keys = std::max<int64_t>(kMinSplitKeys, CeilDiv(work, target_blocks));
  keys = CeilDiv(keys, kKeyTile) * kKeyTile;
  while (SlotsFor(sequences, keys) > max_slots) keys *= 2;
  return keys;
}

void AddDecode(const Sequence& s, int64_t keys_per_split, AttentionPlan& plan) {
  const int64_t splits = CeilDiv(s.context, keys_per_split);
  const auto keys = static_cast<int32_t>(CeilDiv(CeilDiv(s.context, splits), kKeyTile) * kKeyTile);
  for (int32_t first = 0; first < s.packed; first += kDecodeTileRows) {
    if (splits == 1) {
      plan.decode.push_back({s.seq, first, 0, s.context, -1});
      continue;
    }
    AttentionMerge merge = {s.seq, first, plan.n_slots, 0};
    for (int32_t begin = 0; begin < s.context; begin += keys, ++merge.num_slots) {
      const int32_t end = std::min(begin + keys, s.context);
      plan.decode.push_back({s.seq, first, begin, end, plan.n_slots++});
    }
    plan.merges.push_back(merge);
  }
}

struct SizedTile {
  AttentionTile tile;
  int32_t keys;  // that its last row sees
};

void AddPrefill(const Sequence& s, int32_t rows, const AttentionGrouping& grouping,
                std::vector<SizedTile>& tiles) {
  for (int32_t first = 0; first < s.packed; first += grouping.prefill_rows) {
    const int32_t last = std::min(first + grouping.prefill_rows, s.packed) - 1;
    const int32_t keys = s.context - rows + 1 + last / grouping.group;
    tiles.push_back({{s.seq, first, 0, s.context, -1}, keys});
  }
}

}  // namespace

AttentionPlan PlanAttention(const HostBatch& batch, const SequenceRange& sequences,
                            const AttentionGrouping& grouping, int32_t target_blocks,
                            int32_t max_slots) {
  AttentionPlan plan;
  std::vector<Sequence> decoding;
  std::vector<SizedTile> tiles;
  for (int32_t s = sequences.begin; s < sequences.end; ++s) {
    const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    const Sequence sequence = {s, rows * grouping.group, batch.context_len[s]};
    if (rows == 0) continue;
    if (rows == 1 || sequence.packed <= kDecodeTileRows) {
      decoding.push_back(sequence);
      continue;
    }
    AddPrefill(sequence, rows, grouping, tiles);
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const SizedTile& a, const SizedTile& b) { return a.keys > b.keys; });
  for (const SizedTile& sized : tiles) plan.prefill.push_back(sized.tile);
  if (decoding.empty()) return plan;
  const int64_t keys = KeysPerSplit(decoding, grouping.n_kv_heads, target_blocks, max_slots);
  for (const Sequence& s : decoding) AddDecode(s, keys, plan);
  return plan;
}

}  // namespace heddle::kernels::cuda
