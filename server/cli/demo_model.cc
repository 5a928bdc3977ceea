#include "server/cli/demo_model.h"

#include <filesystem>
#include <system_error>

#include "base/message.h"

namespace heddle::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "demo";
constexpr std::string_view kServedName = "heddle-demo";

}  // namespace

absl::Status ResolveDemoModel(config::Config* config) {
  std::error_code error;
  if (config->model != kName || fs::exists(config->model, error)) return absl::OkStatus();
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path prefix = program.parent_path().parent_path();
  for (const char* place : {"share/heddle/demo-model", "share/demo-model"}) {
    const fs::path folder = prefix / place;
    if (!fs::exists(folder / "config.json", error)) continue;
    config->model = folder.string();
    if (config->served_model_name.empty()) config->served_model_name.emplace_back(kServedName);
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      base::StrCat("the demo model is not in ", (prefix / "share/heddle/demo-model").string(),
                   ", where it is installed to; name a model's folder or GGUF file"));
}

}  // namespace heddle::server
