// The limit on this process's open descriptors: shells and service managers often grant 1024, which
// is less than the allowed connections, and a process without free descriptors cannot accept
// clients.
#pragma once

#include <cstdint>

#include "server/log.h"

namespace heddle::server {

// Raises the limit to `connections` descriptors of clients and the server's own files, as far as
// the system allows, and warns if that is not enough.
void AllowDescriptors(int64_t connections, const Logger& log);

}  // namespace heddle::server
