#include "engine/model/capacity.h"

#include <filesystem>
#include <fstream>

#include "catch2/catch.hpp"
#include "engine/model/decoder.h"
#include "engine/model/random_model.h"

namespace heddle::engine {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// TinyLlama-1.1B's shape: 22 layers, 4 KV heads of 64.
ModelSpec TinyLlama() {
  ModelSpec spec;
  spec.hidden = 2048;
  spec.vocab = 32000;
  spec.max_context = 2048;
  LayerSpec layer;
  layer.attention.n_heads = 32;
  layer.attention.n_kv_heads = 4;
  layer.attention.head_dim = 64;
  layer.mlp.inter = 5632;
  spec.layers.assign(22, layer);
  return spec;
}

TEST_CASE("KV bytes per token are two vectors per layer and KV head", "[unit]") {
  auto capacity = PlanCapacity(TinyLlama(), 2 * kGiB, {16 * kGiB, 16 * kGiB}, {});
  REQUIRE(capacity.ok());
  CHECK(capacity->kv_bytes_per_token == 2 * 22 * 4 * 64 * 2);  // F16
}

TEST_CASE("A drafter's layers take their part of every page, its weights and buffers of memory",
          "[unit]") {
  CapacityOptions options;
  options.kv_bytes = kGiB;
  const auto alone = PlanCapacity(TinyLlama(), 2 * kGiB, {16 * kGiB, 16 * kGiB}, options);
  options.draft_kv_layers.assign(2, {.shape = {.n_kv_heads = 4, .head_dim = 64}});
  options.draft_weight_bytes = kGiB / 8;
  options.draft_workspace_bytes = 1000;
  options.max_ahead_tokens = 16;
  const auto with = PlanCapacity(TinyLlama(), 2 * kGiB, {16 * kGiB, 16 * kGiB}, options);
  REQUIRE(alone.ok());
  REQUIRE(with.ok());
  CHECK(with->kv_bytes_per_token == 2 * (22 + 2) * 4 * 64 * 2);
  CHECK(alone->limits.num_pages == 2978);  // 1 GiB / (22 layers * 1 KiB * 16 positions)
  CHECK(with->limits.num_pages == 2730);   // the same with 24 layers
  CHECK(with->weight_bytes == 2 * kGiB + kGiB / 8);
  CHECK(with->workspace_bytes == alone->workspace_bytes + 1000);
  CHECK(with->kv_layout.layers.size() == 24);
  CHECK(with->limits.max_ahead_tokens == 16);
}

// Bytes of a plan's workspace beside the decoder's buffers and the logits.
int64_t OpBytesOf(const ModelSpec& spec, const CapacityOptions& options) {
  const auto capacity = PlanCapacity(spec, kGiB, {64 * kGiB, 64 * kGiB}, options);
  REQUIRE(capacity.ok());
  return capacity->workspace_bytes - int64_t{capacity->logit_rows} * spec.vocab * 4 -
         Decoder::ActivationBytes(spec, options.max_batch_tokens, options.activation_dtype);
}

TEST_CASE("Working memory of recurrences and of choices of positions is part of the workspace",
          "[unit]") {
  CapacityOptions options;
  options.max_batch_tokens = 1000;
  CHECK(OpBytesOf(TinyLlama(), options) == 0);
  ModelSpec recurs = TinyLlama();
  recurs.layers.front().attention = {};
  recurs.layers.front().attention.recurrence.shape = {
      .n_heads = 8, .n_key_heads = 4, .key_dim = 128, .value_dim = 64, .taps = 4};
  // q, k and v, steps and gains, and products of q and of k with 16 keys.
  CHECK(OpBytesOf(recurs, options) == 1000 * 4 * (2 * 4 * 128 + 8 * 64 + 2 * 8 + 2 * 4 * 16));
  // Each thread has an S and 32 rows of v beside them.
  options.cpu_threads = 2;
  CHECK(OpBytesOf(recurs, options) ==
        4 * (1000 * (2 * 4 * 128 + 8 * 64 + 2 * 8 + 2 * 4 * 16) + 2 * (128 + 32) * 64));
  options.cpu_threads = 0;
  ModelSpec chooses = TinyLlama();
  chooses.layers.front().attention.mla.indexer = {.n_heads = 4, .head_dim = 64, .top_k = 100};
  CHECK(OpBytesOf(chooses, options) == 1000 * 2048 * 4);
  chooses.max_context = 1 << 17;
  CHECK(OpBytesOf(chooses, options) == 16 << 20);
  // Each thread copies the scores of a row, and in short contexts turns 512 keys.
  options.cpu_threads = 3;
  CHECK(OpBytesOf(chooses, options) == (16 << 20) + 3 * 4 * ((1 << 17) + 112));
  chooses.max_context = 512;
  CHECK(OpBytesOf(chooses, options) == 1000 * 512 * 4 + 3 * 4 * (512 * 64 + 4 * 32));
}

TEST_CASE("A KV cache in 8 bits halves the bytes per token, and int8 adds its scales", "[unit]") {
  CapacityOptions options;
  options.kv_dtype = kernels::DType::kF8E4M3;
  auto fp8 = PlanCapacity(TinyLlama(), 2 * kGiB, {16 * kGiB, 16 * kGiB}, options);
  options.kv_dtype = kernels::DType::kInt8;
  auto int8 = PlanCapacity(TinyLlama(), 2 * kGiB, {16 * kGiB, 16 * kGiB}, options);
  REQUIRE(fp8.ok());
  REQUIRE(int8.ok());
  CHECK(fp8->kv_bytes_per_token == 2 * 22 * 4 * 64);
  CHECK(int8->kv_bytes_per_token == 2 * 22 * 4 * (64 + 4));
}

TEST_CASE("Latent attention keeps one vector per layer, layers without attention nothing",
          "[unit]") {
  ModelSpec spec = TinyLlama();
  for (LayerSpec& layer : spec.layers) {
    layer.attention.n_kv_heads = 1;
    layer.attention.head_dim = 576;
    layer.attention.mla = {.kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128};
  }
  spec.layers[3].attention = {};
  auto capacity = PlanCapacity(spec, 2 * kGiB, {16 * kGiB, 16 * kGiB}, {});
  REQUIRE(capacity.ok());
  CHECK(capacity->kv_bytes_per_token == 21 * 576 * 2);  // F16
}

// Grouped queries with one layer of other heads, and latent attention with a layer that has none.
std::vector<ModelSpec> SpecsOfEachKind() {
  ModelSpec grouped = TinyLlama();
  grouped.layers.resize(3);
  grouped.layers[1].attention.n_kv_heads = 1;
  grouped.layers[1].attention.head_dim = 80;
  grouped.layers[2].attention.window = 64;
  ModelSpec latent = TinyLlama();
  latent.layers.resize(3);
  for (LayerSpec& layer : latent.layers) {
    layer.attention.n_kv_heads = 1;
    layer.attention.head_dim = 72;
    layer.attention.mla = {.kv_rank = 64, .nope_dim = 16, .rope_dim = 8, .v_dim = 16};
  }
  latent.layers[1].attention = {};
  return {grouped, latent};
}

TEST_CASE("What is planned for the KV cache is what is taken, for every type and kind of layer",
          "[unit]") {
  auto device = kernels::CreateCpuDevice({.num_threads = 1});
  REQUIRE(device.ok());
  using kernels::DType;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kInt8}) {
    for (const ModelSpec& spec : SpecsOfEachKind()) {
      INFO(kernels::Info(dtype).name);
      CapacityOptions options{.kv_bytes = 1'000'000, .kv_dtype = dtype};
      const auto capacity = PlanCapacity(spec, kGiB, {16 * kGiB, 16 * kGiB}, options);
      REQUIRE(capacity.ok());
      const ExecutorLimits& limits = capacity->limits;
      const auto storage = KvStorage::Create(**device, capacity->kv_layout, dtype, limits.num_pages,
                                             limits.page_tokens);
      REQUIRE(storage.ok());
      CHECK(storage->page_bytes() * limits.num_pages == capacity->kv_bytes);
      CHECK(storage->page_bytes() == capacity->page_bytes);
    }
  }
}

