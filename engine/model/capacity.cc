#include "engine/model/capacity.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/decoder.h"
#include "engine/model/local_executor.h"
#include "kernels/kv_cache.h"

namespace heddle::engine {
namespace {

// Left to the operating system, the page cache and the front end's buffers.
constexpr int64_t kReserveBytes = int64_t{256} << 20;
// Of what is left after weights, workspace and reserve, the automatic pool takes this much.
constexpr double kAutomaticShare = 0.9;

// Positions that any layer's row sees, itself included; 0: some layer sees all.
int32_t LargestWindow(const ModelSpec& spec) {
  int32_t largest = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention.n_heads == 0) continue;
    if (layer.attention.window == 0) return 0;
    largest = std::max(largest, layer.attention.window);
  }
  return largest;
}

// Positions that a sequence of `tokens` holds at a time. With windows in all layers that is no more
// than a window, the grain in which it gives positions back, and a step, the pages at either end
// and a copy included.
int64_t MostHeld(int64_t tokens, int32_t window, int32_t grain, int32_t step_tokens,
                 int32_t page_tokens) {
  if (window == 0) return tokens;
  return std::min(tokens, int64_t{window} + grain + step_tokens + 3 * int64_t{page_tokens});
}

absl::Status CheckOptions(const ModelSpec& spec, const CapacityOptions& options) {
  const int32_t page = options.page_tokens;
  if (page < 1 || page > 4096 || (page & (page - 1)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page-tokens is ", page, "; it must be a power of two from 1 to 4096"));
  }
  if (options.max_context < 0 || options.max_context > spec.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("max-context is ", options.max_context,
                                                   "; this model was made for at most ",
                                                   spec.max_context, " positions"));
  }
  if (options.max_batch_tokens < 1 || options.max_batch_seqs < 1) {
    return absl::InvalidArgumentError("max-batch-tokens and max-batch-seqs must be at least 1");
  }
  return absl::OkStatus();
}

// The pool's bytes as asked for, or a share of what is left, or as much as every sequence of the
// largest batch could use.
int64_t WantedKvBytes(int64_t free_bytes, int64_t most_useful_bytes,
                      const CapacityOptions& options) {
  if (options.kv_bytes > 0) return options.kv_bytes;
  const double share = options.kv_fraction > 0.0 ? options.kv_fraction : kAutomaticShare;
  const auto bytes =
      static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, free_bytes)) * share);
  return options.kv_fraction > 0.0 ? bytes : std::min(bytes, most_useful_bytes);
}

}  // namespace

std::vector<KvLayerShape> KvShapes(const ModelSpec& spec) {
  std::vector<KvLayerShape> shapes;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    shapes.push_back({attention.n_heads == 0 ? 0 : attention.n_kv_heads, attention.head_dim,
                      attention.mla.kv_rank > 0});
  }
  return shapes;
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 4) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

