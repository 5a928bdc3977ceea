// Refuses what a configuration says and nobody reads: a key that is not known to leave the
// arithmetic as it is may be what a new model changed under an old name, and its text would be
// wrong without a word. Private to engine/family.
// Thread-safety: pure functions; a source is read by one thread at a time.
#pragma once

#include "absl/status/status.h"
#include "engine/family/config_source.h"

namespace heddle::engine {

// UNIMPLEMENTED names the first key of the decoder's configuration that was not asked for, and is
// none of those that are known to be harmless. Call it when all is read.
absl::Status RefuseUnreadKeys(const JsonSource& config);
absl::Status RefuseUnreadKeys(const GgufSource& source);

}  // namespace heddle::engine
