// The output of checkpoints that write no text: embeddings, by the modules that
// sentence-transformers keeps beside a model, or scores of classes, by its head. Private to
// engine/family. Thread-safety: pure functions.
//
// Folders come from outside: a module's path must be a plain name, and a module that is not known
// is refused by its type. Sources: modules.json, config_sentence_transformers.json and the modules'
// config.json as sentence-transformers 5 reads them; transformers' ...ForSequenceClassification.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_table.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"

namespace heddle::engine {

// The purpose of a class of transformers, by the end of its name.
enum class ModelTask : uint8_t { kGenerate, kEmbed, kClassify };
ModelTask TaskOf(const JsonSource& config);

// Whether a class is a family's, with another head or none ("LlamaModel" is LlamaForCausalLM's).
bool IsVariantOf(std::string_view name, std::string_view architecture);

// Fills description->pooled where the folder's class or modules ask for it; `prefix` is that of the
// names of tensors.
absl::Status DescribePooled(const Checkpoint& checkpoint, const Family& family,
                            std::string_view prefix, const ConfigParts& config,
                            ModelDescription* description);

}  // namespace heddle::engine
