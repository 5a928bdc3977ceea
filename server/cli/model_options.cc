#include "server/cli/model_options.h"

#include <filesystem>

namespace heddle::server {

engine::LoadOptions ToLoadOptions(const config::Config& config) {
  engine::LoadOptions options;
  options.cpu.num_threads = static_cast<int32_t>(config.threads);
  options.cpu.isa = config.isa;
  options.kv_type = config.kv_type;
  engine::CapacityOptions& capacity = options.capacity;
  capacity.max_context = static_cast<int32_t>(config.max_context);
  capacity.page_tokens = static_cast<int32_t>(config.page_tokens);
  capacity.max_batch_tokens = static_cast<int32_t>(config.max_batch_tokens);
  capacity.max_batch_seqs = static_cast<int32_t>(config.max_batch_seqs);
  switch (config.kv_memory.kind) {
    case config::MemorySize::Kind::kAuto:
      break;
    case config::MemorySize::Kind::kBytes:
      capacity.kv_bytes = static_cast<int64_t>(config.kv_memory.bytes);
      break;
    case config::MemorySize::Kind::kShare:
      capacity.kv_fraction = config.kv_memory.share;
      break;
  }
  return options;
}

std::string ServedModelName(const config::Config& config) {
  if (!config.served_model_name.empty()) return config.served_model_name.front();
  std::filesystem::path path = std::filesystem::absolute(config.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "models/demo/"
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

}  // namespace heddle::server