TEST_CASE("An explicit pool is taken as it is, in whole pages", "[unit]") {
  CapacityOptions options;
  options.kv_bytes = 100'000'000;
  auto capacity = PlanCapacity(TinyLlama(), kGiB, {16 * kGiB, 16 * kGiB}, options);
  REQUIRE(capacity.ok());
  CHECK(capacity->limits.num_pages == 100'000'000 / (22528 * 16));
  CHECK(capacity->kv_bytes <= 100'000'000);
  CHECK(capacity->limits.max_context == 2048);
  CHECK_FALSE(capacity->context_reduced);
}

TEST_CASE("The automatic pool stops at what the largest batch can use", "[unit]") {
  CapacityOptions options;
  options.max_batch_seqs = 4;
  auto capacity = PlanCapacity(TinyLlama(), kGiB, {256 * kGiB, 256 * kGiB}, options);
  REQUIRE(capacity.ok());
  CHECK(capacity->pool_tokens() == 4 * 2048);
  CHECK(DescribeCapacity(*capacity) ==
        "KV memory of 176.0 MiB holds 8192 tokens: 4 users of 2048 tokens at a time; more users: "
        "--max-batch-seqs (now 4), more tokens: --kv-memory");
}

TEST_CASE("An automatic pool takes its share of what is left beside the reserve", "[unit]") {
  for (const double share : {0.9, 1.0}) {
    CapacityOptions options{.reserve_bytes = kGiB, .automatic_share = share};
    options.max_batch_seqs = 100'000;  // which could use any pool
    options.max_batch_tokens = 100'000;
    const auto capacity = PlanCapacity(TinyLlama(), 2 * kGiB, {16 * kGiB, 16 * kGiB}, options);
    REQUIRE(capacity.ok());
    const int64_t left = 13 * kGiB - capacity->workspace_bytes;
    CHECK(capacity->kv_bytes <= static_cast<double>(left) * share);
    CHECK(capacity->kv_bytes > static_cast<double>(left) * share - capacity->page_bytes);
  }
}

