#include "engine/grammar/schema/schema_keywords.h"

#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/grammar.h"

namespace heddle::engine::grammar {

absl::StatusOr<int32_t> ReadCount(SchemaDocument* document, SchemaRef schema,
                                  const std::string& keyword) {
  auto found = schema->find(keyword);
  if (found == schema->end()) return -1;
  const double value = found->is_number() ? found->get<double>() : -1;
  if (value < 0 || value != static_cast<double>(static_cast<int64_t>(std::min(value, 1e15)))) {
    return document->Error(
        schema, base::StrCat(base::Quote(keyword), " must be a whole number from 0, found ",
                             base::Quote(found->dump())));
  }
  // The limit exceeds anything generated: a maximum is then no bound, and a minimum is never
  // reached.
  const bool is_max = keyword.rfind("max", 0) == 0;
  if (value > kMaxRepeat && !is_max) {
    return document->Error(
        schema, base::StrCat(base::Quote(keyword), " above ", kMaxRepeat, " is not supported"));
  }
  return value > kMaxRepeat ? kMaxRepeat : static_cast<int32_t>(value);
}

absl::Status ReadCounts(SchemaDocument* document, SchemaRef schema, const std::string& what,
                        int32_t* min, int32_t* max) {
  HEDDLE_ASSIGN_OR_RETURN(const int32_t low, ReadCount(document, schema, "min" + what));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t high, ReadCount(document, schema, "max" + what));
  *min = std::max(*min, low);
  if (high >= 0) *max = *max < 0 ? high : std::min(*max, high);
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckPattern(SchemaDocument* document, SchemaRef schema, std::string_view name,
                                  const Json& pattern) {
  if (!pattern.is_string()) {
    return document->Error(schema, base::StrCat(base::Quote(name), " must be a string"));
  }
  const auto& machine = document->Pattern(pattern.get_ref<const std::string&>());
  if (machine.ok()) return true;
  HEDDLE_RETURN_IF_ERROR(StatusOf(document->budget()));
  HEDDLE_RETURN_IF_ERROR(document->Unsupported(
      schema, base::StrCat(base::Quote(name), ": ", std::string(machine.status().message()))));
  return false;
}

}  // namespace heddle::engine::grammar
