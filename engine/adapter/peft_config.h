// adapter_config.json of Hugging Face PEFT: what scales a module's factors, and which fields ask
// for something that this engine does not do. Private to engine/adapter.
// Source: PEFT's LoraConfig, peft/tuners/lora/config.py; the matching of patterns is that of
// peft/utils/other.py.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/regex.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

class PeftConfig {
 public:
  // Reads the file's text; `file` stands for its path in messages. INVALID_ARGUMENT for a field
  // that is malformed, or that would change the answers and is not supported; the message names it.
  static absl::StatusOr<PeftConfig> Parse(std::string_view text, std::string_view file);

  // The factor of a module's product, whose factors have `rank`.
  absl::StatusOr<float> Scale(std::string_view module, int32_t rank) const;

  const std::string& base() const { return base_; }
  bool use_dora() const { return use_dora_; }
  // Changes of the embedding hold for a head that is tied to it, too.
  bool ties_weights() const { return ties_weights_; }

 private:
  struct Pattern {
    std::string text;
    text::Regex regex;
    double value;
  };
  PeftConfig() = default;
  absl::Status ParsePatterns(const nlohmann::json& config, std::string_view json, const char* key,
                             std::vector<Pattern>* patterns);
  static absl::StatusOr<double> ValueOf(const std::vector<Pattern>& patterns,
                                        std::string_view module, double otherwise);

  std::string file_;
  std::string base_;
  double alpha_ = 8;
  double rank_ = 8;
  bool rslora_ = false;
  bool use_dora_ = false;
  bool ties_weights_ = false;
  std::vector<Pattern> alpha_patterns_, rank_patterns_;  // in the order of the file
};

}  // namespace heddle::engine
