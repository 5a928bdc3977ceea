#include "engine/adapter/load_adapter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "engine/adapter/adapter_tensors.h"
#include "engine/adapter/build_factors.h"
#include "engine/adapter/pack_ranks.h"
#include "engine/adapter/place_modules.h"
#include "engine/files/gguf.h"

namespace heddle::engine {

absl::StatusOr<LoadedAdapter> LoadAdapter(const std::filesystem::path& path,
                                          const AdapterTarget& target) {
  // A file may have twice the bytes of the image, if it holds F32.
  HEDDLE_ASSIGN_OR_RETURN(const AdapterFile file, ReadAdapterFile(path, 2 * target.max_bytes));
  FactorBuilder factors(file, target);
  HEDDLE_ASSIGN_OR_RETURN(std::string modules, PlaceModules(file, target, &factors));
  absl::StatusOr<std::shared_ptr<AdapterImage>> image = PackForRanks(factors.sources(), target);
  if (!image.ok()) return AtFile(file, image.status());
  LoadedAdapter loaded{.image = *std::move(image), .summary = file.summary};
  for (int32_t rank = 0; rank < loaded.image->num_ranks(); ++rank) {
    loaded.summary.max_rank =
        std::max(loaded.summary.max_rank, loaded.image->OfRank(rank).max_rank);
  }
  loaded.summary.parameters = factors.num_parameters();
  loaded.summary.modules = std::move(modules);
  return loaded;
}

bool IsAdapter(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return std::filesystem::exists(path / "adapter_config.json", error);
  }
  if (path.extension() != ".gguf") return false;
  const absl::StatusOr<GgufFile> gguf = GgufFile::Open(path);
  if (!gguf.ok()) return false;
  const absl::StatusOr<std::string_view> type = gguf->StringOr("general.type", "");
  return type.ok() && *type == "adapter";
}

}  // namespace heddle::engine
