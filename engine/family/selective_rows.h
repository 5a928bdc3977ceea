// Rows of the family table for families with layers of the first Mamba, selective scans: those that
// have nothing else (Mamba, Falcon-Mamba), and Jamba, with attention in some layers and experts in
// some.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"

namespace heddle::engine {

// `llama`: the row that they are variants of.
std::vector<Family> SelectiveRows(const Family& llama);

// Keys of config.json.
struct SelectiveKeys {
  std::string_view state = "state_size";
  std::string_view taps = "conv_kernel";
  std::string_view rank = "time_step_rank";
  std::string_view expand = "expand";
  std::string_view inner = "intermediate_size";  // empty: it says something else
  std::string_view conv_bias = "use_conv_bias";
  std::string_view bias = "use_bias";
};
// Those of models in which other layers have sizes, too.
inline constexpr SelectiveKeys kHybridSelectiveKeys = {.state = "mamba_d_state",
                                                       .taps = "mamba_d_conv",
                                                       .rank = "mamba_dt_rank",
                                                       .expand = "mamba_expand",
                                                       .inner = {},
                                                       .conv_bias = "mamba_conv_bias",
                                                       .bias = "mamba_proj_bias"};

// The selective scan that the keys describe, without norms of its factors.
absl::StatusOr<RecurrenceSpec> ReadSelective(const JsonSource& config, const SelectiveKeys& keys,
                                             int32_t hidden);
// The names within `module`, "layers.{}.mamba" or alike.
void SetSelectiveNames(std::string_view module, LayerNames* layer);

}  // namespace heddle::engine
