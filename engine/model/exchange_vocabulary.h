// Gives a model the token ids of another one: its embedding and its head get a row for each of the
// other's tokens, copied from its own. A draft model of another tokenizer (common_tokens.h) is then
// a model of the target's vocabulary, and nothing that runs it needs to know.
// Thread-safety: pure function; used by the thread that loads.
#pragma once

#include <vector>

#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/ids.h"

namespace heddle::engine {

// Token i is the model's own token ids[i]. Rows are copied when the weights are loaded, in the
// format of the file. REQUIRES: ValidateTensors(*checkpoint, *model) is OK, ids are below the
// model's vocabulary, and nothing reads the checkpoint meanwhile.
void ExchangeVocabulary(const std::vector<TokenId>& ids, Checkpoint* checkpoint,
                        ModelDescription* model);

}  // namespace heddle::engine
