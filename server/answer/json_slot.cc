#include "server/answer/json_slot.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "base/message.h"
#include "nlohmann/json.hpp"
#include "server/request/json_input.h"

namespace heddle::server {
namespace {

// A step with "~1" as "/" and "~0" as "~".
std::string Unescaped(std::string_view step) {
  std::string name;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool is_escape = step[i] == '~';
    name.push_back(!is_escape ? step[i] : step[i + 1] == '1' ? '/' : '~');
    if (is_escape) ++i;
  }
  return name;
}

const Json* ElementOf(const Json& array, std::string_view step) {
  uint32_t index = 0;
  const bool is_padded = step.size() > 1 && step[0] == '0';
  if (is_padded || !absl::SimpleAtoi(base::AbslView(step), &index)) return nullptr;
  return index < array.size() ? &array[index] : nullptr;
}

}  // namespace

bool IsJsonPointer(std::string_view text) {
  if (!text.empty() && text[0] != '/') return false;
  for (size_t at = text.find('~'); at != std::string_view::npos; at = text.find('~', at + 1)) {
    if (at + 1 == text.size() || (text[at + 1] != '0' && text[at + 1] != '1')) return false;
  }
  return true;
}

std::optional<std::string> JsonSlot(std::string_view text, std::string_view pointer) {
  if (!CheckJsonShape(text).ok()) return std::nullopt;
  const Json whole = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (whole.is_discarded()) return std::nullopt;
  const Json* at = &whole;
  while (!pointer.empty() && at != nullptr) {
    const std::string_view step = pointer.substr(1, pointer.find('/', 1) - 1);
    pointer.remove_prefix(step.size() + 1);
    at = at->is_array() ? ElementOf(*at, step) : Find(*at, Unescaped(step));
  }
  if (at == nullptr) return std::nullopt;
  return at->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace heddle::server
