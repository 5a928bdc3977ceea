#include "engine/model/capacity.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "engine/model/adapter_tables.h"
#include "engine/model/decoder.h"
#include "engine/model/local_executor.h"
#include "kernels/kv_cache.h"
#include "kernels/recurrence_slices.h"
#include "kernels/selection_scores.h"

namespace heddle::engine {
namespace {

// Rows of logits are held in multiples of this, at least one.
constexpr int32_t kLeastLogitRows = 64;
// Blocks of factors begin at multiples of this many bytes.
constexpr int64_t kFactorAlignment = 16;

bool HasSnapshots(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
    return layer.attention.recurrence.shape.taps > 0 || layer.attention.wkv.is_here();
  });
}

// Whether in all layers a row at another position has the same query, rotated further.
bool TurnsQueries(const ModelSpec& spec) {
  return !spec.learned_positions &&
         std::none_of(spec.layers.begin(), spec.layers.end(), [](const LayerSpec& layer) {
           const AttentionSpec& attention = layer.attention;
           return attention.qk_norms_last || attention.both_ways ||
                  attention.differential.is_here || attention.sharpen.factor != 0.0f ||
                  attention.conv.taps > 0 || attention.recurrence.is_here() ||
                  attention.wkv.is_here();
         });
}

// An indexer's queries would have to be rotated further, too.
bool ReadsPieces(const ModelSpec& spec) { return spec.indexer_top_k() == 0; }

bool HasWindows(const ModelSpec& spec) {
  return std::any_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& layer) { return layer.attention.window > 0; });
}

// Positions of a page if nobody says so: as many as make pages of keys as large as those of
// snapshots, of which a page has those of one group of layers.
int32_t PageTokensFor(const ModelSpec& spec, const CapacityOptions& options) {
  if (options.page_tokens != 0 || !HasSnapshots(spec)) {
    return options.page_tokens == 0 ? kUsualPageTokens : options.page_tokens;
  }
  int64_t row_bytes = 0, state_bytes = 0, layers = 0;
  for (const KvLayer& layer : KvLayers(spec)) {
    if (layer.shape.is_snapshot) {
      state_bytes += layer.shape.PageBytes(options.kv_dtype, 1);
      ++layers;
    } else {
      row_bytes += layer.shape.RowBytes(options.kv_dtype);
    }
  }
  constexpr int32_t kWithoutKeys = 512;
  if (row_bytes == 0) return kWithoutKeys;
  const int64_t group_bytes = state_bytes / std::min<int64_t>(layers, kMaxKvGroups - 1);
  int32_t tokens = std::max(kUsualPageTokens, kernels::kScanRows);
  while (tokens < kMaxPageTokens && tokens * row_bytes < group_bytes) tokens *= 2;
  return tokens;
}

absl::Status CheckOptions(const ModelSpec& spec, const CapacityOptions& options) {
  const int32_t page = options.page_tokens;
  if (page < 1 || page > kMaxPageTokens || (page & (page - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page-tokens is ", page, "; it must be a power of two from 1 to ", kMaxPageTokens));
  }
  if (HasSnapshots(spec) && page % kernels::kScanRows != 0) {
    return absl::InvalidArgumentError(absl::StrCat("page-tokens is ", page,
                                                   "; this model's recurrent layers need at least ",
                                                   kernels::kScanRows));
  }
  if (options.max_context < 0 || options.max_context > spec.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("max-context is ", options.max_context,
                                                   "; this model was made for at most ",
                                                   spec.max_context, " positions"));
  }
  if (options.max_batch_tokens < 1 || options.max_batch_seqs < 1) {
    return absl::InvalidArgumentError("max-batch-tokens and max-batch-seqs must be at least 1");
  }
  if (options.adapter_max_rank < 0 || options.adapter_max_rank > kernels::kMaxAdapterRank) {
    return absl::InvalidArgumentError(absl::StrCat("max-lora-rank is ", options.adapter_max_rank,
                                                   "; it must be from 1 to ",
                                                   kernels::kMaxAdapterRank));
  }
  return absl::OkStatus();
}

// The requested bytes of the pool, or a share of the rest, or as much as all sequences of the
// largest batch could use.
int64_t WantedKvBytes(int64_t free_bytes, int64_t most_useful_bytes,
                      const CapacityOptions& options) {
  if (options.kv_bytes > 0) return options.kv_bytes;
  const double share = options.kv_fraction > 0.0 ? options.kv_fraction : options.automatic_share;
  const auto bytes =
      static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, free_bytes)) * share);
  return options.kv_fraction > 0.0 ? bytes : std::min(bytes, most_useful_bytes);
}

