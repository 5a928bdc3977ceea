// The choice of the model and of the adapters beside it: `model` is the base's name, an adapter's,
// or BASE:ADAPTER; `lora` is llama.cpp's list, whose adapters then answer together, at their
// scales; it includes the one that `model` names. A request for the base that has no list gets the
// adapters that the operator has set for the base (POST /lora-adapters).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"
#include "server/request/json_input.h"

namespace heddle::server {

bool IsModelName(std::string_view name, const ServedModel& model);
// The model, its aliases, and the adapters that the client may use. TakesLong: a folder of adapters
// has to be read, and the context has no patience for that.
absl::StatusOr<std::vector<std::string>> ModelNames(const RequestContext& context);

// The adapters that the client may use; `cut`: there are more than are listed. TakesLong: as above.
struct ListedAdapters {
  std::vector<AdapterInfo> infos;
  bool cut = false;
};
absl::StatusOr<ListedAdapters> ListAdapters(const RequestContext& context);

// NOT_FOUND, with the names that there are.
absl::Status UnknownModel(std::string_view name, const RequestContext& context);

// `name` and `lora` may be nullptr: the request has none. A name in the path (context.deployment)
// counts in place of `name`. NOT_FOUND (model_not_found): no such
// model, or none that the client may use. INVALID_ARGUMENT: the adapter cannot be used, and why.
// TakesLong: the disk has to be asked, and the context has no patience for that.
absl::StatusOr<ModelChoice> ChooseModel(const std::string* name, const Json* lora,
                                        const RequestContext& context);

}  // namespace heddle::server
