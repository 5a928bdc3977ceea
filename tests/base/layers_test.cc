// Holds DESIGN's layering: which folder may include which. Reads the sources as text, because
// CMake accepts static libraries that include each other in a circle.
#include <algorithm>
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
    {"scheduler", {"base", "scheduler"}},  // and kStepHeaders
    {"server", {"base", "config", "kernels", "engine", "scheduler", "server", "proto"}},
};

// The contract of a step: plain data, all that the scheduler sees of the engine.
const std::set<std::string> kStepHeaders = {"engine/ids.h",       "engine/kv_spans.h",
                                            "engine/page_rule.h", "engine/sampling_params.h",
                                            "engine/step.h",      "engine/step_result.h"};

// The subfolders ("rooms") of a folder, and what of that folder they may include beside their own
// files, by the beginnings of paths. Files of the folder itself may include all.
const std::map<std::string, std::map<std::string, std::set<std::string>>> kRooms = {
    {"kernels/cpu/",
     {{"attention/",
       {"vec/", "kernel_table.h", "registers_in_use.h", "scratch.h", "span_positions.h",
        "thread_pool.h", "tiles_amx.h"}},
      {"linear/",
       {"vec/", "adapters.h", "kernel_table.h", "linear_table.h", "op_costs.h",
        "registers_in_use.h", "scratch.h", "thread_pool.h", "tiles_amx.h"}},
      {"vec/", {}}}},
    {"kernels/cuda/",
     {{"attention/", {"primitives/", "runtime/stream.h", "device_batch.h", "norm_adapters.h"}},
      {"linear/", {"attention/key_place.cuh", "primitives/", "runtime/", "device_batch.h"}},
      {"rows/", {"linear/", "primitives/", "runtime/", "device_batch.h", "norm_adapters.h"}},
      {"sample/", {"primitives/", "runtime/stream.h"}},
      {"state/", {"primitives/", "runtime/", "device_batch.h"}},
      {"primitives/", {"runtime/stream.h", "runtime/tensor_map.h"}},
      {"runtime/", {}}}},
    {"server/",
     {{"adapters/", {"request/", "retry_after.h"}},
      {"batch/", {"json_writer.h", "request/"}},
      {"branches/",
       {"answer/", "generation.h", "json_writer.h", "openai/", "parallel/", "request/", "text/"}},
      {"ranks/", {"log.h", "retry_after.h", "tls/"}},
      {"request/", {"json_writer.h", "retry_after.h"}},
      {"reward/", {"json_writer.h", "log.h", "request/"}},
      {"toolcalls/", {"request/"}},
      {"text/", {"generation.h", "toolcalls/"}},
      {"answer/",
       {"adapters/adapter_names.h", "generation.h", "json_writer.h", "parallel/", "request/",
        "text/", "toolcalls/"}},
      {"openai/",
       {"adapters/", "answer/", "generation.h", "json_writer.h", "parallel/", "request/", "text/",
        "toolcalls/"}},
      {"parallel/", {"text/"}},
      {"anthropic/", {"answer/", "json_writer.h", "openai/", "request/", "toolcalls/"}},
      {"kserve/", {"answer/", "json_writer.h", "openai/", "request/", "text/", "toolcalls/"}},
      {"llamacpp/",
       {"answer/", "generation.h", "json_writer.h", "openai/", "request/", "text/", "toolcalls/"}},
      {"ollama/", {"answer/", "json_writer.h", "openai/", "request/", "text/", "toolcalls/"}}}},
    {"engine/",
     {{"files/", {}},
      {"text/", {"files/", "ids.h"}},
      {"family/", {"files/", "ids.h", "model/model_spec.h", "model/pooled_output.h"}},
      {"memory/", {"ids.h", "kv_spans.h", "page_rule.h"}},
      {"parallel/", {"executor.h", "model/model_spec.h", "step.h"}},
      {"draft/", {"ids.h"}},
      {"heads/", {"family/", "files/", "ids.h", "memory/", "model/"}},
      {"grammar/", {"ids.h", "text/"}},
      {"sample/", {"grammar/", "ids.h", "step.h"}}}},
};

// These replace the device's primitives under HEDDLE_CUDA_EMULATE; they are test code, in tests/.
const std::set<std::string> kEmulatedPrimitives = {"tests/emulate/peer_primitives_host.cuh",
                                                   "tests/emulate/primitives_host.cuh",
                                                   "tests/emulate/primitives_hopper_host.cuh"};

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
        const bool step_header = folder == "scheduler" && kStepHeaders.contains(include);
        const bool emulated = folder == "kernels" && kEmulatedPrimitives.contains(include);
        CHECK((allowed.contains(target) || step_header || emulated));
      }
    }
  }
  CHECK(files > 5);
}

TEST_CASE("No room includes one that it may not see", "[unit]") {
  for (const auto& [folder, rooms] : kRooms) {
    for (const auto& [room, allowed] : rooms) {
      int files = 0;
      for (const auto& entry : fs::directory_iterator(test::SourceDir() / (folder + room))) {
        ++files;
        for (const std::string& include : QuotedIncludes(entry.path())) {
          if (!include.starts_with(folder)) continue;
          const std::string seen = include.substr(folder.size());
          INFO(entry.path().string() << " includes " << include);
          CHECK((seen.starts_with(room) ||
                 std::any_of(allowed.begin(), allowed.end(),
                             [&](const std::string& begin) { return seen.starts_with(begin); })));
        }
      }
      CHECK(files > 0);
    }
  }
}

}  // namespace
}  // namespace heddle
