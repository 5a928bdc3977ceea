// What a request demands of the form of its answer: response_format, and the fields by which other
// servers ask for the same (guided_json, guided_regex, guided_choice, guided_grammar,
// structured_outputs, grammar, json_schema), and a tool choice that forces a call. Private to
// server/openai/.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/openai/json_input.h"
#include "server/openai/openai_request.h"

namespace heddle::server {

// The compiled grammar, or null where nothing is demanded. `request` says what the model writes
// around its answer. TakesLong: the context is quick, and the grammar not known yet.
// INVALID_ARGUMENT with the field in param, as in "response_format.json_schema.schema"; the message
// names keyword and place within a schema.
absl::StatusOr<std::shared_ptr<engine::grammar::CompiledGrammar>> ReadConstraint(
    const Json& body, const RequestContext& context, const ApiRequest& request);

// Whether tool_choice forces a call: "required", or the object that names a function.
bool ForcesCall(const Json& body);

// INVALID_ARGUMENT unless a forced call can be honoured: the named tool is on offer, and the model
// writes calls in a format that this server can force.
absl::Status CheckToolChoice(const Json& body, const TextCodec& codec);

}  // namespace heddle::server
