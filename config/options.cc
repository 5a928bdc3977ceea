#include "config/option.h"

namespace heddle::config {
namespace {

constexpr std::string_view kIsas[] = {"auto", "portable", "avx2", "avx512", "avx512_bf16"};
constexpr std::string_view kKvTypes[] = {"auto", "f32", "f16", "bf16", "fp8", "int8"};
constexpr std::string_view kWeightFormats[] = {"auto", "int8", "int4", "f32",
                                               "f16",  "bf16", "q8_0", "q4_0"};
constexpr std::string_view kPoolings[] = {"last", "mean", "first"};
constexpr std::string_view kReasoningFields[] = {"reasoning_content", "reasoning", "both", "none"};
constexpr std::string_view kOverflows[] = {"clamp", "error"};
constexpr std::string_view kUnknownFields[] = {"ignore", "error"};
constexpr std::string_view kPolicies[] = {"fcfs", "priority", "deadline", "fair"};
constexpr std::string_view kOnOff[] = {"on", "off"};
constexpr std::string_view kLengths[] = {"fixed", "uniform", "exponential", "lognormal"};
constexpr std::string_view kLogLevels[] = {"debug", "info", "warning", "error", "off"};
constexpr std::string_view kMetricNames[] = {"heddle", "vllm"};
constexpr std::string_view kLogFormats[] = {"text", "json"};

constexpr std::string_view kModel = "Model";
constexpr std::string_view kEngine = "Engine";
constexpr std::string_view kServer = "Server";
constexpr std::string_view kLimits = "Limits and timeouts";
constexpr std::string_view kLogs = "Logs";
constexpr std::string_view kGeneration = "Generation";
constexpr std::string_view kMeasurement = "Measurement";
constexpr std::string_view kMachine = "Machine to plan for";
constexpr std::string_view kPlanningLoad = "Simulated load";
constexpr std::string_view kInputOutput = "Input and output";
constexpr std::string_view kConfiguration = "Configuration";

constexpr uint32_t kEngineCommands = kServe | kGenerate;
constexpr uint32_t kPlanning = kSimulate | kPlan;

// One row per option, in the order of the help. kv: how much, of which type, in which pages.
constexpr Option kOptions[] = {
    {.name = "model",
     .field = &Config::model,
     .section = kModel,
     .value = "MODEL",
     .help = "Folder of a Hugging Face model (config.json, *.safetensors, tokenizer) or a GGUF "
             "file.",
     .commands = kServe | kGenerate | kTokenize | kInspect | kBench | kPlanning,
     .positional = true},
    {.name = "max-context",
     .field = &Config::max_context,
     .section = kModel,
     .value = "TOKENS",
     .help = "Longest prompt and answer together. 0: what the model was trained for.",
     .commands = kEngineCommands | kInspect | kPlanning,
     .min = 0,
     .max = 1 << 24,
     .default_text = "the model's"},
    {.name = "chat-template",
     .field = &Config::chat_template,
     .section = kModel,
     .value = "FILE",
     .help = "Jinja chat template to use in place of the model's own.",
     .commands = kEngineCommands},

    {.name = "device",
     .field = &Config::device,
     .section = kEngine,
     .value = "DEVICE",
     .help =
         "Where the model runs: cpu, cuda, or cuda:N for the N-th GPU that this process sees. "
         "auto: the first GPU, where heddle was built with CUDA and there is one; else the CPU.",
     .commands = kEngineCommands},
    {.name = "threads",
     .field = &Config::threads,
     .section = kEngine,
     .value = "N",
     .help = "Threads that compute. 0: one per physical core.",
     .commands = kEngineCommands | kBench,
     .min = 0,
     .max = 4096,
     .default_text = "one per core"},
    {.name = "isa",
     .field = &Config::isa,
     .section = kEngine,
     .value = "LEVEL",
     .help = "Instruction set of the CPU kernels. auto: the best that this machine has.",
     .commands = kEngineCommands | kBench,
     .choices = kIsas},
    {.name = "kv-memory",
     .field = &Config::kv_memory,
     .section = kEngine,
     .value = "SIZE",
     .help = "Memory of the KV cache, taken at start: a size such as 4GiB, or a share of the free "
             "memory such as 60%. auto: what the other limits can use, within the free memory.",
     .commands = kEngineCommands | kInspect | kBench | kPlanning},
    {.name = "weights",
     .field = &Config::weights,
     .section = kEngine,
     .value = "FORMAT",
     .help = "Number format of the weights. auto: as the model has them; int8, int4: quantised "
             "while loading, in blocks of 32 with a scale (embeddings and output head never below "
             "int8). The other formats are for random weights, where auto is bf16.",
     .commands = kEngineCommands | kInspect | kBench | kPlanning,
     .choices = kWeightFormats},
    {.name = "kv-type",
     .field = &Config::kv_type,
     .section = kEngine,
     .value = "TYPE",
     .help = "Number format of the KV cache. auto: F32 for a model in F32, else f16. fp8 and int8 "
             "halve its memory, on the CPU only.",
     .commands = kEngineCommands | kInspect | kBench | kPlanning,
     .choices = kKvTypes},
    {.name = "host-kv-memory",
     .field = &Config::host_kv_memory,
     .section = kEngine,
     .value = "SIZE",
     .help = "Memory of the host, such as 8GiB, for what the KV memory has no room for: computed "
             "prompts, and answers that had to pause. 0: such content is computed again.",
     .commands = kServe,
     .min = 0,
     .max = 1e15},
    {.name = "disk-kv",
     .field = &Config::disk_kv,
     .section = kEngine,
     .value = "DIR",
     .help = "Folder on a fast disk for a file that holds --host-kv-memory in place of memory; the "
             "file has no name and goes with the process.",
     .commands = kServe,
     .default_text = "none"},
    {.name = "page-tokens",
     .field = &Config::page_tokens,
     .section = kEngine,
     .value = "N",
     .help = "Token positions per page of the KV cache; a power of two.",
     .commands = kEngineCommands | kInspect | kBench | kPlanning,
     .min = 1,
     .max = 1024},
    {.name = "max-batch-tokens",
     .field = &Config::max_batch_tokens,
     .section = kEngine,
     .value = "N",
     .help = "Most tokens computed in one step. More: higher throughput of long prompts; less: "
             "steadier streams beside them.",
     .commands = kEngineCommands | kBench | kPlanning,
     .min = 1,
     .max = 1 << 20},
    {.name = "max-batch-seqs",
     .field = &Config::max_batch_seqs,
     .section = kEngine,
     .value = "N",
     .help = "Most sequences that run at once.",
     .commands = kServe | kPlanning,
     .min = 1,
     .max = 65536},
    {.name = "max-step-tokens",
     .field = &Config::max_step_tokens,
     .section = kEngine,
     .value = "N",
     .help = "Most tokens that the scheduler puts into one step, of the --max-batch-tokens that "
             "there is memory for. 0: all.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 1 << 20,
     .default_text = "max-batch-tokens"},
    {.name = "target-inter-token-ms",
     .field = &Config::target_inter_token_ms,
     .section = kEngine,
     .value = "MS",
     .help = "Time between two tokens of a running stream that prompts must not lengthen: they "
             "are read in chunks that fit. 0: no target. Not given: two to four times what the "
             "running streams take by themselves, the more prompts wait the more, and at least "
             "20 ms.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 3600000,
     .default_text = "chosen from the machine"},
    {.name = "prefix-cache",
     .field = &Config::prefix_cache,
     .section = kEngine,
     .value = "on|off",
     .help = "Keep what was computed of finished requests for later prompts that begin alike, as "
             "long as nobody needs its memory.",
     .commands = kServe | kPlanning,
     .choices = kOnOff},
    {.name = "policy",
     .field = &Config::policy,
     .section = kEngine,
     .value = "POLICY",
     .help = "Who is served first: fcfs, who came first; priority, the lowest `priority` of the "
             "request; deadline, who has the least slack before `deadline_ms`; fair, the API key "
             "that was given least.",
     .commands = kServe | kPlanning,
     .choices = kPolicies},
    {.name = "starvation-limit",
     .field = &Config::starvation_limit,
     .section = kEngine,
     .value = "SECONDS",
     .help = "Whoever has waited this long goes ahead of all others, whatever the policy. 0: no "
             "limit.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 604800},

    {.name = "host",
     .field = &Config::host,
     .section = kServer,
     .value = "ADDRESS",
     .help = "IP address to listen on. 0.0.0.0 serves every network of this machine.",
     .commands = kServe},
    {.name = "port",
     .field = &Config::port,
     .section = kServer,
     .value = "PORT",
     .help = "TCP port. 0: any free one, which the start-up line names.",
     .commands = kServe,
     .min = 0,
     .max = 65535},
    {.name = "grpc-port",
     .field = &Config::grpc_port,
     .section = kServer,
     .value = "PORT",
     .help = "TCP port of the gRPC services (docs/grpc.md). 0: any free one.",
     .commands = kServe,
     .min = 0,
     .max = 65535,
     .default_text = "none: no gRPC"},
    {.name = "served-model-name",
     .field = &Config::served_model_name,
     .section = kServer,
     .value = "NAME",
     .help = "Name of the model in requests; repeat it, or separate by commas, for several.",
     .commands = kServe,
     .splits_commas = true,
     .default_text = "the model's folder or file"},
    {.name = "api-key",
     .field = &Config::api_key,
     .section = kServer,
     .value = "KEY",
     .help = "Key that requests must carry as `Authorization: Bearer KEY`; repeatable. Set it by "
             "the environment, since others can read command lines.",
     .commands = kServe,
     .splits_commas = true,
     .default_text = "none: everyone may ask"},
    {.name = "api-key-file",
     .field = &Config::api_key_file,
     .section = kServer,
     .value = "FILE",
     .help = "File of API keys by name and SHA-256, with limits of their own (docs/security.md).",
     .commands = kServe,
     .default_text = "none"},
    {.name = "admin-key",
     .field = &Config::admin_key,
     .section = kServer,
     .value = "KEY",
     .help = "Key for what shows more than one client's requests (/debug, the live view of the web "
             "page). Where there are API keys and no admin key, nobody sees it.",
     .commands = kServe,
     .splits_commas = true,
     .default_text = "none"},
    {.name = "cors-origin",
     .field = &Config::cors_origin,
     .section = kServer,
     .value = "ORIGIN",
     .help = "Origin whose web pages may call the API: one origin, or * for all.",
     .commands = kServe,
     .default_text = "none"},
    {.name = "pooling",
     .field = &Config::pooling,
     .section = kServer,
     .value = "WHAT",
     .help =
         "Which final hidden states make an embedding: that of the last token, of the first, or "
         "the mean of all.",
     .commands = kServe,
     .choices = kPoolings},
    {.name = "tool-parser",
     .field = &Config::tool_parser,
     .section = kServer,
     .value = "NAME",
     .help = "How the model writes tool calls: auto (as its chat template shows it), none, hermes, "
             "qwen3-coder, llama3-json, pythonic, mistral, deepseek, granite, glm, gpt-oss, phi, "
             "cohere, kimi, lfm, seed or minimax.",
     .commands = kServe},
    {.name = "reasoning-parser",
     .field = &Config::reasoning_parser,
     .section = kServer,
     .value = "NAME",
     .help =
         "How the model marks its reasoning: auto (as its chat template shows it), none, think, "
         "think-response, mistral, granite, cohere, seed or gpt-oss.",
     .commands = kServe},
    {.name = "reasoning-field",
     .field = &Config::reasoning_field,
     .section = kServer,
     .value = "NAME",
     .help = "Member of messages and deltas that holds the model's reasoning.",
     .commands = kServe,
     .choices = kReasoningFields},
    {.name = "max-tokens-overflow",
     .field = &Config::max_tokens_overflow,
     .section = kServer,
     .value = "WHAT",
     .help = "What a max_tokens beyond the context gets. clamp: the rest of the context, and a "
             "warning header; error: status 400.",
     .commands = kServe,
     .choices = kOverflows},
    {.name = "unknown-fields",
     .field = &Config::unknown_fields,
     .section = kServer,
     .value = "WHAT",
     .help = "What a field of a request that the server does not know gets. error: status 400.",
     .commands = kServe,
     .choices = kUnknownFields},
    {.name = "io-threads",
     .field = &Config::io_threads,
     .section = kServer,
     .value = "N",
     .help = "Threads for connections.",
     .commands = kServe,
     .min = 1,
     .max = 256},

    {.name = "max-queue",
     .field = &Config::max_queue,
     .section = kLimits,
     .value = "REQUESTS",
     .help = "Requests that may wait for their first step; a further one gets status 429.",
     .commands = kServe | kPlanning,
     .min = 1,
     .max = 1 << 24},
    {.name = "max-queue-tokens",
     .field = &Config::max_queue_tokens,
     .section = kLimits,
     .value = "TOKENS",
     .help = "Tokens in the prompts of waiting requests; a request beyond it gets status 429. "
             "0: no limit.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 1e12},
    {.name = "max-queue-time",
     .field = &Config::max_queue_time,
     .section = kLimits,
     .value = "SECONDS",
     .help = "Longest that a request may wait for its first step; then it gets status 429. 0: no "
             "limit.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 604800},
    {.name = "max-connections",
     .field = &Config::max_connections,
     .section = kLimits,
     .value = "N",
     .help = "Open connections; a further one gets status 503.",
     .commands = kServe,
     .min = 1,
     .max = 1 << 20},
    {.name = "max-open-requests",
     .field = &Config::max_open_requests,
     .section = kLimits,
     .value = "N",
     .help = "Requests in progress, streams among them; a further one gets status 429. 0: no "
             "limit but the connections and the queue.",
     .commands = kServe,
     .min = 0,
     .max = 1 << 24},
    {.name = "key-requests-per-minute",
     .field = &Config::key_requests_per_minute,
     .section = kLimits,
     .value = "N",
     .help = "Requests a minute of each API key; a further one gets status 429. 0: no limit.",
     .commands = kServe,
     .min = 0,
     .max = 1e12},
    {.name = "key-tokens-per-minute",
     .field = &Config::key_tokens_per_minute,
     .section = kLimits,
     .value = "N",
     .help = "Tokens a minute of each API key, of prompts and answers together. 0: no limit.",
     .commands = kServe,
     .min = 0,
     .max = 1e12},
    {.name = "key-concurrency",
     .field = &Config::key_concurrency,
     .section = kLimits,
     .value = "N",
     .help = "Requests in progress of each API key. 0: no limit.",
     .commands = kServe,
     .min = 0,
     .max = 1 << 24},
    {.name = "max-body-bytes",
     .field = &Config::max_body_bytes,
     .section = kLimits,
     .value = "SIZE",
     .help = "Largest request body, such as 8MiB; a larger one gets status 413.",
     .commands = kServe,
     .min = 1024,
     .max = 1 << 30},
    {.name = "request-timeout",
     .field = &Config::request_timeout,
     .section = kLimits,
     .value = "SECONDS",
     .help = "Longest life of a request; then its answer ends. 0: no limit.",
     .commands = kServe,
     .min = 0,
     .max = 604800,
     .default_text = "none"},
    {.name = "drain-timeout",
     .field = &Config::drain_timeout,
     .section = kLimits,
     .value = "SECONDS",
     .help = "How long running requests may take to finish after SIGTERM.",
     .commands = kServe,
     .min = 0,
     .max = 86400},

    {.name = "watchdog-timeout",
     .field = &Config::watchdog_timeout,
     .section = kLimits,
     .value = "SECONDS",
     .help = "How long requests may wait without any step ending before /health answers 503.",
     .commands = kServe,
     .min = 0.1,
     .max = 86400},

    {.name = "log-level",
     .field = &Config::log_level,
     .section = kLogs,
     .value = "LEVEL",
     .help = "Least important line that is logged.",
     .commands = kEngineCommands,
     .choices = kLogLevels},
    {.name = "log-format",
     .field = &Config::log_format,
     .section = kLogs,
     .value = "FORMAT",
     .help = "text for people, json for machines: one object per line on stderr.",
     .commands = kServe,
     .choices = kLogFormats},
    {.name = "metric-names",
     .field = &Config::metric_names,
     .section = kLogs,
     .value = "WHOSE",
     .help = "vllm: /metrics also has what Kubernetes' inference gateway reads under vLLM's names, "
             "which its endpoint picker knows.",
     .commands = kServe,
     .choices = kMetricNames},

    {.name = "prompt",
     .field = &Config::prompt,
     .section = kGeneration,
     .value = "TEXT",
     .help = "Text to continue; without it, the whole of standard input.",
     .commands = kGenerate,
     .flag_only = true,
     .default_text = "standard input"},
    {.name = "chat",
     .field = &Config::chat,
     .section = kGeneration,
     .value = "",
     .help = "Send the prompt as a user's message, through the model's chat template.",
     .commands = kGenerate,
     .flag_only = true},
    {.name = "max-tokens",
     .field = &Config::max_tokens,
     .section = kGeneration,
     .value = "N",
     .help = "Longest answer.",
     .commands = kGenerate,
     .flag_only = true,
     .min = 0,
     .max = 1 << 24},
    {.name = "temperature",
     .field = &Config::temperature,
     .section = kGeneration,
     .value = "T",
     .help = "Randomness of the choice; 0 always takes the likeliest token.",
     .commands = kGenerate,
     .flag_only = true,
     .min = 0,
     .max = 100,
     .default_text = "the model's, or 1"},
    {.name = "top-p",
     .field = &Config::top_p,
     .section = kGeneration,
     .value = "P",
     .help = "Choose among the likeliest tokens that together have this probability.",
     .commands = kGenerate,
     .flag_only = true,
     .min = 0,
     .max = 1,
     .default_text = "the model's, or 1"},
    {.name = "top-k",
     .field = &Config::top_k,
     .section = kGeneration,
     .value = "K",
     .help = "Choose among the K likeliest tokens. 0: among all.",
     .commands = kGenerate,
     .flag_only = true,
     .min = 0,
     .max = 1 << 24,
     .default_text = "the model's, or 0"},
    {.name = "min-p",
     .field = &Config::min_p,
     .section = kGeneration,
     .value = "P",
     .help = "Leave out tokens less likely than this share of the likeliest one's probability.",
     .commands = kGenerate,
     .flag_only = true,
     .min = 0,
     .max = 1,
     .default_text = "0"},
    {.name = "seed",
     .field = &Config::seed,
     .section = kGeneration,
     .value = "N",
     .help = "The same seed gives the same text.",
     .commands = kGenerate | kSimulate,
     .flag_only = true,
     .min = 0,
     .default_text = "random"},
    {.name = "stop",
     .field = &Config::stop,
     .section = kGeneration,
     .value = "TEXT",
     .help = "End the answer before this text; repeatable.",
     .commands = kGenerate,
     .flag_only = true,
     .default_text = "none"},
    {.name = "json-schema",
     .field = &Config::json_schema,
     .section = kGeneration,
     .value = "FILE",
     .help = "The answer is JSON that is valid by the JSON schema in this file.",
     .commands = kGenerate,
     .flag_only = true,
     .default_text = "none"},
    {.name = "grammar",
     .field = &Config::grammar,
     .section = kGeneration,
     .value = "FILE",
     .help = "The answer derives from the grammar (GBNF) in this file.",
     .commands = kGenerate,
     .flag_only = true,
     .default_text = "none"},
    {.name = "regex",
     .field = &Config::regex,
     .section = kGeneration,
     .value = "EXPRESSION",
     .help = "The whole answer matches this regular expression.",
     .commands = kGenerate,
     .flag_only = true,
     .default_text = "none"},
    {.name = "ignore-eos",
     .field = &Config::ignore_eos,
     .section = kGeneration,
     .value = "",
     .help = "Go on behind the model's end token, for measurements.",
     .commands = kGenerate,
     .flag_only = true},
    {.name = "logprobs",
     .field = &Config::logprobs,
     .section = kGeneration,
     .value = "N",
     .help = "With --json: the log-probability of each token, and of the N likeliest.",
     .commands = kGenerate,
     .flag_only = true,
     .min = 0,
     .max = 20,
     .default_text = "none"},

    {.name = "random-weights",
     .field = &Config::random_weights,
     .section = kMeasurement,
     .value = "SHAPE",
     .help = "Measure random weights in the shape of a known model, without a download: "
             "tinyllama-1.1b, llama-3.2-1b, llama-3.1-8b, qwen2.5-0.5b, qwen3-0.6b and others; an "
             "unknown name lists them all.",
     .commands = kBench,
     .flag_only = true,
     .default_text = "MODEL's weights"},
    {.name = "prompt-tokens",
     .field = &Config::prompt_tokens,
     .section = kMeasurement,
     .value = "P",
     .help = "Length of each prompt.",
     .commands = kBench | kPlanning,
     .flag_only = true,
     .min = 1,
     .max = 1 << 24},
    {.name = "output-tokens",
     .field = &Config::output_tokens,
     .section = kMeasurement,
     .value = "N",
     .help = "Tokens generated after each prompt.",
     .commands = kBench | kPlanning,
     .flag_only = true,
     .min = 1,
     .max = 1 << 24},
    {.name = "batch",
     .field = &Config::batch,
     .section = kMeasurement,
     .value = "B[,B...]",
     .help = "Sequences that run at once; each number is measured by itself.",
     .commands = kBench,
     .flag_only = true,
     .splits_commas = true,
     .default_text = "1"},
    {.name = "repeat",
     .field = &Config::repeat,
     .section = kMeasurement,
     .value = "R",
     .help = "Measurements of each batch size, of which the middle one is reported.",
     .commands = kBench,
     .flag_only = true,
     .min = 1,
     .max = 1000},

    {.name = "tensors",
     .field = &Config::tensors,
     .section = kInputOutput,
     .value = "",
     .help = "List every tensor with its shape and format; with --weights int8 or int4, also the "
             "error of quantising it, for which all weights are read.",
     .commands = kInspect,
     .flag_only = true},
    {.name = "shape",
     .field = &Config::shape,
     .section = kMachine,
     .value = "SHAPE",
     .help = "Plan for the shape of a known model with weights of the format --weights, without a "
             "download; an unknown name lists them all.",
     .commands = kPlanning,
     .flag_only = true,
     .default_text = "MODEL's"},
    {.name = "hardware",
     .field = &Config::hardware,
     .section = kMachine,
     .value = "NAME",
     .help =
         "Machine to plan for: h200, h100, a100, l40s, l4, rtx4090 or cpu-2core from their data "
         "sheets; host: this one, measured now.",
     .commands = kPlanning,
     .flag_only = true},
    {.name = "device-memory",
     .field = &Config::device_memory,
     .section = kMachine,
     .value = "SIZE",
     .help = "Memory of the machine to plan for, such as 24GiB.",
     .commands = kPlanning,
     .flag_only = true,
     .default_text = "the hardware's"},
    {.name = "profile",
     .field = &Config::profile,
     .section = kMachine,
     .value = "FILE",
     .help = "What `heddle bench --json` printed on the machine to plan for: times of steps are "
             "then as measured.",
     .commands = kPlanning,
     .flag_only = true,
     .default_text = "none: from the data sheet"},
    {.name = "users",
     .field = &Config::users,
     .section = kPlanningLoad,
     .value = "N",
     .help = "Users at a time. 0: as many as fit.",
     .commands = kPlan,
     .flag_only = true,
     .min = 0,
     .max = 1 << 20,
     .default_text = "as many as fit"},
    {.name = "context",
     .field = &Config::context,
     .section = kPlanningLoad,
     .value = "TOKENS",
     .help = "Prompt and answer of each user together. 0: --prompt-tokens and --output-tokens.",
     .commands = kPlan,
     .flag_only = true,
     .min = 0,
     .max = 1 << 24,
     .default_text = "prompt and output"},
    {.name = "trace",
     .field = &Config::trace,
     .section = kPlanningLoad,
     .value = "FILE",
     .help = "Requests as JSON lines with arrival_s, prompt_tokens and output_tokens each; "
             "docs/simulate.md has the other fields.",
     .commands = kSimulate,
     .flag_only = true,
     .default_text = "none: a synthetic load"},
    {.name = "rate",
     .field = &Config::rate,
     .section = kPlanningLoad,
     .value = "R",
     .help = "Requests per second that arrive on average, at random moments (Poisson).",
     .commands = kSimulate,
     .flag_only = true,
     .min = 1e-6,
     .max = 1e6,
     .default_text = "all at once"},
    {.name = "clients",
     .field = &Config::clients,
     .section = kPlanningLoad,
     .value = "N",
     .help = "Clients that each send the next request when the last is answered; of a trace, they "
             "take the requests in its order.",
     .commands = kSimulate,
     .flag_only = true,
     .min = 0,
     .max = 1 << 20,
     .default_text = "none: requests come when they come"},
    {.name = "requests",
     .field = &Config::requests,
     .section = kPlanningLoad,
     .value = "N",
     .help = "Requests of the synthetic load.",
     .commands = kSimulate,
     .flag_only = true,
     .min = 1,
     .max = 1e7},
    {.name = "lengths",
     .field = &Config::lengths,
     .section = kPlanningLoad,
     .value = "WHICH",
     .help = "How lengths are spread around their means --prompt-tokens and --output-tokens.",
     .commands = kSimulate,
     .flag_only = true,
     .choices = kLengths},
    {.name = "prefix-tokens",
     .field = &Config::prefix_tokens,
     .section = kPlanningLoad,
     .value = "N",
     .help = "Tokens in front of each prompt that it shares with others of its group, such as a "
             "system prompt.",
     .commands = kSimulate,
     .flag_only = true,
     .min = 0,
     .max = 1 << 24},
    {.name = "prefix-groups",
     .field = &Config::prefix_groups,
     .section = kPlanningLoad,
     .value = "N",
     .help = "Groups of prompts with different shared tokens.",
     .commands = kSimulate,
     .flag_only = true,
     .min = 1,
     .max = 1e6},
    {.name = "plot",
     .field = &Config::plot,
     .section = kPlanningLoad,
     .value = "FILE",
     .help = "Write the picture of the simulation to this SVG file.",
     .commands = kSimulate,
     .flag_only = true,
     .default_text = "none"},

    {.name = "json",
     .field = &Config::json,
     .section = kInputOutput,
     .value = "",
     .help = "Print one JSON object instead of text for people.",
     .commands = kGenerate | kInspect | kBench | kPlanning,
     .flag_only = true},
    {.name = "template",
     .field = &Config::template_file,
     .section = kInputOutput,
     .value = "FILE",
     .help = "The Jinja chat template to render.",
     .commands = kRender,
     .flag_only = true,
     .default_text = "required"},
    {.name = "jsonl",
     .field = &Config::jsonl,
     .section = kInputOutput,
     .value = "",
     .help = "Each line is a JSON string, so that a text may contain line ends.",
     .commands = kTokenize,
     .flag_only = true},
    {.name = "special",
     .field = &Config::special,
     .section = kInputOutput,
     .value = "",
     .help = "Read the names of special tokens in the text as these tokens; with --decode, print "
             "them.",
     .commands = kTokenize,
     .flag_only = true},
    {.name = "no-bos",
     .field = &Config::no_bos,
     .section = kInputOutput,
     .value = "",
     .help = "Do not put the model's first token (BOS) before each text.",
     .commands = kTokenize,
     .flag_only = true},
    {.name = "decode",
     .field = &Config::decode,
     .section = kInputOutput,
     .value = "",
     .help = "The other way: each line is a JSON array of ids; prints the texts.",
     .commands = kTokenize,
     .flag_only = true},

    {.name = "config",
     .field = &Config::config_file,
     .section = kConfiguration,
     .value = "FILE",
     .help = "YAML file with any of these options as `name: value`. Flags win over the "
             "environment, the environment over the file.",
     .commands = kEngineCommands | kInspect | kPlanning,
     .default_text = "none"},
};

}  // namespace

std::span<const Option> Options() { return kOptions; }

std::string_view CommandName(Command command) {
  switch (command) {
    case kServe:
      return "serve";
    case kGenerate:
      return "generate";
    case kTokenize:
      return "tokenize";
    case kInspect:
      return "inspect";
    case kRender:
      return "render";
    case kBench:
      return "bench";
    case kSimulate:
      return "simulate";
    case kPlan:
      return "plan";
  }
  return "";
}

std::string_view CommandSummary(Command command) {
  switch (command) {
    case kServe:
      return "Serve a model over HTTP, with the API of OpenAI";
    case kGenerate:
      return "Continue one prompt, without a server";
    case kTokenize:
      return "Turn lines of text into token ids, or back";
    case kInspect:
      return "Show what a model is, and what this machine can hold of it";
    case kRender:
      return "Render a chat template, to see the text that a model gets";
    case kBench:
      return "Measure tokens per second, and their share of this machine's limits";
    case kSimulate:
      return "Run the scheduler against a trace or a made-up load, without a model";
    case kPlan:
      return "Say how many users fit into a machine, and how fast they are served";
  }
  return "";
}

std::string_view CommandUsage(Command command) {
  switch (command) {
    case kServe:
      return "heddle serve MODEL [options]\n\n"
             "Serves a model on http://127.0.0.1:8000/v1 until it gets SIGTERM or Ctrl-C.\n\n"
             "  heddle serve ~/models/Qwen3-0.6B\n"
             "  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' "
             "\\\n    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n";
    case kGenerate:
      return "heddle generate MODEL [--prompt TEXT] [options]\n\n"
             "Continues a prompt and prints the answer.\n\n"
             "  heddle generate ~/models/Qwen3-0.6B --chat --prompt 'Name three colours.'\n";
    case kTokenize:
      return "heddle tokenize MODEL [options] < texts\n\n"
             "Prints the token ids of each line of standard input as one JSON array. MODEL may be\n"
             "a model's folder, its tokenizer file, or a GGUF file, even one without weights.\n\n"
             "  echo 'Hello world' | heddle tokenize ~/models/Qwen3-0.6B\n";
    case kInspect:
      return "heddle inspect MODEL [options]\n\n"
             "Shows architecture, formats and memory of a model, and how many tokens fit here.\n"
             "Reads no weights.\n\n"
             "  heddle inspect ~/models/Qwen3-0.6B\n";
    case kRender:
      return "heddle render --template FILE < conversation.json\n\n"
             "Reads one JSON object with the template's variables (messages, tools,\n"
             "add_generation_prompt, bos_token, ...) from standard input and prints the text.\n\n"
             "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | "
             "heddle render --template chat.jinja\n";
    case kBench:
      return "heddle bench MODEL [options]\n"
             "       heddle bench --random-weights SHAPE [--weights FORMAT] [options]\n\n"
             "Runs prompts and then decodes, step by step without a server, and prints tokens per\n"
             "second beside the machine's own limits, measured just before and after: bytes read\n"
             "while decoding, operations during prompts. Every sequence has --prompt-tokens "
             "random\n"
             "tokens. With --json each batch size gives one object on a line of its own.\n\n"
             "  heddle bench --random-weights tinyllama-1.1b --weights q4_0 --batch 1,8,32\n";
    case kSimulate:
      return "heddle simulate MODEL | --shape SHAPE [options]\n\n"
             "Runs the server's scheduler against a trace or a synthetic load on a machine that "
             "is\n"
             "only a formula, thousands of times faster than life. Prints latencies, throughput "
             "and\n"
             "the use of the KV memory over time. Reads no weights.\n\n"
             "  heddle simulate --shape llama-3.1-8b --hardware h100 --rate 20 --lengths "
             "lognormal\n";
    case kPlan:
      return "heddle plan MODEL | --shape SHAPE [--users N] [--context TOKENS] [options]\n\n"
             "Says what fits into a machine's memory, what limits it, the speed that its data "
             "sheet\n"
             "allows and the one to expect. Memory is planned by the code that serve uses. Reads "
             "no\n"
             "weights.\n\n"
             "  heddle plan --shape llama-3.1-8b --hardware h200 --users 64 --context 8192\n";
  }
  return "";
}

}  // namespace heddle::config
