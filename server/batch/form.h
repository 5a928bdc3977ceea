// The body of an upload: multipart/form-data.
// Sources: RFC 2046, section 5.1; RFC 7578.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

struct FormPart {
  std::string name;
  std::string filename;      // empty: it has none
  std::string_view content;  // a view into the body
};

// The parts of `body`, at most 16. INVALID_ARGUMENT: it is no such form, or is not whole.
absl::StatusOr<std::vector<FormPart>> ParseForm(std::string_view content_type,
                                                std::string_view body);

// The part of that name; nullptr: there is none.
const FormPart* FindPart(const std::vector<FormPart>& parts, std::string_view name);

}  // namespace heddle::server
