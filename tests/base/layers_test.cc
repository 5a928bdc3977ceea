// Holds DESIGN's layering: which folder may include which. Reads the sources as text, because
// CMake accepts static libraries that include each other in a circle.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "catch2/catch.hpp"
#include "tests/support/paths.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {"base"}},
    {"config", {"base", "config"}},
    {"kernels", {"base", "kernels"}},
    {"engine", {"base", "kernels", "engine"}},
    {"scheduler", {"base", "scheduler"}},  // and engine/step.h, see below
    {"server", {"base", "config", "kernels", "engine", "scheduler", "server", "proto"}},
};

// Every quoted include of `path`.
std::set<std::string> QuotedIncludes(const fs::path& path) {
  std::set<std::string> includes;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("#include \"", 0) == 0)
      includes.insert(line.substr(10, line.find('"', 10) - 10));
  }
  return includes;
}

TEST_CASE("No source includes a folder that its layer may not see", "[unit]") {
  int files = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    fs::path root = test::SourceDir() / folder;
    if (!fs::exists(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh") {
        continue;
      }
      ++files;
      for (const std::string& include : QuotedIncludes(entry.path())) {
        std::string target = include.substr(0, include.find('/'));
        if (!kMayInclude.contains(target) && target != "tests") continue;  // a library's header
        INFO(entry.path().string() << " includes " << include);
        bool step_header = folder == "scheduler" && include == "engine/step.h";
        CHECK((allowed.contains(target) || step_header));
      }
    }
  }
  CHECK(files > 5);
}

}  // namespace
}  // namespace heddle
