// Images of an adapter for ranks that share its base: each rank's are the factors of the weights
// that the rank has (engine/parallel/shard.h), cut as the base is. Private to engine/adapter.
//
// Where a rank has some of a matrix's outputs (q, k, v, gate, up, a head's tokens), it has A and
// these rows of B. Where it has some of the inputs (attention's output, the second layers of MLPs
// and experts), it has these columns of A, and B: its product is a part of the sum over ranks, and
// so is what a gain adds; a bias is added by the first rank with a share. Tokens of an embedding
// are cut like its rows. Everything else is on every rank.
// Gains of DoRA and differences to the base are made of uncut weights before any of this.
// Thread-safety: pure functions; one thread per adapter.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/adapter/load_adapter.h"
#include "engine/adapter/pack_adapter.h"

namespace heddle::engine {

// The head's image, which holds those of the others. All or nothing: errors as PackAdapter's, of
// any rank; target.max_bytes bounds all of them together.
absl::StatusOr<std::shared_ptr<AdapterImage>> PackForRanks(std::span<const FactorSource> sources,
                                                           const AdapterTarget& target);

}  // namespace heddle::engine
