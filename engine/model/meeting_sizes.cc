#include "engine/model/meeting_sizes.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/memory/host_memory.h"

namespace heddle::engine {
namespace {

using kernels::MeetingSizes;

// Columns of the widest gather of whole heads, of rank `rank`'s heads.
int64_t GatheredColumns(const ModelSpec& part, size_t rank) {
  int64_t most = 0;
  for (const LayerSpec& layer : part.layers) {
    const AttentionSpec& attention = layer.attention;
    for (const std::vector<int32_t>* borders :
         {&attention.head_borders, &attention.kv_head_borders}) {
      if (borders->size() < rank + 2) continue;
      most = std::max(most, int64_t{(*borders)[rank + 1] - (*borders)[rank]} * attention.head_dim);
    }
  }
  return most;
}

MeetingSizes SizesOfRanks(const ModelSpec& part, const ExecutorLimits& limits, int32_t logit_rows,
                          kernels::DType activations) {
  MeetingSizes sizes;
  if (!part.is_part()) return sizes;
  const auto world = static_cast<size_t>(part.world());
  const bool draws = part.stage == 0 && part.rank == 0;
  const int64_t sum = limits.max_batch_tokens * kernels::RowBytes(activations, part.hidden);
  sizes.parts.reserve(world);
  for (size_t r = 0; r < world; ++r) {
    const int64_t heads =
        limits.max_batch_tokens * kernels::RowBytes(activations, GatheredColumns(part, r));
    // The others give rank 0 their columns.
    const bool is_read = draws || (part.stage == 0 && static_cast<int32_t>(r) == part.rank);
    const int64_t columns = is_read ? part.vocab_borders[r + 1] - part.vocab_borders[r] : 0;
    sizes.parts.push_back(
        std::max({sum, heads, int64_t{logit_rows} * columns * int64_t{sizeof(float)}}));
  }
  const bool has_late =
      std::any_of(part.layers.begin(), part.layers.end(),
                  [](const LayerSpec& layer) { return layer.wiring == Wiring::kLadder; });
  if (has_late) sizes.late_part = sum;
  return sizes;
}

MeetingSizes SizesOfStages(const ModelSpec& part, const ExecutorLimits& limits,
                           kernels::DType activations) {
  MeetingSizes sizes;
  if (part.n_stages == 1) return sizes;
  const auto stages = static_cast<size_t>(part.n_stages), own = static_cast<size_t>(part.stage);
  const int64_t rows = limits.max_batch_tokens * kernels::RowBytes(activations, part.hidden);
  sizes.sent.assign(stages, 0);
  sizes.received.assign(stages, 0);
  // The last one gives the first its rows for logits.
  sizes.sent[(own + 1) % stages] = rows;
  sizes.received[(own + stages - 1) % stages] = rows;
  for (const int32_t feature : limits.drafter_features) {
    const auto from = static_cast<size_t>(part.StageOf(feature));
    if (from == 0 || part.rank > 0) continue;
    if (own == 0) sizes.received[from] = rows;
    if (own == from) sizes.sent[0] = rows;
  }
  return sizes;
}

}  // namespace

kernels::HostMeetings::Room MeetingRoom(const ModelSpec& part, const ExecutorLimits& limits,
                                        int32_t logit_rows, kernels::DType activations) {
  return {.ranks = SizesOfRanks(part, limits, logit_rows, activations),
          .stages = SizesOfStages(part, limits, activations),
          .free_bytes = [] { return ReadHostMemory().available_bytes; }};
}

int64_t MeetingBytes(const ModelSpec& part, const ExecutorLimits& limits, int32_t logit_rows,
                     kernels::DType activations) {
  const kernels::HostMeetings::Room room = MeetingRoom(part, limits, logit_rows, activations);
  return kernels::PlaceBytes(room.ranks, part.rank) + kernels::PlaceBytes(room.stages, part.stage);
}

}  // namespace heddle::engine
