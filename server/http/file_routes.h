// /v1/files and /v1/batches. What reads or writes the disk runs on the threads that prepare
// requests; a file's content is read while it is sent.
#pragma once

#include <memory>

#include "server/http/preparation.h"

namespace heddle::server {

bool IsFileRoute(RouteId id);

// REQUIRES: IsFileRoute(parts.route).
std::unique_ptr<Preparation> MakeFileRoute(PreparationParts parts);

}  // namespace heddle::server
