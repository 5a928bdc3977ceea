#include "config/option_tables.h"

namespace heddle::config {
namespace {

constexpr std::string_view kAdapters = "LoRA adapters";

constexpr Option kAdapterOptions[] = {
    {.name = "lora",
     .field = &Config::lora,
     .section = kAdapters,
     .value = "NAME=PATH[@SCALE]",
     .help = "Serve the adapter at PATH, a folder of PEFT or a GGUF file, as the model NAME. "
             "Several: repeated, or separated by commas. It is read at start and stays. With "
             "@SCALE behind the PATH, answers of the base model have it at that scale; those of "
             "generate have all that are given, at 1 without a scale.",
     .commands = kServe | kGenerate,
     .splits_commas = true},
    {.name = "lora-merge",
     .field = &Config::lora_merge,
     .section = kAdapters,
     .value = "NAME=PATH",
     .help = "Merge the adapter at PATH into the weights while they are loaded, and serve the "
             "result as the model NAME, at the base's speed.",
     .commands = kEngineCommands,
     .default_text = "none"},
    {.name = "lora-dir",
     .field = &Config::lora_dir,
     .section = kAdapters,
     .value = "DIR",
     .help = "Serve each folder of PEFT and each GGUF file in DIR as a model of that name, read "
             "when a request asks for it, and again when its files have changed.",
     .commands = kServe,
     .default_text = "none"},
    {.name = "allow-lora-updates",
     .field = &Config::allow_lora_updates,
     .section = kAdapters,
     .help = "Let clients load adapters of --lora-dir under other names, unload adapters, and set "
             "their scales. They need an admin key where there are keys.",
     .commands = kServe},
    {.name = "max-lora-rank",
     .field = &Config::max_lora_rank,
     .section = kAdapters,
     .value = "N",
     .help = "Largest rank of an adapter.",
     .commands = kServe | kGenerate,
     .min = 1,
     .max = 512},
    {.name = "lora-host-memory",
     .field = &Config::lora_host_memory,
     .section = kAdapters,
     .value = "SIZE",
     .help = "Memory of the host for adapters, such as 8GiB. Those that nobody uses make room, the "
             "one used longest ago first; those of --lora stay.",
     .commands = kServe | kGenerate,
     .min = 1 << 20,
     .max = 1e15},
};

}  // namespace

std::span<const Option> AdapterOptions() { return kAdapterOptions; }

}  // namespace heddle::config
