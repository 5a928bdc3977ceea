// Everything that a user can set, as typed values with their defaults. The tables in
// config/options_*.cc give each field its name, its limits and its help text; a new option is one
// field here and one row there.
//
// A Config that Load (load.h) returned has been validated: ranges, choices and contradictions.
// Plain data; copy it freely.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace heddle::config {

struct Bytes {
  uint64_t value = 0;
};

struct Seconds {
  double value = 0;
};

// How much memory the KV cache may take.
struct MemorySize {
  enum class Kind : uint8_t { kAuto, kBytes, kShare };
  Kind kind = Kind::kAuto;
  uint64_t bytes = 0;  // kBytes
  double share = 0;    // kShare: of the free memory, in (0, 1]

  // In bytes on a machine with that much free memory; `automatic_share` stands for kAuto.
  uint64_t Resolve(uint64_t free_bytes, double automatic_share) const;
};

// Values of those options that share this type, by the options' names with underscores.
using NumbersByName = std::map<std::string, double, std::less<>>;

// Enumerations: the values in the order of their names in the option's row (`choices`).
enum class PrefixCacheScope : uint8_t { kAuto, kKey, kAll };  // kAuto: kKey with several API keys
enum class Pooling : uint8_t { kAuto, kLast, kMean, kFirst };
enum class ReasoningField : uint8_t { kReasoningContent, kReasoning, kBoth, kNone };
enum class MaxTokensOverflow : uint8_t { kClamp, kError };
enum class UnknownFields : uint8_t { kIgnore, kError };
enum class SchemaUnsupported : uint8_t { kRefuse, kWarn };
enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };
enum class LogFormat : uint8_t { kText, kJson };
enum class MetricNames : uint8_t { kHeddle, kVllm };
enum class LengthShape : uint8_t { kFixed, kUniform, kExponential, kLognormal };

// The model and the device that runs it. Names of formats, instruction sets and policies are text:
// the layers that have them keep their tables.
struct ModelConfig {
  std::string model;          // a folder or a GGUF file
  std::string chat_template;  // a file that replaces the model's own
  int64_t max_context = 0;    // tokens; 0: what the model was trained for
};

struct EngineConfig {
  std::string device = "cpu";  // cpu, cuda, cuda:N or auto
  int64_t threads = 0;         // 0: one per physical core
  int64_t tp = 1;              // ranks that share the model, each with a part of the threads
  int64_t pp = 1;              // stages, each with some of the layers
  std::string tp_shares;       // sizes of the shares of a stage's ranks in proportion; empty: equal
  std::string pp_layers;       // the number of layers of each stage; empty: divided by their work
  bool tp_invariant = false;   // the same bits for 1, 2, 4 and 8 ranks
  bool expert_parallel = false;   // ranks have whole experts
  std::string rank_cpus;          // lists of processors, one for each rank, with ":" between them
  std::string rank_devices;       // numbers of GPUs, one for each rank, with "," between them
  std::string ranks_listen;       // HOST:PORT where the other ranks join; empty: they are threads
  std::string join;               // HOST:PORT of the head; empty: this process is the head
  int64_t rank = 0;               // that this process wants to be; 0: any
  std::string rank_wire = "f32";  // the number format of rows and sums between processes
  std::string rank_network = "host";  // what carries between GPUs out of each other's reach
  std::string rank_token_file;
  std::string rank_tls_cert;  // files in PEM format; empty: no TLS between ranks
  std::string rank_tls_key;
  std::string rank_tls_ca;
  Seconds rank_timeout{10};
  Seconds rank_rejoin_timeout{60};
  std::string isa = "auto";
  int64_t page_tokens = 0;  // 0: CapacityOptions::page_tokens
  MemorySize kv_memory;
  std::string weights = "auto";
  std::string kv_type = "auto";
  Bytes host_kv_memory{0};
  std::string disk_kv;  // a folder
  // 0: what the device serves best; once loaded, for a GPU alone, which is not known yet then.
  int64_t max_batch_tokens = 0;
  int64_t max_batch_seqs = 0;
  int64_t max_step_tokens = 0;                  // 0: max_batch_tokens
  std::optional<double> target_inter_token_ms;  // unset: from the machine; 0: none
  bool prefix_cache = true;
  PrefixCacheScope prefix_cache_scope = PrefixCacheScope::kAuto;
  std::string policy = "fcfs";
  Seconds starvation_limit{60};
  int64_t max_client_lead_ms = 20;     // 0: clients are not told apart
  std::vector<std::string> speculate;  // drafters; empty: auto
  int64_t speculate_max = 0;           // tokens of a draft; 0: 16, or speculative_config's
  std::string speculative_config;      // vLLM's JSON

  // Nano-batches: heddle tune writes the file, heddle serve reads it.
  std::string tune_profile;
};

// LoRA adapters.
struct AdapterConfig {
  std::vector<std::string> lora;  // NAME=PATH[@SCALE]
  std::string lora_merge;         // NAME=PATH
  std::string lora_dir;
  bool allow_lora_updates = false;
  int64_t max_lora_rank = 256;
  Bytes lora_host_memory{uint64_t{4} << 30};
};

