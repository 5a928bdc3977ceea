// The classifiers of encoders (Family::classifier): the pooling and the layers between the final
// hidden states and the labels, as each family's class for sequence classification has them.
// `prefix`: of the encoder's own tensors, among which BERT's pooler is. `hidden`: the encoder's
// width. INVALID_ARGUMENT or UNIMPLEMENTED: config.json asks for something else, by name.
// Private to engine/family. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "engine/family/config_source.h"
#include "engine/family/model_description.h"

namespace heddle::engine {

absl::Status BertClasses(const JsonSource& config, std::string_view prefix, int32_t hidden,
                         int32_t n_labels, PooledOutput* output);
absl::Status RobertaClasses(const JsonSource& config, std::string_view prefix, int32_t hidden,
                            int32_t n_labels, PooledOutput* output);
absl::Status DistilBertClasses(const JsonSource& config, std::string_view prefix, int32_t hidden,
                               int32_t n_labels, PooledOutput* output);
absl::Status ModernBertClasses(const JsonSource& config, std::string_view prefix, int32_t hidden,
                               int32_t n_labels, PooledOutput* output);
absl::Status EuroBertClasses(const JsonSource& config, std::string_view prefix, int32_t hidden,
                             int32_t n_labels, PooledOutput* output);

}  // namespace heddle::engine