// A user who asked for a pool that is too small should see that, and not the machine's memory.
absl::Status PoolTooSmall(int64_t asked_bytes, int64_t least_bytes, int32_t page_tokens) {
  return absl::InvalidArgumentError(
      absl::StrCat("--kv-memory is ", base::ShowBytes(asked_bytes), "; this model needs ",
                   base::ShowBytes(least_bytes), " at least, for one page of ", page_tokens,
                   " tokens (--page-tokens)"));
}

// The specs of all ranks.
std::span<const ModelSpec> PartsOf(const ModelSpec& spec, const CapacityOptions& options) {
  if (options.rank_specs.empty()) return {&spec, 1};
  return options.rank_specs;
}

// Those of all machines.
std::span<const ModelSpec> GroupOf(const ModelSpec& spec, const CapacityOptions& options) {
  return options.group_specs.empty() ? PartsOf(spec, options) : options.group_specs;
}

bool HasGroups(const Capacity& capacity) { return capacity.kv_layout.n_kv_groups() > 1; }

// Tells what the longest context takes of the pool, and what it would take without windows.
std::string WindowText(const Capacity& capacity) {
  const ExecutorLimits& limits = capacity.limits;
  const auto held = static_cast<double>(
      capacity.page_rule().MostPages(limits.max_context, limits.windows) * capacity.page_bytes);
  const double all = static_cast<double>(capacity.kv_bytes_per_token) * limits.max_context;
  return absl::StrFormat("of %d tokens sliding windows keep %.0f %%", limits.max_context,
                         100 * held / all);
}

// `least_bytes`: the memory that would suffice.
absl::Status DoesNotFit(const Capacity& capacity, const CapacityOptions& options, int32_t context,
                        int64_t pool_bytes, int64_t least_bytes) {
  const int64_t short_bytes = least_bytes - capacity.available_bytes;
  std::string message = absl::StrCat(
      "the model does not fit: ", base::ShowBytes(capacity.available_bytes),
      " of memory are free; ", "weights need ", base::ShowBytes(capacity.weight_bytes),
      ", workspace ", base::ShowBytes(capacity.workspace_bytes), " (--max-batch-tokens ",
      options.max_batch_tokens, "), and the KV pool ", base::ShowBytes(pool_bytes), " (",
      base::ShowBytes(capacity.kv_bytes_per_token), " per token)");
  if (options.kv_bytes == 0) {
    absl::StrAppend(&message, "; ", base::ShowBytes(options.reserve_bytes), " are kept free");
  }
  if (short_bytes > 0)
    absl::StrAppend(&message, "; ", base::ShowBytes(short_bytes), " are missing");
  absl::StrAppend(&message, "; a smaller --max-context (now ", context,
                  ") or --kv-memory would need less");
  return absl::ResourceExhaustedError(message);
}

// Messages of ranks elsewhere take this much on the rank of this machine: each peer's part of a sum
// or, where they are drawn from, of the logits, or the rows of the stage before; once as it comes
// and once in its place.
int64_t MessageBytes(const ModelSpec& part, int32_t logit_rows, const CapacityOptions& options) {
  const int64_t rows =
      options.max_batch_tokens * kernels::RowBytes(options.activation_dtype, part.hidden);
  int64_t bytes = part.n_stages > 1 ? rows : 0;  // their place is the decoder's
  for (int32_t rank = 0; part.is_part() && rank < part.world(); ++rank) {
    if (rank == part.rank) continue;
    const auto at = static_cast<size_t>(rank);
    const bool draws = part.stage == 0 && part.rank == 0;
    const int32_t vocab = draws ? part.vocab_borders[at + 1] - part.vocab_borders[at] : 0;
    bytes += 2 * std::max(rows, int64_t{logit_rows} * vocab * int64_t{sizeof(float)});
  }
  return bytes;
}

