#include "server/cli/inspect_adapter.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

// Text like "8", or "4..8".
template <typename Number>
std::string RangeText(Number least, Number most) {
  return least == most ? absl::StrCat(most) : absl::StrCat(least, "..", most);
}

void AddLine(std::string* out, const char* label, const std::string& value) {
  absl::StrAppendFormat(out, "%-14s %s\n", label, value);
}

}  // namespace

std::string InspectAdapterText(const std::string& path,
                               const engine::AdapterDescription& description,
                               const std::optional<AdapterOnBase>& on_base) {
  const engine::AdapterSummary& summary = description.summary;
  std::string out;
  AddLine(&out, "adapter", path);
  AddLine(&out, "format",
          absl::StrCat(summary.format, ", ", absl::StrJoin(description.types, ", "), ", ",
                       base::ShowBytes(summary.file_bytes)));
  if (!summary.base.empty()) AddLine(&out, "trained on", summary.base);
  AddLine(&out, "rank", RangeText<int64_t>(description.min_rank, summary.max_rank));
  AddLine(&out, "scale", RangeText(description.min_scale, description.max_scale));
  AddLine(&out, "modules",
          absl::StrCat(description.num_modules, ": ", absl::StrJoin(description.kinds, ", ")));
  AddLine(&out, "parameters", absl::StrCat(summary.parameters));
  if (on_base.has_value()) {
    AddLine(&out, "base", on_base->base);
    AddLine(&out, "fits", on_base->modules);
    AddLine(&out, "takes",
            absl::StrCat(base::ShowBytes(on_base->bytes), ", ", on_base->pages,
                         on_base->pages == 1 ? " page" : " pages", " of the KV memory: as much as ",
                         on_base->tokens, " tokens"));
  }
  return out;
}

std::string InspectAdapterJson(const std::string& path,
                               const engine::AdapterDescription& description,
                               const std::optional<AdapterOnBase>& on_base) {
  const engine::AdapterSummary& summary = description.summary;
  nlohmann::ordered_json json = {{"adapter", path},
                                 {"format", summary.format},
                                 {"types", description.types},
                                 {"file_bytes", summary.file_bytes},
                                 {"trained_on", summary.base},
                                 {"min_rank", description.min_rank},
                                 {"max_rank", summary.max_rank},
                                 {"min_scale", description.min_scale},
                                 {"max_scale", description.max_scale},
                                 {"num_modules", description.num_modules},
                                 {"kinds", description.kinds},
                                 {"parameters", summary.parameters}};
  if (on_base.has_value()) {
    json["base"] = {{"model", on_base->base},
                    {"modules", on_base->modules},
                    {"bytes", on_base->bytes},
                    {"pages", on_base->pages},
                    {"tokens", on_base->tokens}};
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace heddle::server
