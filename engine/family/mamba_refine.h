// Reads layers of Mamba-2 into a spec: what config.json and GGUF metadata say of them, whichever
// family has them.
// Private to engine/family. Errors as for Family::refine. Thread-safety: pure functions.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"

namespace heddle::engine {

// The length that llama.cpp gives models whose memory does not grow with the text.
inline constexpr int32_t kNoLimit = 1 << 20;

// Keys of config.json, and what the class has where they are absent.
struct Mamba2Keys {
  std::string_view n_heads = "mamba_n_heads";
  std::string_view n_groups = "mamba_n_groups";
  std::string_view state = "mamba_d_state";
  std::string_view taps = "mamba_d_conv";
  std::string_view head_dim = "mamba_d_head";
  std::string_view expand = "mamba_expand";  // heads have expand * hidden values; empty: n_heads *
                                             // head_dim
  std::string_view inner = {};               // a key that says how many in its place; empty: none
  std::string_view conv_bias = "mamba_conv_bias";
  std::string_view bias = "mamba_proj_bias";
  std::string_view norm_eps = "rms_norm_eps";
  std::string_view activation = "hidden_act";
  int32_t absent_groups = 1;
  int32_t absent_state = 256;
  int32_t absent_inner = 0;
  double absent_eps = 1e-5;
};

// A recurrence of Mamba-2 without heads; the gate comes before its norm, which is over each group.
RecurrenceSpec Mamba2(double norm_eps);

// The recurrence that all such layers have.
absl::StatusOr<RecurrenceSpec> ReadMamba2(const JsonSource& config, const Mamba2Keys& keys,
                                          const ModelSpec& spec);
// Takes note of keys that are about training, or about how the reference implementation computes.
void SkipMamba2Keys(const JsonSource& config);

// The names within `module`, "layers.{}.mamba" or alike.
void SetMamba2Names(std::string_view module, LayerNames* layer);

// The same of GGUF metadata; block `first` has one of these layers.
absl::StatusOr<RecurrenceSpec> ReadGgufMamba2(const GgufSource& source, const TensorFinder& find,
                                              int64_t first);
void SetGgufMamba2Names(LayerNames* layer);

// The heads of keys and values of each block of a GGUF file, 0 where it has no attention.
// `n_kv_heads`: where there is one.
absl::StatusOr<std::vector<int64_t>> ReadGgufKvHeads(const GgufSource& source, int32_t n_kv_heads,
                                                     const ModelSpec& spec);

// The same as the layers that recur: those without heads of keys.
struct RecurrentLayers {
  std::vector<bool> recurs;  // by layer
  int64_t first = 0;         // the first that does; the number of layers if none does
};
absl::StatusOr<RecurrentLayers> ReadGgufRecurrentLayers(const GgufSource& source,
                                                        const ModelSpec& spec);

// Names of a checkpoint whose layers are "layers.{}.norm" and "layers.{}.mixer" and nothing else.
// `set_names` sets those within a module: SetMamba2Names or alike.
NameMap MixerNames(void (*set_names)(std::string_view module, LayerNames* layer));

// Turns the layers of `recurs` into such recurrences.
void ApplyMamba2(const RecurrenceSpec& recurrence, const std::vector<bool>& recurs,
                 ModelSpec* spec);

// Turns all layers into such recurrences, which have nothing beside them.
void RecurEverywhere(const RecurrenceSpec& recurrence, ModelSpec* spec);

// Granite 4's and Bamba's files: layers recur where no key head is counted.
absl::Status RefineGgufMambaLayers(const GgufSource& source, const TensorFinder& find,
                                   ModelSpec* spec, NameMap* names);

}  // namespace heddle::engine
