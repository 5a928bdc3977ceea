#include "engine/adapter/adapter_tensors.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/strings.h"
#include "kernels/host_memory.h"

namespace heddle::engine {
namespace {

absl::Status ModuleError(const AdapterFile& file, std::string_view module, std::string_view what) {
  return absl::InvalidArgumentError(
      base::StrCat(file.path, ": module ", base::Quote(module), " ", what));
}

std::string ShapeText(const AdapterTensor& tensor) {
  return base::StrCat("[", tensor.rows, ", ", tensor.cols, "]");
}

}  // namespace

absl::StatusOr<OwnedBytes> AllocateBytes(int64_t size) {
  OwnedBytes bytes;
  HEDDLE_ASSIGN_OR_RETURN(std::shared_ptr<kernels::Buffer> buffer,
                          kernels::AllocateHost(std::max<int64_t>(size, 1), "an adapter"));
  auto* data = static_cast<std::byte*>(buffer->data());
  bytes.data = std::shared_ptr<std::byte[]>(std::move(buffer), data);
  bytes.size = static_cast<size_t>(size);
  return bytes;
}

absl::StatusOr<OwnedBytes> ReadWholeFile(const std::filesystem::path& path, int64_t max_bytes) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) {
    const std::string why = std::strerror(errno);
    return absl::NotFoundError(base::StrCat(path.string(), ": ", why));
  }
  if (!S_ISREG(found.st_mode)) {
    return absl::InvalidArgumentError(base::StrCat(path.string(), ": is no regular file"));
  }
  const auto size = static_cast<int64_t>(found.st_size);
  if (max_bytes > 0 && size > max_bytes) {
    return absl::ResourceExhaustedError(base::StrCat(path.string(), ": has ", base::ShowBytes(size),
                                                     "; adapters may have up to ",
                                                     base::ShowBytes(max_bytes)));
  }
  HEDDLE_ASSIGN_OR_RETURN(OwnedBytes bytes, AllocateBytes(size));
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(bytes.data.get()), static_cast<std::streamsize>(size));
  if (!in || in.gcount() != size) {
    return absl::InvalidArgumentError(
        base::StrCat(path.string(), ": could not be read, or became shorter meanwhile"));
  }
  return bytes;
}

int64_t RankOf(const AdapterModule& module, bool is_gguf, int64_t n_experts) {
  if (module.is_embedding) return module.b.cols;
  return is_gguf && module.a.stack > 1 ? module.b.cols : module.a.rows / n_experts;
}

absl::Status CheckModules(const AdapterFile& file) {
  if (file.modules.empty()) {
    return absl::InvalidArgumentError(base::StrCat(file.path, ": has no factors of any module"));
  }
  for (const auto& [name, module] : file.modules) {
    if (!module.has_factors()) {
      if (!module.magnitude.empty())
        return ModuleError(file, name, "has a magnitude and no factors");
      if (!module.b_bias.empty()) return ModuleError(file, name, "has a bias of B and no factors");
      continue;
    }
    if (module.a.empty()) return ModuleError(file, name, "has a factor B and no A");
    if (module.b.empty()) return ModuleError(file, name, "has a factor A and no B");
    if (!module.weight.empty()) {
      return ModuleError(file, name, "has factors, and a whole matrix in place of the base's");
    }
    const int64_t ranks_of_a = module.is_embedding && file.is_gguf ? module.a.cols : module.a.rows;
    const int64_t ranks_of_b = module.b.stack > 1 ? module.b.stack * module.b.cols : module.b.cols;
    if (ranks_of_a != ranks_of_b || module.a.stack != module.b.stack) {
      return ModuleError(file, name,
                         base::StrCat("has factors of different ranks: A is ", ShapeText(module.a),
                                      " and B is ", ShapeText(module.b)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<AdapterFile> ReadAdapterFile(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  absl::StatusOr<AdapterFile> file = std::filesystem::is_directory(path, error)
                                         ? ReadPeftFolder(path, max_bytes)
                                         : ReadGgufAdapter(path, max_bytes);
  if (!file.ok()) return file.status();
  HEDDLE_RETURN_IF_ERROR(CheckModules(*file));
  return file;
}

}  // namespace heddle::engine
