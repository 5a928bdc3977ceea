// Parts of request parsing that several routes share: the model's name, prompts, messages. Private
// to server/openai/.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/openai/fields.h"
#include "server/openai/json_input.h"
#include "server/openai/openai_request.h"
#include "server/openai/text_codec.h"

namespace heddle::server {

struct ApiPrompt {
  std::vector<TokenId> tokens;  // not empty
  std::string text;             // for echo; empty unless asked for
};

// ParseRequest (openai_request.h) of a body that is parsed already.
absl::StatusOr<ApiRequest> ReadRequest(Endpoint endpoint, const Json& body,
                                       const RequestContext& context);

// What can be said of a body by its table alone: types, ranges, what is refused and, where the
// server is told to (--unknown-fields error), what is not known.
absl::Status CheckBody(const Json& body, std::span<const Field> fields,
                       std::span<const RefusedField> refused, const RequestContext& context);

// The same error in the words of another API: wherever the field at fault or the message begins
// with one of `names` (first), that stands as in the second.
struct Renamed {
  std::string_view from;
  std::string_view to;
};
absl::Status RenameFields(absl::Status status, std::span<const Renamed> names);

// NOT_FOUND (model_not_found) unless `model` is missing or names the served one.
absl::Status CheckModel(const Json& body, const ServedModel& model);
bool IsModelName(std::string_view name, const ServedModel& model);
absl::Status UnknownModel(std::string_view name, const ServedModel& model);

// `path` names the array in errors. Ids must be in [0, vocab).
absl::StatusOr<std::vector<TokenId>> ReadTokenIds(const Json& array, std::string_view path,
                                                  int32_t vocab);

// The member `name` in the four forms of "prompt": a text, token ids, or several of either.
absl::StatusOr<std::vector<ApiPrompt>> ReadPrompts(const Json& body, std::string_view name,
                                                   size_t max_prompts, bool echo,
                                                   const TextCodec& codec);

// Puts the tokens of `suffix` and of filling in around each prompt. INVALID_ARGUMENT: the model
// does not know how.
absl::Status AddSuffix(const Json& body, const TextCodec& codec, std::vector<ApiPrompt>* prompts);

// A "tool_choice" of the type "allowed_tools" ({"mode", "tools": [{"type":"function","function":
// {"name"}}]}) as what it means: the tools that are left, and the mode as the choice. Nothing: the
// choice is another.
absl::StatusOr<std::optional<Json>> WithAllowedTools(const Json& body);

// Whether the request lets the model call tools: some are given, and not hidden.
bool OffersTools(const Json& body);

// The tools that OffersTools tells of; CheckTools has passed.
ToolSet ReadToolSet(const Json& body);

// The members "messages", "tools", "tool_choice" and "chat_template_kwargs", rendered and encoded.
absl::StatusOr<std::vector<TokenId>> EncodeMessages(const Json& body,
                                                    const RequestContext& context);

// How many tokens the model reads of a chat request's body, whether or not the context holds them;
// the body's table is checked, what it says of the answer is not.
absl::StatusOr<size_t> CountChatTokens(const Json& chat, const RequestContext& context);

}  // namespace heddle::server
