#include "kernels/adapters.h"

#include <algorithm>

namespace heddle::kernels {

void AdapterGroups::Assign(std::span<const int32_t> adapter_slot, int32_t max_rows) {
  rows.clear();
  segments.clear();
  for (size_t t = 0; t < adapter_slot.size(); ++t) {
    if (adapter_slot[t] >= 0) rows.push_back(static_cast<int32_t>(t));
  }
  const auto slot_of = [&](int32_t row) { return adapter_slot[static_cast<size_t>(row)]; };
  std::sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
    return slot_of(a) != slot_of(b) ? slot_of(a) < slot_of(b) : a < b;
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t slot = slot_of(rows[i]);
    const bool more =
        !segments.empty() && segments.back().slot == slot && segments.back().count < max_rows;
    if (!more) segments.push_back({slot, static_cast<int32_t>(i), 0});
    ++segments.back().count;
  }
}

}  // namespace heddle::kernels
