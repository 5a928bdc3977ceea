// The API as an OpenAPI 3.1 document, made of what answers it: the routes of router.h and the
// fields of server/openai/fields.h. What validates a request is what documents it.
#pragma once

#include <string>
#include <string_view>

namespace heddle::server {

std::string OpenApiDocument(std::string_view version);

}  // namespace heddle::server
