// How the head of the ranks identifies itself in tests of Hellos.
#pragma once

#include "server/ranks/rank_identity.h"

namespace heddle::server {

inline const RankIdentity kHead{
    .token = "sixteen letters.", .build = "1.2", .model_digest = 77, .isa = "avx2"};

}  // namespace heddle::server
