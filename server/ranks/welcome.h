// The message by which the head gives a rank its place and its own options.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/heddle/ranks/v1/ranks.pb.h"
#include "server/ranks/rank_settings.h"

namespace heddle::server {

ranks::v1::Welcome ToWelcome(const RankSettings& settings, int32_t rank);
// INVALID_ARGUMENT if the layout or the rank in it cannot be.
absl::StatusOr<RankSettings> FromWelcome(const ranks::v1::Welcome& welcome);

}  // namespace heddle::server