// Working memory of ops beside the decoder's buffers, where it grows with the rows of a step or
// with `threads`: that of the layer that needs most, as the CPU backend has it.
int64_t OpBytes(const ModelSpec& part, int64_t threads, const CapacityOptions& options) {
  const auto rows = int64_t{options.max_batch_tokens};
  int64_t floats = 0, scores = 0, choices = 0;
  for (const LayerSpec& layer : part.layers) {
    const AttentionSpec& attention = layer.attention;
    if (attention.recurrence.is_here()) {
      const kernels::RecurrenceShape& shape = attention.recurrence.shape;
      floats = std::max(floats, rows * kernels::WorkingFloats(shape) +
                                    threads * kernels::ThreadWorkingFloats(shape));
    }
    const IndexerSpec& indexer = attention.mla.indexer;
    if (indexer.is_here()) {
      scores = kernels::KeptScores(rows, part.max_context);
      choices = threads * kernels::SelectionThreadNumbers(indexer.n_heads, indexer.head_dim,
                                                          part.max_context, indexer.top_k);
    }
  }
  return (floats + scores + choices) * int64_t{sizeof(float)};
}

// Activations and logits of all ranks, and what ops and drafts need.
int64_t WorkspaceBytes(const ModelSpec& spec, int32_t logit_rows, const CapacityOptions& options) {
  constexpr int64_t kLogitBytes = sizeof(float);
  int64_t bytes = options.draft_workspace_bytes + int64_t{logit_rows} * spec.vocab * kLogitBytes;
  const auto parts = PartsOf(spec, options);
  const auto n_parts = static_cast<int64_t>(parts.size());  // which share the threads
  const int64_t threads = (std::max(options.cpu_threads, 0) + n_parts - 1) / n_parts;
  for (const ModelSpec& part : parts) {
    const int64_t logits = part.is_part() ? part.own_vocab() : 0;
    bytes += Decoder::ActivationBytes(part, options.max_batch_tokens, options.activation_dtype) +
             int64_t{logit_rows} * logits * kLogitBytes + OpBytes(part, threads, options);
    const bool receives = options.receives_messages && !options.group_specs.empty();
    if (receives) bytes += MessageBytes(part, logit_rows, options);
  }
  return bytes;
}

// An adapter takes the same pages of all ranks, as many as the rank with the smallest ones needs; a
// rank without heads has none otherwise.
void MakeRoomForAdapters(int64_t least, std::vector<int64_t>* pages) {
  for (int64_t& bytes : *pages) {
    bytes = (std::max(bytes, least) + kFactorAlignment - 1) / kFactorAlignment * kFactorAlignment;
  }
}

// Whether the first layers, those of the model alone, are in the same groups in both.
bool HasSameGroups(const KvLayout& alone, const KvLayout& with_drafter) {
  return alone.windows == with_drafter.windows &&
         std::equal(alone.layers.begin(), alone.layers.end(), with_drafter.layers.begin(),
                    [](const auto& a, const auto& b) { return a.group == b.group; });
}

