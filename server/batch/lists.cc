#include "server/batch/lists.h"

#include <algorithm>

#include "base/message.h"
#include "server/json_writer.h"
#include "server/request/api_error.h"

namespace heddle::server {

absl::StatusOr<std::string> ListJson(std::vector<ListEntry> entries, const ListPage& page) {
  if (page.newest_first) std::reverse(entries.begin(), entries.end());
  auto begin = entries.begin();
  if (!page.after.empty()) {
    begin = std::find_if(begin, entries.end(),
                         [&page](const ListEntry& entry) { return entry.id == page.after; });
    if (begin == entries.end()) {
      return FieldError("after", base::StrCat("'after' must be an id of this list, found ",
                                              base::Quote(page.after)));
    }
    ++begin;
  }
  const size_t left = static_cast<size_t>(entries.end() - begin);
  const auto end = begin + static_cast<ptrdiff_t>(std::min(left, page.limit));
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("object", "list").Key("data").BeginArray();
  for (auto entry = begin; entry != end; ++entry) json.Raw(entry->json);
  json.EndArray();
  if (begin == end) {
    json.NullMember("first_id").NullMember("last_id");
  } else {
    json.Member("first_id", begin->id).Member("last_id", std::prev(end)->id);
  }
  json.Key("has_more").Bool(end != entries.end()).EndObject();
  return out;
}

}  // namespace heddle::server
