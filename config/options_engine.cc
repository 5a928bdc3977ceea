#include "config/option_tables.h"

namespace heddle::config {
namespace {

constexpr std::string_view kModel = "Model";
constexpr std::string_view kEngine = "Engine";

constexpr std::string_view kIsas[] = {"auto",      "portable", "avx2",        "avx2_vnni",
                                      "avx512_bw", "avx512",   "avx512_bf16", "amx"};
constexpr std::string_view kKvTypes[] = {"auto", "f32", "f16", "bf16", "fp8", "int8"};
constexpr std::string_view kWireTypes[] = {"f32", "bf16"};
constexpr std::string_view kNetworks[] = {"host", "auto", "nccl"};
constexpr std::string_view kWeightFormats[] = {
    "auto",   "int8",   "int4",  "f32",  "f16",     "bf16",      "q8_0",      "q4_0",
    "q4_1",   "q5_0",   "q5_1",  "q2_k", "q3_k",    "q4_k",      "q5_k",      "q6_k",
    "iq4_nl", "iq4_xs", "mxfp4", "fp8",  "nf4",     "int4_g128", "int8_g128", "tq2_0",
    "nvfp4",  "fp4",    "iq1",   "iq2",  "iq3_xxs", "iq3_s"};
constexpr std::string_view kPolicies[] = {"fcfs", "priority", "deadline", "fair", "shortest"};
constexpr std::string_view kOffOn[] = {"off", "on"};
constexpr std::string_view kCacheScopes[] = {"auto", "key", "all"};

// Options of the model and how it runs. The kv options set the cache's size, type and pages.
constexpr Option kEngineOptions[] = {
    {.name = "model",
     .field = &Config::model,
     .section = kModel,
     .value = "MODEL",
     .help = "Folder of a Hugging Face model (config.json, *.safetensors, tokenizer), a GGUF file, "
             "or demo: the small model that comes with heddle.",
     .commands = kServe | kGenerate | kTokenize | kInspect | kBench | kTune | kPlanning,
     .positional = true},
    {.name = "max-context",
     .field = &Config::max_context,
     .section = kModel,
     .value = "TOKENS",
     .help = "Longest prompt and answer together. 0: what the model was trained for; with LongRoPE "
             "that is the shorter context, and more gives all texts the angles for long ones.",
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
     .commands = kEngineCommands | kBench | kTune},
    {.name = "tune-profile",
     .field = &Config::tune_profile,
     .section = kEngine,
     .value = "FILE",
     .help = "What `heddle tune` found out about this model on this GPU: which steps run as two "
             "halves side by side. `heddle tune` writes it.",
     .commands = kServe | kBench | kTune,
     .default_text = "none: all steps run whole"},
    {.name = "threads",
     .field = &Config::threads,
     .section = kEngine,
     .value = "N",
     .help = "Threads that compute. 0: one per core that this process may use, by its affinity and "
             "its control group's CPU quota.",
     .commands = kEngineCommands | kBench,
     .min = 0,
     .max = 4096,
     .default_text = "one per core"},
    {.name = "tp",
     .field = &Config::tp,
     .section = kEngine,
     .value = "N",
     .help =
         "Tensor parallelism: N ranks share every layer of the model, each with its part of the "
         "weights, of the KV cache and of --threads. It pays where each rank has processors "
         "and memory of its own, such as a socket or a GPU (--rank-devices, docs/parallel.md).",
     .commands = kEngineCommands | kInspect | kBench | kTune | kPlanning,
     .min = 1,
     .max = 64},
    {.name = "pp",
     .field = &Config::pp,
     .section = kEngine,
     .value = "N",
     .help =
         "Pipeline parallelism: N stages have some of the layers each, with --tp ranks in every "
         "stage. Rows pass from stage to stage; a stage needs memory for its own layers only "
         "(docs/parallel.md).",
     .commands = kEngineCommands | kInspect | kBench | kPlanning,
     .min = 1,
     .max = 64},
    {.name = "pp-layers",
     .field = &Config::pp_layers,
     .section = kEngine,
     .value = "LIST",
     .help = "With --pp: the number of layers of each stage, such as 10,12. Stage 0 has embedding "
             "and output head beside its layers.",
     .commands = kEngineCommands | kInspect | kBench | kPlanning,
     .default_text = "so that stages have equally much to compute"},
    {.name = "tp-shares",
     .field = &Config::tp_shares,
     .section = kEngine,
     .value = "LIST",
     .help = "With --tp: how large the shares of a stage's ranks are in proportion, such as 2,1 "
             "where the first rank is twice as fast, or has twice the memory.",
     .commands = kEngineCommands | kInspect | kBench | kPlanning,
     .default_text = "as many processors as --rank-cpus gives each, else equal"},
    {.name = "tp-invariant",
     .field = &Config::tp_invariant,
     .section = kEngine,
     .help =
         "Answers do not depend on --tp, bit for bit, for --tp 1, 2, 4 and 8, at the cost of some "
         "percent of speed. Not for mixtures of experts. CPU only (docs/parallel.md).",
     .commands = kEngineCommands | kInspect | kBench | kPlanning},
    {.name = "expert-parallel",
     .field = &Config::expert_parallel,
     .section = kEngine,
     .help =
         "With --tp and a mixture of experts: each rank has whole experts, some of them, instead "
         "of a part of each. A row then waits for the ranks that have its experts, and a step "
         "for the rank whose experts have most rows (docs/parallel.md).",
     .commands = kEngineCommands | kInspect | kBench | kPlanning},
    {.name = "rank-cpus",
     .field = &Config::rank_cpus,
     .section = kEngine,
     .value = "LISTS",
     .help = "With --tp or --pp: the processors of each rank, stage by stage, such as 0-15:16-31 "
             "for two sockets. A rank's "
             "threads and memory stay there, and it has as many threads as processors, or as "
             "--threads says of each rank. With --ranks-listen and --join: of each rank of this "
             "process, which share layers.",
     .commands = kEngineCommands | kBench | kPlanning,
     .default_text = "ranks share all processors"},
    {.name = "rank-devices",
     .field = &Config::rank_devices,
     .section = kEngine,
     .value = "LIST",
     .help = "With --device cuda and --tp or --pp: the GPU of each rank, stage by stage, such as "
             "0,1. They have to be of one kind, and are fastest where they reach each other's "
             "memory. One that is named twice has two ranks, which is for tests. With "
             "--ranks-listen and --join: of each "
             "rank of this process, which share layers.",
     .commands = kEngineCommands | kBench | kTune,
     .default_text = "the first ones; of a process among several, that of --device"},
    {.name = "ranks-listen",
     .field = &Config::ranks_listen,
     .section = kEngine,
     .value = "HOST:PORT",
     .help = "With --tp or --pp: every rank but the first is a process of its own, here or on "
             "another machine, which runs `heddle serve MODEL --join HOST:PORT`. This process "
             "waits for them there before it loads. Port 0: any (docs/parallel.md).",
     .commands = kServe,
     .default_text = "ranks are threads"},
    {.name = "join",
     .field = &Config::join,
     .section = kEngine,
     .value = "HOST:PORT",
     .help = "Be a rank of the engine whose head listens there (--ranks-listen). The head's "
             "options hold; of this process's own, those about threads, GPUs, memory and --isa.",
     .commands = kServe,
     .default_text = "none"},
    {.name = "rank",
     .field = &Config::rank,
     .section = kEngine,
     .value = "N",
     .help = "With --join: which rank to be, from 1 on, stage by stage. Ranks that share layers "
             "(--tp) belong on one machine, or on a fast link. 0: any that is free.",
     .commands = kServe,
     .min = 0,
     .max = 63},
    {.name = "rank-wire",
     .field = &Config::rank_wire,
     .section = kEngine,
     .value = "TYPE",
     .help = "With --ranks-listen: how sums and rows go from process to process. bf16 halves what "
             "a slow network carries, and rounds: answers are no longer those of ranks in one "
             "process, but still the same whatever else runs.",
     .commands = kServe,
     .choices = kWireTypes},
    {.name = "rank-network",
     .field = &Config::rank_network,
     .section = kEngine,
     .value = "WHAT",
     .help =
         "With --device cuda: how sums and rows go between GPUs that do not reach each other's "
         "memory, those of other processes above all. host: through the host's memory; nccl: "
         "rows of stages and long sums over NVIDIA's NCCL (libnccl.so.2), by RDMA where there "
         "is such a network; auto: the same if NCCL connects all ranks, else the host. Bits are "
         "the same (docs/parallel.md).",
     .commands = kEngineCommands | kBench | kTune,
     .choices = kNetworks},
    {.name = "rank-token-file",
     .field = &Config::rank_token_file,
     .section = kEngine,
     .value = "FILE",
     .help = "A secret that the head and its ranks share, of at least 16 characters. The head "
             "needs one to listen on more than this machine.",
     .commands = kServe,
     .default_text = "none"},
    {.name = "rank-tls-cert",
     .field = &Config::rank_tls_cert,
     .section = kEngine,
     .value = "FILE",
     .help =
         "With --ranks-listen and --join: this process's certificate chain in PEM format. Steps "
         "and messages between the head and its ranks go over TLS 1.2 or 1.3 alone, where each "
         "shows its certificate (docs/parallel.md).",
     .commands = kServe,
     .needs_value = true,
     .default_text = "none: no TLS"},
    {.name = "rank-tls-key",
     .field = &Config::rank_tls_key,
     .section = kEngine,
     .value = "FILE",
     .help = "Private key of --rank-tls-cert in PEM format, without a passphrase.",
     .commands = kServe,
     .needs_value = true,
     .default_text = "none"},
    {.name = "rank-tls-ca",
     .field = &Config::rank_tls_ca,
     .section = kEngine,
     .value = "FILE",
     .help = "Certificates in PEM format of authorities: one of them must have signed the head's "
             "certificate, which is made out to the HOST of --join, and those of all ranks.",
     .commands = kServe,
     .needs_value = true,
     .default_text = "none"},
    {.name = "rank-timeout",
     .field = &Config::rank_timeout,
     .section = kEngine,
     .value = "SECONDS",
     .help = "How long nothing may be heard of a rank in another process before it counts as lost.",
     .commands = kServe,
     .min = 0.5,
     .max = 3600},
    {.name = "rank-rejoin-timeout",
     .field = &Config::rank_rejoin_timeout,
     .section = kEngine,
     .value = "SECONDS",
     .help = "How long a lost rank may take to join again, while streams wait and the others keep "
             "their weights; then all processes end with status 75. 0: they end at once.",
     .commands = kServe,
     .min = 0,
     .max = 86400},
    {.name = "isa",
     .field = &Config::isa,
     .section = kEngine,
     .value = "LEVEL",
     .help = "Instruction set of the CPU kernels. auto: the fastest that this machine has.",
     .commands = kEngineCommands | kBench,
     .choices = kIsas},
    {.name = "kv-memory",
     .field = &Config::kv_memory,
     .section = kEngine,
     .value = "SIZE",
     .help = "Memory of the KV cache, taken at start: a size such as 4GiB, or a share of the free "
             "memory such as 60%. auto: what the other limits can use, within the free memory.",
     .commands = kEngineCommands | kInspect | kBench | kTune | kPlanning},
    {.name = "weights",
     .field = &Config::weights,
     .section = kEngine,
     .value = "FORMAT",
     .help = "Number format of the weights. auto: as the model has them; int8, int4: quantised "
             "while loading, in blocks of 32 with a scale (embeddings and output head never below "
             "int8); fp8: E4M3 with a scale per row (embeddings and output head as they are). The "
             "other formats are for random weights, where auto is bf16.",
     .commands = kEngineCommands | kInspect | kBench | kTune | kPlanning,
     .choices = kWeightFormats},
    {.name = "kv-type",
     .field = &Config::kv_type,
     .section = kEngine,
     .value = "TYPE",
     .help = "Number format of the KV cache. auto: F32 for a model in F32; bf16 for one in BF16 "
             "or below 6 bits on a GPU, and where the processor multiplies BF16 (AVX-512 BF16); "
             "else f16. fp8 and int8 halve its memory.",
     .commands = kEngineCommands | kInspect | kBench | kTune | kPlanning,
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
     .help = "Token positions per page of the KV cache; a power of two. 0: 16, or as many as fill "
             "the state of a model's recurrent layers.",
     .commands = kEngineCommands | kInspect | kBench | kTune | kPlanning,
     .min = 0,
     .max = 4096},
    {.name = "max-batch-tokens",
     .field = &Config::max_batch_tokens,
     .section = kEngine,
     .value = "N",
     .help = "Most tokens computed in one step. More: higher throughput of long prompts; less: "
             "steadier streams beside them.",
     .commands = kEngineCommands | kBench | kTune | kPlanning,
     .min = 1,
     .max = 1 << 20,
     .default_text = "512; on a GPU 2048 from 20 GiB and 4096 from 60 GiB on"},
    {.name = "max-batch-seqs",
     .field = &Config::max_batch_seqs,
     .section = kEngine,
     .value = "N",
     .help = "Most sequences that run at once.",
     .commands = kServe | kPlanning,
     .min = 1,
     .max = 65535,  // blocks of a CUDA grid along y, which scans and draws have for each
     .default_text = "256, on such GPUs 512 and 1024; or a step's tokens if they are fewer"},
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
             "are read in chunks that fit. 0: no target. Not given: twice what the streams take "
             "by themselves once all have begun, and at least 20 ms.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 3600000,
     .default_text = "chosen from the machine"},
    {.name = "prefix-cache",
     .field = EnumOf<&Config::prefix_cache>(),
     .section = kEngine,
     .value = "on|off",
     .help = "Keep what was computed of finished requests for later prompts that begin alike, as "
             "long as nobody needs its memory.",
     .commands = kServe | kPlanning,
     .choices = kOffOn},
    {.name = "prefix-cache-scope",
     .field = EnumOf<&Config::prefix_cache_scope>(),
     .section = kEngine,
     .value = "WHO",
     .help = "Whose requests share what was computed: key, those of one API key; all, everybody's, "
             "who can then find out by trial what others ask. auto: key where there is a file of "
             "keys or more than one key, else all.",
     .commands = kServe,
     .choices = kCacheScopes},
    {.name = "policy",
     .field = &Config::policy,
     .section = kEngine,
     .value = "POLICY",
     .help = "Who is served first: fcfs, who came first; priority, the lowest `priority` of the "
             "request; deadline, who has the least slack before `deadline_ms`; fair, the API key "
             "that was given least; shortest, who has the shortest prompt.",
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
    {.name = "max-client-lead",
     .field = &Config::max_client_lead_ms,
     .section = kEngine,
     .value = "MILLISECONDS",
     .help = "The time of steps that a client (an API key, or without keys an address) may get "
             "beyond its share while others want the machine, under every policy; at least one "
             "step. Shares are equal, or in proportion to the weights in the key file. 0: clients "
             "are not told apart, except by --policy fair.",
     .commands = kServe | kPlanning,
     .min = 0,
     .max = 60000},
    {.name = "speculate",
     .field = &Config::speculate,
     .section = kEngine,
     .value = "DRAFTERS",
     .help =
         "Guess tokens and verify them as rows of one step, where measured times say that it "
         "pays; answers are the same. off; ngram: what followed the same tokens in prompt and "
         "answer; suffix: and in finished answers of the same client; auto: both, and a drafter in "
         "the model's folder; draft:PATH: a smaller model; medusa:PATH, "
         "eagle:PATH, dflash:PATH: such heads; mtp: the model's own. Several with commas, one of "
         "them with "
         "weights. Predicted outputs are "
         "followed with each of them (docs/speculation.md).",
     .commands = kEngineCommands | kBench,
     .splits_commas = true,
     .default_text = "auto"},
    {.name = "speculate-max",
     .field = &Config::speculate_max,
     .section = kEngine,
     .value = "TOKENS",
     .help = "Most guessed tokens per sequence and step. 0: 16, or what --speculative-config says.",
     .commands = kEngineCommands | kBench,
     .min = 0,
     .max = 64,
     .default_text = "16"},
    {.name = "speculative-config",
     .field = &Config::speculative_config,
     .section = kEngine,
     .value = "JSON",
     .help = "vLLM's form of --speculate, such as {\"method\": \"ngram\"}; "
             "docs/speculation.md lists the methods and their members.",
     .commands = kEngineCommands | kBench},
};

}  // namespace

std::span<const Option> EngineOptions() { return kEngineOptions; }

}  // namespace heddle::config
