// Adapters on the disk: a folder of Hugging Face PEFT, or a GGUF file.
#pragma once

#include "server/adapters/adapter_source.h"

namespace heddle::server {

class DiskAdapterSource final : public AdapterSource {
 public:
  // The model that `target` points to outlives the source and does not change.
  explicit DiskAdapterSource(const engine::AdapterTarget& target) : target_(target) {}

  absl::StatusOr<AdapterStamp> Stat(const std::filesystem::path& path,
                                    const std::filesystem::path& root) override;
  absl::StatusOr<engine::LoadedAdapter> Load(const std::filesystem::path& path) override {
    return engine::LoadAdapter(path, target_);
  }

 private:
  const engine::AdapterTarget target_;
};

}  // namespace heddle::server