TEST_CASE("A pool smaller than the model's context shortens the context and says so", "[unit]") {
  CapacityOptions options;
  options.kv_bytes = int64_t{22528} * 16 * 10;  // ten pages
  auto capacity = PlanCapacity(TinyLlama(), kGiB, {16 * kGiB, 16 * kGiB}, options);
  REQUIRE(capacity.ok());
  CHECK(capacity->limits.max_context == 160);
  CHECK(capacity->context_reduced);
  CHECK(DescribeCapacity(*capacity) ==
        "KV memory of 3.4 MiB holds 160 tokens: 1 user of 160 tokens at a time; for more: "
        "--kv-memory (the model's own context is longer than this memory)");
}

TEST_CASE("With a sliding window in every layer a small pool holds the whole context", "[unit]") {
  ModelSpec spec = TinyLlama();
  for (LayerSpec& layer : spec.layers) layer.attention.window = 256;
  CapacityOptions options;
  options.max_batch_tokens = 128;
  // 944 positions: 256, 512 (the grain), 128 and three pages of 16.
  options.kv_bytes = int64_t{22528} * 16 * 59;
  auto capacity = PlanCapacity(spec, kGiB, {16 * kGiB, 16 * kGiB}, options);
  REQUIRE(capacity.ok());
  CHECK(capacity->limits.windows == std::vector<int32_t>{256});
  CHECK(capacity->limits.max_context == 2048);
  options.kv_bytes -= int64_t{22528} * 16;
  CHECK(PlanCapacity(spec, kGiB, {16 * kGiB, 16 * kGiB}, options)->context_reduced);
  spec.layers[0].attention.window = 0;  // one layer that sees all
  CHECK(PlanCapacity(spec, kGiB, {16 * kGiB, 16 * kGiB}, options)->context_reduced);
}

