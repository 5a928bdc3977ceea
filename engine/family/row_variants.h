// Rows of the family table for models that compute what another row computes, under another name.
// Private to engine/family. Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "base/check.h"
#include "engine/family/family_table.h"

namespace heddle::engine {

// The rows of the table so far, which outlive this.
class FamilyRows {
 public:
  explicit FamilyRows(std::span<const Family> rows) : rows_(rows) {}

  // The row `of` under another name.
  Family Variant(std::string_view of, std::string_view name,
                 std::span<const std::string_view> architectures,
                 std::span<const std::string_view> gguf = {}) const {
    const auto at = std::find_if(rows_.begin(), rows_.end(),
                                 [of](const Family& row) { return row.name == of; });
    HEDDLE_CHECK(at != rows_.end(), "the table has no such row");
    Family row = *at;
    row.name = row.model_type = name;
    row.architectures = architectures;
    row.gguf_architectures = gguf;
    if (gguf.empty()) row.refine_gguf = nullptr;
    return row;
  }

 private:
  std::span<const Family> rows_;
};

}  // namespace heddle::engine
