// Builds the tree of a template from its tokens. The grammar is Jinja2's, without template
// inheritance and imports, which a chat template cannot use.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/limits.h"

namespace heddle::engine::text::jinja {

// INVALID_ARGUMENT with "line N: ..." for a template that is not well-formed, nests deeper than the
// limits, or uses an unknown filter or test outside of any condition.
absl::StatusOr<Template> ParseTemplate(std::string_view source, const TemplateLimits& limits);

}  // namespace heddle::engine::text::jinja