// heddle serve: connections, keys, limits.
struct ServerConfig {
  std::string host = "127.0.0.1";
  int64_t port = 8000;               // 0: any free one
  std::optional<int64_t> grpc_port;  // 0: any free one; none: no gRPC
  std::vector<std::string> served_model_name;
  std::vector<std::string> api_key;
  std::string api_key_file;
  std::vector<std::string> admin_key;
  std::string tls_cert;  // files in PEM format; empty: no TLS
  std::string tls_key;
  std::string tls_client_ca;
  std::string cors_origin;
  Pooling pooling = Pooling::kAuto;
  std::string tool_parser = "auto";
  std::string reasoning_parser = "auto";
  ReasoningField reasoning_field = ReasoningField::kReasoningContent;
  MaxTokensOverflow max_tokens_overflow = MaxTokensOverflow::kClamp;
  UnknownFields unknown_fields = UnknownFields::kIgnore;
  SchemaUnsupported schema_unsupported = SchemaUnsupported::kRefuse;
  int64_t io_threads = 1;
  int64_t prepare_threads = 0;  // 0: 2, or io_threads where that is more
  int64_t max_queue = 1024;
  int64_t max_queue_tokens = int64_t{1} << 22;  // 0: no limit
  Seconds max_queue_time{600};                  // 0: no limit
  int64_t max_connections = 4096;
  int64_t max_open_requests = 0;        // 0: no limit; so the three below
  int64_t key_requests_per_minute = 0;  // of each API key that its file says nothing else of
  int64_t key_tokens_per_minute = 0;
  int64_t key_concurrency = 0;
  Bytes max_body_bytes{uint64_t{8} << 20};
  Bytes grammar_cache_bytes{uint64_t{256} << 20};
  Bytes max_pending_body_bytes{0};  // 0: by the machine's memory
  std::string batch_dir;            // empty: no files, no batches
  Bytes batch_storage{uint64_t{4} << 30};
  int64_t batch_concurrency = 8;
  int64_t max_branches = 1024;
  std::string reward_url;  // http://HOST[:PORT][/PATH]; empty: no reward model
  std::string reward_key;
  Seconds reward_timeout{10};
  Seconds request_timeout{0};  // 0: none
  Seconds drain_delay{0};
  Seconds drain_timeout{30};
  Seconds watchdog_timeout{60};
  Seconds stuck_timeout{300};  // 0: never
};

struct LogConfig {
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  MetricNames metric_names = MetricNames::kHeddle;
  bool metrics_by_key = false;
  std::string otlp_endpoint;                 // http://HOST[:PORT][/PATH]; empty: no spans
  std::optional<double> trace_sample_ratio;  // unset: 1
};

// One generation (heddle generate).
struct GenerateConfig {
  std::optional<std::string> prompt;  // unset: standard input
  bool chat = false;
  int64_t max_tokens = 128;
  NumbersByName sampling;  // parameters that were given, by their names in the API: "top_p"
  std::vector<std::string> dry_sequence_breakers;
  std::optional<int64_t> seed;
  std::vector<std::string> stop;
  std::string json_schema;  // a file's path
  std::string grammar;      // a file's path
  std::string regex;
  bool ignore_eos = false;
  std::optional<int64_t> logprobs;
};

// Measurements (heddle bench).
struct BenchConfig {
  std::string random_weights;  // a built-in shape in place of a model
  int64_t prompt_tokens = 512;
  int64_t output_tokens = 64;
  std::vector<std::string> batch;  // whole numbers from 1; empty: 1
  int64_t repeat = 3;
  std::string bench_text;  // a file whose end is replayed as an answer
};

// Capacity planning (heddle simulate, heddle plan).
struct PlanningConfig {
  std::string shape;  // a built-in shape in place of a model
  std::string hardware = "host";
  Bytes device_memory{0};           // 0: the hardware's
  std::optional<double> link_rate;  // Gbit/s between machines with a rank each; unset: there is one
  std::optional<double> link_latency;  // us; unset: 100
  std::string profile;                 // a file of `heddle bench --json`
  std::string trace;                   // a file of requests; empty: a synthetic load
  std::optional<double> rate;
  int64_t clients = 0;                     // 0: arrivals by rate
  std::optional<double> draft_acceptance;  // unset: nothing is drafted
  int64_t requests = 1000;
  LengthShape lengths = LengthShape::kFixed;
  int64_t prefix_tokens = 0;
  int64_t prefix_groups = 1;
  std::string plot;
  int64_t adapters = 0;      // LoRA adapters in use; 0: none
  int64_t adapter_rank = 0;  // 0: 16, if there are adapters
  int64_t users = 0;         // 0: as many as fit
  int64_t context = 0;       // 0: prompt_tokens + output_tokens
};

// Input and output of the one-shot commands.
struct OutputConfig {
  bool json = false;
  bool tensors = false;
  std::string base;  // heddle inspect ADAPTER: the model that it is for
  bool jsonl = false;
  bool special = false;
  bool no_bos = false;
  bool decode = false;
  std::string template_file;
};

// Asking a running server (heddle trace, heddle health).
struct ClientConfig {
  std::string request_id;  // empty: list those that it remembers
  std::string url = "http://127.0.0.1:8000";
};

struct Config : ModelConfig,
                EngineConfig,
                AdapterConfig,
                ServerConfig,
                LogConfig,
                GenerateConfig,
                BenchConfig,
                PlanningConfig,
                OutputConfig,
                ClientConfig {
  std::string config_file;  // the YAML file that the rest may come from
};

}  // namespace heddle::config
