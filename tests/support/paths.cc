#include "tests/support/paths.h"

#include <cstdio>
#include <cstdlib>

namespace heddle::test {
namespace {

std::filesystem::path SharedData(std::string_view relative) {
  if (const char* dir = std::getenv("HEDDLE_SHARED_DATA")) {
    return std::filesystem::path(dir) / relative;
  }
  return SourceDir().parent_path() / "shared" / "data" / relative;
}

}  // namespace

std::filesystem::path SourceDir() {
  if (const char* dir = std::getenv("HEDDLE_SOURCE_DIR")) return dir;
  std::filesystem::path dir = std::filesystem::current_path();
  while (dir.has_relative_path() && !std::filesystem::exists(dir / "CMakePresets.json")) {
    dir = dir.parent_path();
  }
  return dir;
}

std::filesystem::path SharedDataOrSkip(std::string_view relative) {
  std::filesystem::path path = SharedData(relative);
  if (!std::filesystem::exists(path)) {
    std::printf("SKIPPED: needs %s\n", path.c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
  return path;
}

bool HasSharedData(std::string_view relative) {
  return std::filesystem::exists(SharedData(relative));
}

}  // namespace heddle::test