TEST_CASE("Where every second layer has a window, users take what it leaves, and the line says so",
          "[unit]") {
  ModelSpec spec = TinyLlama();
  for (size_t i = 0; i < spec.layers.size(); i += 2) spec.layers[i].attention.window = 256;
  CapacityOptions options;
  options.max_batch_tokens = 128;
  // Pages of eleven layers: 128 for those with full attention over all 2,048 positions, and 59 for
  // 944 positions of the others: 256, 512 (the grain), 128 and three pages of 16. Four users.
  options.kv_bytes = int64_t{11264} * 16 * 4 * (128 + 59);
  const HostMemory memory{16 * kGiB, 16 * kGiB};
  const auto capacity = PlanCapacity(spec, kGiB, memory, options);
  REQUIRE(capacity.ok());
  CHECK(capacity->limits.windows == std::vector<int32_t>{0, 256});
  CHECK(capacity->limits.num_pages == 4 * (128 + 59));
  CHECK(capacity->kv_bytes_per_token == 22528);
  CHECK(DescribeCapacity(*capacity) ==
        "KV memory of 128.6 MiB holds at least 5984 tokens: 4 users of 2048 tokens, or 6 users of "
        "1024 tokens at a time; for more: --kv-memory; of 2048 tokens sliding windows keep 73 %");
  options.one_kv_group = true;
  CHECK(PlanCapacity(spec, kGiB, memory, options)->limits.windows == std::vector<int32_t>{0});
  // A pool that is short of one user's context: all that fits of both groups.
  options.one_kv_group = false;
  options.kv_bytes = int64_t{11264} * 16 * (100 + 59);
  CHECK(PlanCapacity(spec, kGiB, memory, options)->limits.max_context == 1600);
}

TEST_CASE("A context asked for that the pool cannot hold is refused with what it takes", "[unit]") {
  CapacityOptions options;
  options.kv_bytes = int64_t{22528} * 16 * 10;
  options.max_context = 1024;
  auto capacity = PlanCapacity(TinyLlama(), kGiB, {16 * kGiB, 16 * kGiB}, options);
  REQUIRE(absl::IsResourceExhausted(capacity.status()));
  CHECK(std::string(capacity.status().message()).find("--max-context (now 1024)") !=
        std::string::npos);
}

TEST_CASE("A pool of less than a page is refused by its size, whatever memory is free", "[unit]") {
  CapacityOptions options;
  options.kv_bytes = 5;
  const auto capacity = PlanCapacity(TinyLlama(), kGiB, {16 * kGiB, 16 * kGiB}, options);
  CHECK(absl::IsInvalidArgument(capacity.status()));
  // 22 layers, keys and values, 4 heads of 64 in 2 bytes: 22 KiB a token.
  CHECK(std::string(capacity.status().message()) ==
        "--kv-memory is 5 B; this model needs 352.0 KiB at least, for one page of 16 tokens "
        "(--page-tokens)");
}

TEST_CASE("Weights beyond the memory are refused before anything is loaded", "[unit]") {
  auto capacity = PlanCapacity(TinyLlama(), 4 * kGiB, {2 * kGiB, 2 * kGiB}, {});
  REQUIRE(absl::IsResourceExhausted(capacity.status()));
  CHECK(std::string(capacity.status().message()).find("weights need 4.0 GiB") != std::string::npos);
}

TEST_CASE("Options out of range are named", "[unit]") {
  const HostMemory memory{16 * kGiB, 16 * kGiB};
  CapacityOptions options;
  options.page_tokens = 24;
  CHECK(absl::IsInvalidArgument(PlanCapacity(TinyLlama(), kGiB, memory, options).status()));
  options.page_tokens = 16;
  options.max_context = 4096;
  CHECK(absl::IsInvalidArgument(PlanCapacity(TinyLlama(), kGiB, memory, options).status()));
}

TEST_CASE("The control group's limit counts where it is below the machine's memory", "[unit]") {
  const auto root = std::filesystem::temp_directory_path() / "heddle_capacity_test_root";
  std::filesystem::create_directories(root / "proc");
  std::filesystem::create_directories(root / "sys/fs/cgroup");
  std::ofstream(root / "proc/meminfo") << "MemTotal:       8388608 kB\nMemFree: 1 kB\n"
                                       << "MemAvailable:   4194304 kB\n";
  CHECK(ReadHostMemory(root).available_bytes == 4 * kGiB);
  std::ofstream(root / "sys/fs/cgroup/memory.max") << "max\n";
  CHECK(ReadHostMemory(root).total_bytes == 8 * kGiB);
  std::ofstream(root / "sys/fs/cgroup/memory.max") << 2 * kGiB;
  std::ofstream(root / "sys/fs/cgroup/memory.current") << kGiB;
  CHECK(ReadHostMemory(root).total_bytes == 2 * kGiB);
  CHECK(ReadHostMemory(root).available_bytes == kGiB);
  std::filesystem::remove_all(root);
}