// Sets the layout of keys and values, and what a token and a page of them take on all ranks.
void PlanKv(const ModelSpec& spec, const PageRule& rule, int32_t context,
            const CapacityOptions& options, Capacity* capacity) {
  std::vector<KvLayer> layers = KvLayers(spec);
  for (KvLayer layer : options.draft_kv_layers) {
    layer.shape.is_of_head = !options.rank_specs.empty();
    layers.push_back(layer);
  }
  capacity->kv_layout = PlanKvLayout(layers, rule, context, options.kv_dtype, options.one_kv_group);
  if (!options.draft_kv_layers.empty()) {
    capacity->drafter_keeps_groups = HasSameGroups(
        PlanKvLayout(KvLayers(spec), rule, context, options.kv_dtype, options.one_kv_group),
        capacity->kv_layout);
  }
  std::vector<int64_t>& pages = capacity->rank_page_bytes;
  int64_t largest = 0;  // page without the drafter's layers
  for (const ModelSpec& part : GroupOf(spec, options)) {
    const auto bytes = [&](bool with_drafter) {
      return KvLayoutOfRank(capacity->kv_layout, part, with_drafter)
          .PageBytes(options.kv_dtype, options.page_tokens);
    };
    pages.push_back(bytes(/*with_drafter=*/pages.empty()));
    largest = std::max(largest, bytes(false));
  }
  if (pages.size() > 1 && options.adapter_max_rank > 0) MakeRoomForAdapters(largest / 2, &pages);
  for (const ModelSpec& part : PartsOf(spec, options)) {
    capacity->page_bytes += pages[static_cast<size_t>(part.index())];
    capacity->kv_bytes_per_token += KvBytesPerToken(KvLayers(part), options.kv_dtype);
    if (part.index() > 0) continue;
    capacity->kv_bytes_per_token += KvBytesPerToken(options.draft_kv_layers, options.kv_dtype);
  }
}

// As they were given, with the page size that the model's state needs; a step of a model that reads
// whole texts takes any of them.
CapacityOptions OptionsFor(const ModelSpec& spec, const CapacityOptions& given) {
  CapacityOptions options = given;
  options.page_tokens = PageTokensFor(spec, given);
  if (spec.reads_whole_texts()) {
    const int32_t longest = given.max_context > 0 ? given.max_context : spec.max_context;
    options.max_batch_tokens = std::max(given.max_batch_tokens, longest);
  }
  return options;
}

int32_t MaxDraftTokens(const ModelSpec& spec) {
  if (spec.reads_whole_texts()) return 0;
  return HasSnapshots(spec) ? kernels::kScanRows - 1 : LocalExecutor::kMaxDraftTokens;
}

}  // namespace

int32_t SnapshotFloats(const kernels::RecurrenceShape& shape) {
  return static_cast<int32_t>(kernels::RecurrenceState(shape).floats);
}

std::vector<KvLayer> KvLayers(const ModelSpec& spec) {
  std::vector<KvLayer> layers;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    if (const kernels::RecurrenceShape& shape = attention.recurrence.shape; shape.taps > 0) {
      const bool is_here = shape.n_heads > 0;
      layers.push_back({.shape = {.n_kv_heads = is_here ? 1 : 0,
                                  .head_dim = is_here ? SnapshotFloats(shape) : 0,
                                  .keys_alone = true,
                                  .is_state = true,
                                  .is_snapshot = true},
                        .window = std::max(2, shape.taps)});
      continue;
    }
    if (const WkvSpec& wkv = attention.wkv; wkv.is_here()) {
      const kernels::WkvState state(wkv.n_heads, wkv.head_dim, spec.hidden);
      layers.push_back({.shape = {.n_kv_heads = 1,
                                  .head_dim = static_cast<int32_t>(state.floats),
                                  .keys_alone = true,
                                  .is_state = true,
                                  .is_snapshot = true},
                        .window = 2});
      continue;
    }
    if (attention.conv.taps > 0) {
      const int32_t channels = attention.conv.channels;
      layers.push_back({.shape = {.n_kv_heads = channels > 0 ? 1 : 0,
                                  .head_dim = channels,
                                  .keys_alone = true,
                                  .is_state = true},
                        .window = attention.conv.taps});
      continue;
    }
    // A text that is read whole leaves nothing behind: no window passes any of it.
    layers.push_back({.shape = {.n_kv_heads = attention.n_heads == 0 ? 0 : attention.cached_heads(),
                                .head_dim = attention.cached_dim(),
                                .keys_alone = attention.mla.kv_rank > 0,
                                .index_dim = attention.mla.indexer.head_dim},
                      .window = attention.both_ways ? 0 : attention.window});
  }
  return layers;
}

