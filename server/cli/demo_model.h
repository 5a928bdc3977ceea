// The small model that comes with the program. Commands take it under the name "demo".
#pragma once

#include "absl/status/status.h"
#include "config/config.h"

namespace heddle::server {

// Replaces `demo` in config->model by the demo model's folder and, if no name is given, sets the
// name that clients use. A file or folder of that name in the current directory takes precedence.
// The folder is searched from the program's own place: share/heddle/ beside bin/ if it is
// installed, share/ beside the build folder in a checkout.
// NOT_FOUND if it is in neither.
absl::Status ResolveDemoModel(config::Config* config);

}  // namespace heddle::server
