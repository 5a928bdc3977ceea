// The interface of an instruction set's kernels for recurrences; see kernel_table.h for what such
// sources may include, and kernels/recurrence.h for the arithmetic.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {

constexpr int32_t kPartRows = 16;  // kernels::kScanRows

// Channels of one row behind the convolution and SiLU, and, if `eps` > 0, as a vector of length
// `scale`: x * scale / sqrt(sum of x^2 + eps).
struct MixRowArgs {
  const float* const* inputs;  // [taps] of [dim]; nullptr: zeros
  const float* weight;         // [taps] rows of [dim], weight_stride apart
  int64_t weight_stride;
  const float* bias;  // [dim] or nullptr
  int32_t taps;
  int64_t dim;
  float eps;
  float scale;
  float* out;
};

// g and gain of a row's heads, of which each has a number in the row and constants.
struct StepRowArgs {
  const float* steps;  // [n] a
  const float* betas;  // [n] b of the delta rule; nullptr: the gain is the step
  const float* bias;   // [n]
  const float* decay;  // [n]
  float min_step;      // without betas
  float max_step;
  int32_t n;
  float* decays;  // [n] g
  float* gains;   // [n] beta or dt
};

// Products of a row's k and q with the keys of its part.
struct DotArgs {
  const float* const* rows;  // [n_rows] of [dim]
  int32_t n_rows;            // 1 or 2
  const float* const* keys;  // [n_keys] of [dim]
  int32_t n_keys;            // from 1 to kPartRows
  int32_t dim;
  float* out;  // [n_rows, kPartRows], zeros behind n_keys
};

// Rows [first, first + rows) of a part, of one head.
struct ScanArgs {
  const float* state;              // S [key_dim, value_dim] where the part begins
  const float* const* key_rows;    // [rows] k of these rows [key_dim]
  const float* const* query_rows;  // [rows] q
  const float* const* value_rows;  // [rows] v
  const float* const* dots;        // [rows] of DotArgs::out: of k, if delta, and of q
  const float* steps;              // [rows] g
  const float* gains;              // [rows] beta or dt
  float skip;
  bool delta;
  int32_t first;
  int32_t rows;
  int32_t key_dim;
  int32_t value_dim;
  float* updates;     // u [kPartRows, value_dim]: those before `first` are read, these are written
  float* decays;      // [kPartRows] likewise: sums of g from the part's first row on
  float* const* out;  // [rows] o [value_dim]
  float* scratch;     // PartScratchFloats(value_dim)
};
// The working memory of a scan or of a fold, in floats.
constexpr int64_t PartScratchFloats(int64_t value_dim) { return 2 * kPartRows * value_dim; }

// S behind a whole part.
struct FoldArgs {
  const float* state;
  const float* const* keys;  // [kPartRows] k [key_dim]
  const float* updates;      // [kPartRows, value_dim]
  const float* decays;       // [kPartRows]
  int32_t key_dim;
  int32_t value_dim;
  float* out;      // S; may be `state`
  float* scratch;  // PartScratchFloats(value_dim)
};

struct GateRowArgs {
  const float* gate;  // z [dim]
  const float* norm;  // see RecurrenceArgs
  int64_t dim;
  int64_t width;
  bool norm_per_value;
  bool gates_first;
  float eps;
  float* row;  // [dim], in place
};

constexpr int32_t kBlockChannels = 16;  // kernels::kChannelBlock

// Rows of a selective scan over channels, which begin with a block: dt, v, z and what is written of
// them, `stride` elements apart each. Blocks follow each other in S and in the decays.
struct SelectRowsArgs {
  const float* steps;  // what dt is the softplus of; `kept`: dt itself
  const float* values;
  const float* gates;    // nullptr: out is not gated
  const float* keys;     // k [state_dim]
  const float* queries;  // q [state_dim]
  int64_t step_stride;   // of gates, too
  int64_t value_stride;  // of out, too
  int64_t key_stride;    // of queries, too
  const float* decay;    // [blocks, state_dim, kBlockChannels]
  const float* skip;     // [channels] or nullptr
  int32_t rows;          // from 1 to kPartRows
  int32_t state_dim;
  int64_t channels;
  bool kept;           // rows that only move the state on; there are no gates, queries and out
  float* state;        // [blocks, state_dim, kBlockChannels], in place
  float* out;          // may be `values`
  float* kept_steps;   // the rows' dt and v, kept_stride apart, or nullptr
  float* kept_values;  // likewise
  int64_t kept_stride;
};

struct RecurrenceKernels {
  void (*mix)(const MixRowArgs& args);
  void (*steps)(const StepRowArgs& args);
  void (*dots)(const DotArgs& args);
  void (*scan)(const ScanArgs& args);
  void (*fold)(const FoldArgs& args);
  void (*gate)(const GateRowArgs& args);
  // x[i] *= sigmoid(gate[i])
  void (*gate_elements)(const float* gate, int64_t n, float* x);
  void (*select)(const SelectRowsArgs& args);
};

extern const RecurrenceKernels kRecurrencePortable;
#if defined(__x86_64__)
extern const RecurrenceKernels kRecurrenceAvx2;
extern const RecurrenceKernels kRecurrenceAvx512;
#endif

}  // namespace heddle::kernels::cpu
