#include "engine/heads/config_json.h"

#include <string>

#include "base/message.h"
#include "engine/heads/head_tensors.h"

namespace heddle::engine {

using nlohmann::json;

void MergeMembers(const json& from, json* to) {
  for (const auto& [key, value] : from.items()) (*to)[key] = value;
}

const json* FindList(const json& config, std::string_view key) {
  const auto list = config.find(std::string(key));
  return list == config.end() || !list->is_array() || list->empty() ? nullptr : &*list;
}

absl::StatusOr<int32_t> ReadDim(const Checkpoint& file, const json& config, std::string_view key,
                                int64_t absent, int64_t max) {
  const auto value = config.find(std::string(key));
  if (value == config.end() || value->is_null()) return static_cast<int32_t>(absent);
  if (!value->is_number_integer() || value->get<int64_t>() < 1 || value->get<int64_t>() > max) {
    return HeadError(file, base::StrCat(base::Quote(key), " is not an integer from 1 to ", max));
  }
  return static_cast<int32_t>(value->get<int64_t>());
}

}  // namespace heddle::engine