KvLayout KvLayoutOfRank(const KvLayout& layout, const ModelSpec& rank, bool is_head) {
  std::vector<KvLayer> layers = KvLayers(rank);
  // The drafter's layers are behind the model's.
  for (size_t i = layers.size(); is_head && i < layout.layers.size(); ++i) {
    const int32_t place = layout.layers[i].place;
    const bool has_place = place != KvLayout::kNowhere;
    layers.push_back(
        {.shape = has_place ? layout.places[static_cast<size_t>(place)] : KvLayerShape{}});
  }
  return WithShapes(layout, layers);
}

namespace {

int32_t LogitRows(const CapacityOptions& options) {
  const int32_t rows = std::min(options.logit_rows, options.max_batch_seqs);
  return std::max(1, (rows + kLeastLogitRows - 1) / kLeastLogitRows) * kLeastLogitRows;
}

// A stage without layers has room for any number.
int64_t PagesIn(int64_t bytes, int64_t page_bytes, int32_t page_tokens) {
  const int64_t most = std::numeric_limits<int32_t>::max() / page_tokens;
  return page_bytes == 0 ? most : std::min<int64_t>(bytes / page_bytes, most);
}

}  // namespace

absl::StatusOr<Capacity> PlanCapacity(const ModelSpec& spec, int64_t weight_bytes,
                                      const HostMemory& memory, const CapacityOptions& given) {
  const CapacityOptions options = OptionsFor(spec, given);
  if (absl::Status status = CheckOptions(spec, options); !status.ok()) return status;
  Capacity capacity;
  weight_bytes += options.draft_weight_bytes;
  capacity.weight_bytes = weight_bytes;
  capacity.available_bytes = memory.available_bytes;
  capacity.logit_rows = LogitRows(options);
  capacity.workspace_bytes = WorkspaceBytes(spec, capacity.logit_rows, options);
  const int32_t seqs = std::min(options.max_batch_seqs, options.max_batch_tokens);
  // Each sequence may have an adapter of its own, and one more is bound beside those in flight.
  int32_t adapter_slots = options.adapter_max_rank > 0 ? 2 * seqs : 0;
  PageRule rule{.page_tokens = options.page_tokens,
                .window_grain = std::max(kernels::kContextGrain, options.page_tokens),
                .step_tokens = options.max_batch_tokens};
  const int32_t context = options.max_context > 0 ? options.max_context : spec.max_context;
  PlanKv(spec, rule, context, options, &capacity);
  rule.state_groups = capacity.kv_layout.n_state_groups;
  const std::vector<int32_t>& windows = capacity.kv_layout.windows;
  if (capacity.page_bytes == 0 || capacity.page_bytes % kFactorAlignment != 0) adapter_slots = 0;
  for (const ModelSpec& part : PartsOf(spec, options)) {
    capacity.workspace_bytes += AdapterTables::Bytes(part, adapter_slots);
  }

  const int64_t page_bytes = capacity.page_bytes;
  const int64_t pages_per_sequence = rule.MostPages(context, windows);
  const int64_t most_useful_bytes = pages_per_sequence * options.max_batch_seqs * page_bytes;
  const int64_t fixed_bytes = weight_bytes + capacity.workspace_bytes;
  const int64_t free_bytes = memory.available_bytes - fixed_bytes - options.reserve_bytes;
  const int64_t wanted = WantedKvBytes(free_bytes, most_useful_bytes, options);

  const int64_t pages = PagesIn(wanted, page_bytes, options.page_tokens);
  const int64_t least_pages =
      options.max_context > 0 ? pages_per_sequence : capacity.kv_layout.n_groups();
  if (options.kv_bytes > 0 && pages < least_pages && options.max_context == 0) {
    return PoolTooSmall(options.kv_bytes, least_pages * page_bytes, options.page_tokens);
  }
  // A pool of a requested size may use the reserve.
  const int64_t least_bytes =
      fixed_bytes +
      (options.kv_bytes > 0 ? wanted : options.reserve_bytes + least_pages * page_bytes);
  if (pages < least_pages || least_bytes > memory.available_bytes) {
    const int64_t pool_bytes = std::max(wanted, least_pages * page_bytes);
    return DoesNotFit(capacity, options, context, pool_bytes, least_bytes);
  }
  capacity.limits = {.num_pages = static_cast<int32_t>(pages),
                     .page_tokens = options.page_tokens,
                     .max_context = rule.LongestWithin(pages, windows, context),
                     .max_batch_tokens = options.max_batch_tokens,
                     .max_batch_seqs = seqs,
                     .num_host_pages = static_cast<int32_t>(
                         std::min<int64_t>(options.host_kv_bytes / std::max<int64_t>(1, page_bytes),
                                           std::numeric_limits<int32_t>::max() - pages)),
                     .vocab = spec.vocab,
                     .windows = windows,
                     .window_grain = rule.window_grain,
                     .state_groups = rule.state_groups,
                     .state_is_snapshot = HasSnapshots(spec),
                     .segments = spec.n_segments(),
                     .layers_have_windows = HasWindows(spec),
                     .reads_pieces = ReadsPieces(spec),
                     .turns_queries = ReadsPieces(spec) && TurnsQueries(spec),
                     .whole_prompts = spec.reads_whole_texts(),
                     .max_draft_tokens = MaxDraftTokens(spec),
                     .max_ahead_tokens = options.max_ahead_tokens,
                     .rows_beyond_guesses = options.rows_beyond_guesses,
                     .drafter_reads_features = options.drafter_reads_features,
                     .drafter_features = options.drafter_features,
                     .pipeline_stages = PartsOf(spec, options).front().n_stages,
                     .page_bytes = page_bytes,
                     .adapter_slots = adapter_slots,
                     .adapter_max_rank = options.adapter_max_rank,
                     .adapter_dtype = options.adapter_dtype};
  capacity.context_reduced = capacity.limits.max_context < context;
  capacity.kv_bytes = pages * page_bytes;
  return capacity;
}

