#include "engine/model/row_order.h"

#include <cstring>
#include <utility>

namespace heddle::engine {
namespace {

// Neighbours stay one source.
void Append(Range range, std::vector<Range>* rows) {
  if (!rows->empty() && rows->back().end() == range.first) {
    rows->back().count += range.count;
  } else if (range.count > 0) {
    rows->push_back(range);
  }
}

// The sections of rows of a recurrence's product, in the decoder's order.
enum class Section : uint8_t { kQuery, kKey, kValue, kGate, kBeta, kStep };

// Where a checkpoint has the sections' rows.
class RecurrenceOrder {
 public:
  explicit RecurrenceOrder(const RecurrenceSpec& spec)
      : shape_(spec.shape), rows_(spec.rows), group_(shape_.n_heads / shape_.n_key_heads) {}

  bool has(Section section) const {
    if (shape_.is_selective()) return section == Section::kValue || section == Section::kGate;
    return section != Section::kBeta || shape_.rule == kernels::RecurrenceRule::kGatedDelta;
  }
  // Those of one key head.
  Range RowsOf(Section section, int64_t key_head) const {
    const int64_t width = Width(section);
    if (rows_ == RecurrenceRows::kByKeyHead && section < Section::kBeta) {
      const int64_t all = 2 * Width(Section::kKey) + 2 * Width(Section::kValue);
      return {key_head * all + Before(section) / shape_.n_key_heads, width};
    }
    const bool steps_together =
        rows_ == RecurrenceRows::kByKeyHead || rows_ == RecurrenceRows::kStepsByKeyHead;
    if (steps_together && section >= Section::kBeta) {
      const int64_t first = shape_.beta_column() + key_head * 2 * group_;
      return {first + (section == Section::kStep ? group_ : 0), width};
    }
    return {(rows_ == RecurrenceRows::kMamba2 ? BeforeInMamba2(section) : Before(section)) +
                key_head * width,
            width};
  }
  // Channels of the convolution.
  Range ChannelsOf(Section section, int64_t key_head) const {
    const bool is_mamba = rows_ == RecurrenceRows::kMamba2;
    const int64_t width = Width(section);
    const int64_t before = is_mamba ? BeforeInMamba2(section) - shape_.values() : Before(section);
    return {before + key_head * width, width};
  }

 private:
  // Rows of one key head.
  int64_t Width(Section section) const {
    if (section <= Section::kKey) return shape_.key_dim;
    return section <= Section::kGate ? int64_t{group_} * shape_.value_dim : group_;
  }
  // Rows of the sections before, in the decoder's order.
  int64_t Before(Section section) const {
    switch (section) {
      case Section::kQuery:
        return 0;
      case Section::kKey:
        return shape_.keys();
      case Section::kValue:
        return 2 * shape_.keys();
      case Section::kGate:
        return shape_.gate_column();
      case Section::kBeta:
        return shape_.beta_column();
      case Section::kStep:
        break;
    }
    return shape_.step_column();
  }
  // The same in the order z, v, k, q, a.
  int64_t BeforeInMamba2(Section section) const {
    switch (section) {
      case Section::kGate:
        return 0;
      case Section::kValue:
        return shape_.values();
      case Section::kKey:
        return 2 * shape_.values();
      case Section::kQuery:
        return 2 * shape_.values() + shape_.keys();
      default:
        return 2 * shape_.values() + 2 * shape_.keys();
    }
  }

  const kernels::RecurrenceShape& shape_;
  const RecurrenceRows rows_;
  const int32_t group_;
};

}  // namespace

Cut QkvRows(const AttentionSpec& attention, const HeadShare& share) {
  const int64_t head = attention.head_dim;
  std::vector<Range> rows;
  const int64_t query_rows = attention.gated ? 2 * head : head;  // of a head, in the checkpoint
  const auto append_queries = [&](int64_t offset) {
    for (int64_t h = share.heads.first; h < share.heads.end(); ++h) {
      Append({h * query_rows + offset, head}, &rows);
    }
  };
  append_queries(0);
  const int64_t k = attention.n_heads * query_rows;
  for (const int64_t first : {k, k + attention.n_kv_heads * head}) {
    for (const int32_t kv : share.kv_heads) Append({first + kv * head, head}, &rows);
  }
  if (attention.gated) append_queries(head);
  return CutRows(std::move(rows));
}

std::vector<std::byte> AllQThenKThenV(std::span<const std::byte> from, int64_t head_bytes,
                                      const AttentionSpec& attention) {
  const int64_t group = attention.n_heads / attention.n_kv_heads;
  const int64_t n_kv = attention.n_kv_heads;
  std::vector<std::byte> to(from.size());
  auto copy = [&](int64_t from_head, int64_t to_head, int64_t count) {
    std::memcpy(&to[to_head * head_bytes], &from[from_head * head_bytes], count * head_bytes);
  };
  for (int64_t g = 0; g < n_kv; ++g) {
    const int64_t first = g * (group + 2);
    copy(first, g * group, group);
    copy(first + group, group * n_kv + g, 1);
    copy(first + group + 1, (group + 1) * n_kv + g, 1);
  }
  return to;
}

Cut RecurrenceRowsOf(const RecurrenceSpec& recurrence, Range key_heads) {
  const RecurrenceOrder order(recurrence);
  std::vector<Range> rows;
  for (const Section section : {Section::kQuery, Section::kKey, Section::kValue, Section::kGate,
                                Section::kBeta, Section::kStep}) {
    if (!order.has(section)) continue;
    for (int64_t head = key_heads.first; head < key_heads.end(); ++head) {
      Append(order.RowsOf(section, head), &rows);
    }
  }
  return CutRows(std::move(rows));
}

std::vector<Range> RecurrenceChannels(const RecurrenceSpec& recurrence, Range key_heads) {
  const RecurrenceOrder order(recurrence);
  std::vector<Range> channels;
  for (const Section section : {Section::kQuery, Section::kKey, Section::kValue}) {
    if (!order.has(section)) continue;
    for (int64_t head = key_heads.first; head < key_heads.end(); ++head) {
      Append(order.ChannelsOf(section, head), &channels);
    }
  }
  return channels;
}

Range RecurrenceHeads(const RecurrenceSpec& recurrence, Range key_heads) {
  return Times(key_heads, recurrence.shape.n_heads / recurrence.shape.n_key_heads);
}

}  // namespace heddle::engine
