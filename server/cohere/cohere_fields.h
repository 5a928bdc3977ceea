// The request fields of Cohere's /v1/embed and /v2/embed. See server/request/fields.h.
#pragma once

#include "server/openai/api_fields.h"
#include "server/request/fields.h"

namespace heddle::server::fields {

inline constexpr Field kCohereEmbed[] = {
    {"model", kString, 0, 512, "(the served model)", "name of the model, see /v1/models"},
    {"texts", kArray, 1, 2048, "", "texts", true},
    {"input_type", kString, 0, 64, "",
     "search_query, search_document and others: those two choose the model's prompts \"query\" and "
     "\"document\""},
    {"embedding_types", kArray, 1, 8, "[\"float\"]", "float, base64 or both"},
    {"output_dimension", kInteger, 1, 1 << 20, "(all)",
     "so many numbers, the first, scaled to length 1"},
    {"truncate", kString, 0, 16, "END",
     "END: read the first part of a text that is longer than the context; NONE: that is an error"},
};

}  // namespace heddle::server::fields
