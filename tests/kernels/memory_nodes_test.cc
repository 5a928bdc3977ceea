// Node lists as /sys has them, and that memory is bound as asked, by what the system says of it.
#include "kernels/memory_nodes.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

#include "catch2/catch.hpp"
#include "kernels/host_memory.h"
#include "tests/support/temp_dir.h"

namespace heddle::kernels {
namespace {

TEST_CASE("Lists of nodes are read as the kernel writes them", "[kernels][unit]") {
  CHECK(ParseNodeList("0\n") == std::vector<int>{0});
  CHECK(ParseNodeList("\t0-3\n") == std::vector<int>{0, 1, 2, 3});
  CHECK(ParseNodeList("0-1,4,6-7") == std::vector<int>{0, 1, 4, 6, 7});
  for (const char* bad :
       {"", "\n", "a", "1-", "-1", "3-1", "0,0", "2,1", "0-1-2", "0,,1", "99999"}) {
    INFO(bad);
    CHECK(ParseNodeList(bad).empty());
  }
}

TEST_CASE("Processors are found in their nodes", "[kernels][unit]") {
  test::TempDir root;
  const std::pair<const char*, const char*> all[] = {{"node0", "0-3,8-11\n"},
                                                     {"node1", "4-7,12-15\n"}};
  for (const auto& [node, cpus] : all) {
    std::filesystem::create_directories(root / node);
    std::ofstream(root / node / "cpulist") << cpus;
  }
  const auto nodes = [&](std::vector<int> cpus) { return NodesOfProcessors(cpus, root.path()); };
  CHECK(nodes({2, 9}) == std::vector<int>{0});
  CHECK(nodes({15}) == std::vector<int>{1});
  CHECK(nodes({3, 4}) == std::vector<int>{0, 1});
  CHECK(nodes({16}).empty());
  CHECK(NodesOfProcessors(std::vector<int>{0}, root / "none").empty());
}

TEST_CASE("Interleaved memory is under that policy", "[kernels][unit]") {
  const std::vector<int> nodes = MemoryNodes();
  if (nodes.empty()) {
    WARN("this system does not say which memory nodes it has");
    return;
  }
  constexpr size_t kBytes = 1 << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  if (InterleaveOverNodes(memory, kBytes, nodes)) {
    int policy = -1;
    char* last = static_cast<char*>(memory) + kBytes - 1;
    REQUIRE(syscall(SYS_get_mempolicy, &policy, nullptr, 0, last, MPOL_F_ADDR) == 0);
    CHECK(policy == MPOL_INTERLEAVE);
    *last = 1;  // and it can be had
  } else {
    WARN("this system does not let the process bind memory");
  }
  CHECK_FALSE(InterleaveOverNodes(memory, kBytes, {}));
  munmap(memory, kBytes);
}

TEST_CASE("Memory that a limit of the process forbids is not said to lack", "[kernels][unit]") {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;  // of the whole address space
  REQUIRE(pages > 0);
  constexpr int64_t kMiB = int64_t{1} << 20;
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  rlimit less = before;
  less.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + 64 * kMiB);
  REQUIRE(setrlimit(RLIMIT_AS, &less) == 0);
  const auto buffer = AllocateHost(256 * kMiB, "a buffer");
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  REQUIRE_FALSE(buffer.ok());
  const std::string message(buffer.status().message());
  INFO(message);
  CHECK(message.find("ulimit -v") != std::string::npos);
}

}  // namespace
}  // namespace heddle::kernels
