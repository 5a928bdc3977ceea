// Reads the output of `heddle bench --json`: measured speeds of a model on a machine, one batch
// size per line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

struct ProfilePoint {
  int64_t batch = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double prefill_tok_s = 0;  // over all sequences, like decode_tok_s
  double decode_tok_s = 0;
  double read_gb_s = 0;  // while decoding
  double gops = 0;       // during prompts
};

struct Profile {
  std::string model;    // a path, or the name of a built-in shape
  std::string weights;  // format
  std::string kv_type;
  std::string device;
  std::vector<ProfilePoint> points;  // at least one
};

// Other fields of a profile are ignored. INVALID_ARGUMENT with name:line, what was found and what
// is expected, for the first wrong line, for lines of several models, and for an empty file.
absl::StatusOr<Profile> ReadProfile(std::string_view text, std::string_view name);

}  // namespace heddle::server
