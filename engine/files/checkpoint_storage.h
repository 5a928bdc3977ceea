// The state that a Checkpoint owns; private to engine/files (it includes the JSON library).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/files/checkpoint.h"
#include "engine/files/gguf.h"
#include "engine/files/mapped_file.h"
#include "engine/files/quantized/quantized_matrix.h"
#include "engine/files/safetensors.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {

struct Checkpoint::Storage {
  std::filesystem::path path;
  nlohmann::json config = nlohmann::json::object();
  nlohmann::json generation_config = nlohmann::json::object();
  std::vector<SafetensorsFile> safetensors_files;
  std::vector<GgufFile> gguf_files;  // one, or the parts of a split model in order
  std::vector<std::unique_ptr<QuantizedMatrix>> matrices;
  std::vector<std::vector<std::byte>> replaced;  // data that is in no file
  std::vector<CheckpointTensor> tensors;         // sorted by name, views into the files
  int64_t total_bytes = 0;

  // Fills `tensors` from the files. REQUIRES: the files are complete and stay where they are.
  absl::Status IndexTensors();

  // REQUIRES: it is there.
  CheckpointTensor& Existing(std::string_view name);

  // The path of the file that holds a tensor's bytes, for messages.
  std::string FileOf(const CheckpointTensor& tensor) const;

  // The file that holds a tensor's bytes; nullptr if none does.
  const MappedFile* MappingOf(const CheckpointTensor& tensor) const;
};

}  // namespace heddle::engine
