// The API as an OpenAPI 3.1 document, made from the same tables that answer it: the routes of
// router.h and the fields of server/request/fields.h, which also validate requests.
#pragma once

#include <string>
#include <string_view>

namespace heddle::server {

std::string OpenApiDocument(std::string_view version);

}  // namespace heddle::server
