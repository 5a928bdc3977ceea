// Where tests find the checkout, the build, and the shared data that is not part of the project.
#pragma once

#include <filesystem>
#include <string_view>

namespace heddle::test {

// Root of the checkout (HEDDLE_SOURCE_DIR, set by ctest) or the nearest parent with
// CMakePresets.json.
std::filesystem::path SourceDir();

// `../shared/data/<relative>` beside the checkout (or below HEDDLE_SHARED_DATA). Where it is
// missing, prints "SKIPPED: <test program> needs <path>" and ends the program with exit code 77,
// which ctest reports as skipped: call it first in a test program whose every case needs the data.
std::filesystem::path SharedDataOrSkip(std::string_view relative);

// Whether that path is there, for tests that have other cases to run.
bool HasSharedData(std::string_view relative);

}  // namespace heddle::test
