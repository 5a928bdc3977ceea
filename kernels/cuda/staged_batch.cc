#include "kernels/cuda/staged_batch.h"

namespace heddle::kernels::cuda {

void StagedBatch::Stage(Staging& staging, const int32_t* drawn) {
  const HostBatch& batch = host();
  narrow_groups_.clear();
  groups_.assign(1, {.token_ids = staging.Add(batch.token_ids),
                     .drawn = drawn,
                     .positions = staging.Add(batch.positions),
                     .q_begin = staging.Add(batch.q_begin),
                     .logit_rows = staging.Add(batch.logit_rows),
                     .tree_mask = staging.Add(batch.tree_mask),
                     .n_tokens = batch.n_tokens(),
                     .n_seqs = batch.n_seqs(),
                     .n_logit_rows = static_cast<int32_t>(batch.logit_rows.size())});
  groups_[0].draw_of_row = staging.Add(batch.draw_of_row);
  groups_[0].token_types = staging.Add(batch.token_types);
  groups_.resize(static_cast<size_t>(batch.n_groups()), groups_[0]);
  segments_ = staging.Add(batch.segments);
  adapters_ = StageAdapters(staging, batch.adapter_slot, &adapter_groups_);
  logit_slots_.clear();
  for (size_t i = 0; !batch.adapter_slot.empty() && i < batch.logit_rows.size(); ++i) {
    logit_slots_.push_back(batch.adapter_slot[static_cast<size_t>(batch.logit_rows[i])]);
  }
  logit_adapters_ = StageAdapters(staging, logit_slots_, &logit_groups_);
  for (int32_t group = 0; group < batch.n_groups(); ++group) {
    StageSpans(staging, batch.OfGroup(group), &groups_[static_cast<size_t>(group)]);
  }
}

void StagedBatch::StageNarrow(Staging& staging) {
  narrow_host_ = &logit_batch_.Make(host());
  const HostBatch& batch = *narrow_host_;
  const int32_t* token_ids = staging.Add(batch.token_ids);
  const int32_t* positions = staging.Add(batch.positions);
  const int32_t* q_begin = staging.Add(batch.q_begin);
  const int32_t* logit_rows = staging.Add(batch.logit_rows);
  narrow_groups_ = groups_;
  for (DeviceBatch& group : narrow_groups_) {
    group.token_ids = token_ids;
    group.draw_of_row = nullptr;
    group.positions = positions;
    group.token_types = nullptr;
    group.q_begin = q_begin;
    group.logit_rows = logit_rows;
    group.n_tokens = batch.n_tokens();
  }
}

DeviceAdapters StagedBatch::StageAdapters(Staging& staging, std::span<const int32_t> slots,
                                          AdapterGroups* groups) {
  groups->Assign(slots, kAdapterRows);
  return {.slots = staging.Add(slots),
          .rows = staging.Add(groups->rows),
          .segments = staging.Add(groups->segments),
          .n_segments = static_cast<int32_t>(groups->segments.size())};
}

void StagedBatch::StageSpans(Staging& staging, const HostBatch& batch, DeviceBatch* staged) {
  span_first_.clear();
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    int32_t first = 0;
    for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
      span_first_.push_back(first);
      first += batch.span_tokens[i];
    }
  }
  staged->kv_slot = staging.Add(batch.kv_slot);
  staged->span_begin = staging.Add(batch.span_begin);
  staged->span_page = staging.Add(batch.span_page);
  staged->span_first = staging.Add(span_first_);
  staged->span_tokens = staging.Add(batch.span_tokens);
  staged->context_len = staging.Add(batch.context_len);
}

}  // namespace heddle::kernels::cuda