absl::StatusOr<Capacity> PlanCapacity(const ModelSpec& spec, int64_t weight_bytes,
                                      const HostMemory& memory, const CapacityOptions& options) {
  if (absl::Status status = CheckOptions(spec, options); !status.ok()) return status;
  Capacity capacity;
  capacity.weight_bytes = weight_bytes;
  capacity.available_bytes = memory.available_bytes;
  capacity.workspace_bytes =
      Decoder::ActivationBytes(spec, options.max_batch_tokens, options.activation_dtype) +
      int64_t{LocalExecutor::kLogitBlockRows} * spec.vocab * int64_t{sizeof(float)};
  capacity.kv_bytes_per_token = KvBytesPerToken(KvShapes(spec), options.kv_dtype);

  const int64_t page_bytes = capacity.kv_bytes_per_token * options.page_tokens;
  const int32_t context = options.max_context > 0 ? options.max_context : spec.max_context;
  const int32_t window = LargestWindow(spec);
  const int32_t grain = std::max(kernels::kContextGrain, options.page_tokens);
  const int64_t held =
      MostHeld(context, window, grain, options.max_batch_tokens, options.page_tokens);
  const int64_t pages_per_sequence = (held + options.page_tokens - 1) / options.page_tokens;
  const int64_t most_useful_bytes = pages_per_sequence * options.max_batch_seqs * page_bytes;
  const int64_t fixed_bytes = weight_bytes + capacity.workspace_bytes;
  const int64_t free_bytes = memory.available_bytes - fixed_bytes - kReserveBytes;
  const int64_t wanted = WantedKvBytes(free_bytes, most_useful_bytes, options);

  const int64_t pages =
      std::min<int64_t>(wanted / std::max<int64_t>(1, page_bytes),
                        std::numeric_limits<int32_t>::max() / options.page_tokens);
  const int64_t least_pages = options.max_context > 0 ? pages_per_sequence : 1;
  if (fixed_bytes > memory.available_bytes || pages < least_pages ||
      (options.kv_bytes > 0 && fixed_bytes + wanted > memory.available_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the model does not fit: ", FormatBytes(memory.available_bytes), " of memory are free; ",
        "weights need ", FormatBytes(weight_bytes), ", workspace ",
        FormatBytes(capacity.workspace_bytes), " (--max-batch-tokens ", options.max_batch_tokens,
        "), and the KV pool ", FormatBytes(std::max(wanted, least_pages * page_bytes)), " (",
        FormatBytes(capacity.kv_bytes_per_token), " per token); a smaller --max-context (now ",
        context, ") or --kv-memory would need less"));
  }
  capacity.limits = {.num_pages = static_cast<int32_t>(pages),
                     .page_tokens = options.page_tokens,
                     .max_context = pages >= pages_per_sequence
                                        ? context
                                        : static_cast<int32_t>(pages * options.page_tokens),
                     .max_batch_tokens = options.max_batch_tokens,
                     .max_batch_seqs = std::min(options.max_batch_seqs, options.max_batch_tokens),
                     .num_host_pages = static_cast<int32_t>(
                         std::min<int64_t>(options.host_kv_bytes / std::max<int64_t>(1, page_bytes),
                                           std::numeric_limits<int32_t>::max() - pages)),
                     .vocab = spec.vocab,
                     .window = window,
                     .window_grain = grain};
  capacity.context_reduced = capacity.limits.max_context < context;
  capacity.kv_bytes = pages * page_bytes;
  return capacity;
}

std::string DescribeCapacity(const Capacity& capacity) {
  constexpr int64_t kShortContext = 1024;  // of a usual conversation
  const int64_t tokens = capacity.pool_tokens();
  const int64_t context = capacity.limits.max_context;
  const int64_t most = capacity.limits.max_batch_seqs;
  auto users = [&](int64_t each) {
    const ExecutorLimits& limits = capacity.limits;
    const int64_t held = MostHeld(each, limits.window, limits.window_grain, limits.max_batch_tokens,
                                  limits.page_tokens);
    const int64_t pages = (held + limits.page_tokens - 1) / limits.page_tokens;
    const int64_t count = std::min(limits.num_pages / pages, most);
    return absl::StrCat(count, count == 1 ? " user" : " users", " of ", each, " tokens");
  };
  std::string text = absl::StrCat("KV memory of ", FormatBytes(capacity.kv_bytes), " holds ",
                                  tokens, " tokens: ", users(context));
  if (context > kShortContext) absl::StrAppend(&text, ", or ", users(kShortContext));
  absl::StrAppend(&text, " at a time; ");
  if (tokens / std::min(context, kShortContext) > most) {
    absl::StrAppend(&text, "more users: --max-batch-seqs (now ", most, "), more tokens: ");
  } else {
    absl::StrAppend(&text, "for more: ");
  }
  absl::StrAppend(&text, "--kv-memory");
  if (capacity.limits.num_host_pages > 0) {
    absl::StrAppend(&text, "; the host keeps ",
                    int64_t{capacity.limits.num_host_pages} * capacity.limits.page_tokens,
                    " more tokens of prompts and paused answers (--host-kv-memory)");
  }
  if (capacity.context_reduced) {
    absl::StrAppend(&text, " (the model's own context is longer than this memory)");
  }
  return text;
}

}  // namespace heddle::engine
