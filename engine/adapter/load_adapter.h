// Reads LoRA adapters from disk: folders of Hugging Face PEFT, and GGUF files. Everything is
// checked before the image exists: a file is refused with one message that names what is wrong,
// or the adapter works.
//
// The rank comes from the tensors' shapes, the modules from the tensors' names, the scale from the
// configuration (lora_alpha, use_rslora, rank_pattern, alpha_pattern). A field that would change
// the answers and is not supported is refused by name.
// Blocking: reads the whole file, and converts on the caller's thread.
// Thread-safety: any thread; the model's description must not change meanwhile.
// Sources: Hugging Face PEFT's checkpoint format; llama.cpp's GGUF adapters (general.type =
// "adapter", adapter.type = "lora").
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/family/model_description.h"
#include "engine/parallel/shard.h"

namespace heddle::engine {

// The base model and the pool that an adapter's image must fit.
struct AdapterTarget {
  const ModelDescription* model = nullptr;       // the base
  kernels::DType dtype = kernels::DType::kBF16;  // of the factors: kF32, kF16 or kBF16
  int64_t page_bytes = 0;                        // of the pool, of one rank
  int32_t max_rank = 0;                          // larger ranks are refused
  int64_t max_bytes = 0;                         // larger images are refused; 0: no limit
  // The base's files, for adapters that are said relative to its weights (DoRA, biases,
  // modules_to_save). Empty: those are refused.
  std::filesystem::path base;
  // Ranks that share the model, the head's first, and the bytes of a page of each one's pool, which
  // count in place of page_bytes. Fewer than two shares: one rank has all of the model.
  std::span<const Share> shares;
  std::vector<int64_t> rank_page_bytes;
};

// For `heddle inspect` and logs.
struct AdapterSummary {
  std::string format;  // "PEFT" or "GGUF"
  std::string base;    // base_model_name_or_path or the like, as the file has it; may be empty
  int32_t max_rank = 0;
  int64_t parameters = 0;
  int64_t file_bytes = 0;
  std::string modules;  // "q_proj, v_proj in 32 layers"
};

struct LoadedAdapter {
  std::shared_ptr<AdapterImage> image;  // its id is 0: the caller gives it one; holds all ranks'
  AdapterSummary summary;
};

// INVALID_ARGUMENT for a file that is broken, does not fit the model, or asks for what is not
// supported; NOT_FOUND if there is none; RESOURCE_EXHAUSTED above max_bytes.
absl::StatusOr<LoadedAdapter> LoadAdapter(const std::filesystem::path& path,
                                          const AdapterTarget& target);

// Whether the path looks like an adapter and not like a model: a folder with adapter_config.json,
// or a GGUF file of type "adapter".
bool IsAdapter(const std::filesystem::path& path);

}  // namespace heddle::engine
