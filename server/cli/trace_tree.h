// The tree of branches in the output of `heddle trace`: each branch below the run from which it was
// forked, with the time in which it ran.
//
//      at ms      for ms  cached  tokens  branch
//        0.0        80.0       0      40  0                 ######
//       80.1       120.0      40      64  |-- 0.0                 ##########
//       80.1        60.0      40      30  `-- 0.1                 #####
//      200.5        40.0     150      20  0                                 ###
//
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace heddle::server {

// `runs`: member "runs" of GET /debug/requests/ID. What is no run is left out. Without two runs of
// branches there is nothing to draw: an empty text.
std::string TreeText(const nlohmann::json& runs);

}  // namespace heddle::server
