#include "base/json_shape.h"

#include <vector>

namespace heddle::base {

JsonShape FindExcess(std::string_view text, int max_depth, int max_members) {
  std::vector<int> members;  // number so far, for each open object; negative: an array
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      members.push_back(c == '{' ? 1 : -1);
      if (static_cast<int>(members.size()) > max_depth) return {JsonShape::Excess::kDepth, i};
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ',' && !members.empty() && members.back() > 0 &&
               ++members.back() > max_members) {
      return {JsonShape::Excess::kMembers, i};
    }
  }
  return {};
}

}  // namespace heddle::base