TEST_CASE("State is counted beside keys and values", "[model][unit]") {
  auto spec = KnownShape("lfm2-1.2b");
  REQUIRE(spec.ok());
  const HostMemory memory{16 * kGiB, 8 * kGiB};
  auto capacity = PlanCapacity(*spec, kGiB, memory, {.max_context = 32768});
  REQUIRE(capacity.ok());
  CHECK(capacity->kv_bytes_per_token == 6 * 2 * 8 * 64 * 2);  // F16
  // Two F32 states of 2,048 channels in each of five groups.
  CHECK(capacity->limits.windows == std::vector<int32_t>{0, 3, 3, 3, 3, 3});
  CHECK(capacity->limits.state_groups == 5);
  CHECK(capacity->page_bytes == 16 * 2 * 2048 * 4);
  CHECK(capacity->state_bytes() == 5 * 2 * capacity->page_bytes);
  CHECK(DescribeCapacity(*capacity).find("2.5 MiB a user are the state") != std::string::npos);
  // A sequence holds all of its keys, and of states those of a step and a few pages.
  const int64_t pages = capacity->page_rule().MostPages(32768, capacity->limits.windows);
  CHECK(pages == 32768 / 16 + 5 * ((3 + 16 + 512 + 3 * 16 + 15) / 16));
}

// Three layers of state to one with keys, as Qwen3.5 9B has them.
ModelSpec WithRecurrences() {
  ModelSpec spec = *KnownShape("qwen3-8b");
  AttentionSpec recurrent;
  recurrent.recurrence.shape = {
      .n_heads = 32, .n_key_heads = 16, .key_dim = 128, .value_dim = 128, .taps = 4};
  for (size_t i = 0; i < 32; ++i) {
    if (i % 4 != 3) spec.layers[i].attention = recurrent;
  }
  spec.layers.resize(32);
  return spec;
}

TEST_CASE("Pages are as long as makes keys as large as snapshots of state", "[model][unit]") {
  const ModelSpec spec = WithRecurrences();
  const HostMemory memory{32 * kGiB, 24 * kGiB};
  auto capacity = PlanCapacity(spec, kGiB, memory, {.max_context = 32768});
  REQUIRE(capacity.ok());
  const ExecutorLimits& limits = capacity->limits;
  CHECK(limits.state_is_snapshot);
  CHECK(limits.max_draft_tokens == kernels::kScanRows - 1);
  // S, two parts of u, of sums and of k, and 19 inputs of the convolution, in each of 24 layers.
  const int64_t snapshot =
      4 * (16 + 32 * 128 * 128 + 32 * 32 * 128 + 32 * 32 + 32 * 16 * 128 + 19 * 8192);
  const int64_t groups = limits.state_groups;
  CHECK(capacity->page_bytes >= (24 + groups - 1) / groups * snapshot);
  // Eight layers of keys and values of 8 heads of 128 in F16.
  CHECK(capacity->page_bytes >= limits.page_tokens * 8 * 2 * 8 * 128 * 2);
  CHECK(limits.page_tokens * 8 * 2 * 8 * 128 * 2 * 2 > capacity->page_bytes);
  // Who wants shorter pages has them, if they hold whole parts.
  capacity = PlanCapacity(spec, kGiB, memory, {.max_context = 1024, .page_tokens = 16});
  REQUIRE(capacity.ok());
  CHECK(capacity->limits.page_tokens == 16);
  const absl::Status status = PlanCapacity(spec, kGiB, memory, {.page_tokens = 8}).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message().find("page-tokens is 8") != std::string::npos);
}

}  // namespace
}  // namespace heddle::engine
