// The vocabulary of a draft network that guesses only frequent tokens (EAGLE-3's `d2t`): the
// model's id of each of its own. Private to engine/heads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "engine/ids.h"

namespace heddle::engine {

// Meaning of a map's numbers: ids of the model (GGUF), or offsets from the own id.
enum class TokenMapKind : uint8_t { kIds, kOffsets };

// Reads the tensor `name` of `draft_vocab` integers. INVALID_ARGUMENT, naming file and entry, for
// another type or shape, ids outside [0, vocab), and ids that come twice.
absl::StatusOr<std::vector<TokenId>> ReadTokenMap(const Checkpoint& file, const std::string& name,
                                                  TokenMapKind kind, int32_t draft_vocab,
                                                  int32_t vocab);

}  // namespace heddle::engine
