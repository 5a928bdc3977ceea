#include "engine/files/mapping_faults.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "catch2/catch.hpp"
#include "engine/files/mapped_file.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

// The end of a process, and what it writes to standard error.
struct End {
  int status = 0;
  std::string text;
};

End RunApart(const std::function<void()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    signal(SIGBUS, SIG_DFL);  // Catch's handler would tell of a failed test
    ReportMappingFaults();
    body();
    _exit(0);
  }
  close(ends[1]);
  End end;
  char block[512];
  for (ssize_t count = 0; (count = read(ends[0], block, sizeof(block))) > 0;) {
    end.text.append(block, static_cast<size_t>(count));
  }
  close(ends[0]);
  waitpid(child, &end.status, 0);
  return end;
}

TEST_CASE("A file that is truncated while it is mapped ends the process with its name",
          "[files][unit]") {
  const test::TempDir dir;
  const std::string path = (dir / "model.safetensors").string();
  std::ofstream(path) << std::string(100'000, 'x');
  const End end = RunApart([&] {
    const auto other = MappedFile::Open(path);
    const auto file = MappedFile::Open(path);
    if (!file.ok() || truncate(path.c_str(), 100) != 0) _exit(2);
    volatile std::byte last = file->bytes()[99'999];
    static_cast<void>(last);
  });
  REQUIRE(WIFEXITED(end.status));
  CHECK(WEXITSTATUS(end.status) == 1);
  CHECK_THAT(end.text, Catch::Contains(path) && Catch::Contains("became shorter"));
}

TEST_CASE("Another SIGBUS does what it did", "[files][unit]") {
  const End end = RunApart([] {
    raise(SIGBUS);
    raise(SIGBUS);
  });
  REQUIRE(WIFSIGNALED(end.status));
  CHECK(WTERMSIG(end.status) == SIGBUS);
  CHECK(end.text.empty());
}

TEST_CASE("A mapping that is gone is no longer known by its file", "[files][unit]") {
  const test::TempDir dir;
  const std::string path = (dir / "model.gguf").string();
  std::ofstream(path) << std::string(100'000, 'x');
  for (int i = 0; i < 5000; ++i) REQUIRE(MappedFile::Open(path).ok());  // more than are remembered
  const End end = RunApart([&] {
    const auto file = MappedFile::Open(path);
    if (!file.ok() || truncate(path.c_str(), 0) != 0) _exit(2);
    volatile std::byte first = file->bytes()[0];
    static_cast<void>(first);
  });
  CHECK_THAT(end.text, Catch::Contains(path));
}

}  // namespace
}  // namespace heddle::engine
