// The request that asks for a response in the background: it waits until the engine has taken the
// response, and is answered with its id, or goes on with its events. Private to server/http/.
// Threads: StartInBackground is called on the request's I/O thread, where its result lives;
// MakeResponseRoute on any.
#pragma once

#include <memory>

#include "server/http/preparation.h"

namespace heddle::server {

// REQUIRES: generation.background. The parts' pointers outlive the result.
std::shared_ptr<Exchange> StartInBackground(const PreparationParts& parts, Generation generation,
                                            scheduler::AdapterUse adapter);

// GET /v1/responses/{id}, whole or, with `stream`, as the events of a response in the background.
std::unique_ptr<Preparation> MakeResponseRoute(PreparationParts parts);

}  // namespace heddle::server