std::string DescribeCapacity(const Capacity& capacity) {
  constexpr int64_t kShortContext = 1024;  // positions of a usual conversation
  const int64_t tokens = capacity.pool_tokens();
  const int64_t context = capacity.limits.max_context;
  const int64_t most = capacity.limits.max_batch_seqs;
  auto count_of = [&](int64_t each) {
    const int64_t pages = capacity.page_rule().MostPages(each, capacity.limits.windows);
    return std::min(capacity.limits.num_pages / pages, most);
  };
  auto users = [&](int64_t each) {
    const int64_t count = count_of(each);
    return absl::StrCat(count, count == 1 ? " user" : " users", " of ", each, " tokens");
  };
  std::string text = absl::StrCat("KV memory of ", base::ShowBytes(capacity.kv_bytes), " holds ",
                                  HasGroups(capacity)                ? "at least "
                                  : capacity.limits.state_groups > 0 ? "up to "
                                                                     : "",
                                  tokens, " tokens: ", users(context));
  if (context > kShortContext && count_of(kShortContext) > count_of(context)) {
    absl::StrAppend(&text, ", or ", users(kShortContext));
  }
  absl::StrAppend(&text, " at a time; ");
  if (tokens / std::min(context, kShortContext) > most) {
    absl::StrAppend(&text, "more users: --max-batch-seqs (now ", most, "), more tokens: ");
  } else {
    absl::StrAppend(&text, "for more: ");
  }
  absl::StrAppend(&text, "--kv-memory");
  if (capacity.limits.num_host_pages > 0) {
    absl::StrAppend(&text, "; the host keeps ",
                    int64_t{capacity.limits.num_host_pages} / capacity.kv_layout.n_kv_groups() *
                        capacity.limits.page_tokens,
                    " more tokens of prompts and paused answers (--host-kv-memory)");
  }
  if (HasGroups(capacity)) absl::StrAppend(&text, "; ", WindowText(capacity));
  if (capacity.limits.state_groups > 0) {
    absl::StrAppend(&text, "; of these, ", base::ShowBytes(capacity.state_bytes()),
                    " a user are the state of its recurrent layers");
  }
  if (capacity.context_reduced) {
    absl::StrAppend(&text, " (the model's own context is longer than this memory)");
  }
  return text;
}

}  // namespace heddle::engine
