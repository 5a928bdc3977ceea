#include "kernels/cpu/usable_cpus.h"

#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace heddle::kernels::cpu {
namespace {

// The files of a machine that tell which CPUs a process may use.
class Machine {
 public:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = dir_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void Siblings(int cpu, const std::string& list) const {
    Write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          list);
  }
  UsableCpus Find(const std::vector<int>& allowed) const {
    return FindUsableCpus(allowed, dir_.path());
  }

 private:
  heddle::test::TempDir dir_;
};

TEST_CASE("A core that shows as two CPUs is one core", "[kernels][unit]") {
  Machine machine;
  for (int cpu : {0, 4}) machine.Siblings(cpu, "0,4");
  for (int cpu : {1, 5}) machine.Siblings(cpu, "1,5");
  machine.Siblings(2, "2-3");
  machine.Siblings(3, "2-3");
  const UsableCpus all = machine.Find({0, 1, 2, 3, 4, 5});
  CHECK(all.num_cores == 3);
  CHECK(all.num_cpus == 6);
  CHECK(all.ids == std::vector<int>{0, 1, 2, 3, 4, 5});
  const UsableCpus some = machine.Find({3, 4, 5});  // whoever may use no more has three cores
  CHECK(some.num_cores == 3);
  CHECK(some.ids == std::vector<int>{3, 4, 5});
  CHECK(machine.Find({0, 4, 5}).ids == std::vector<int>{0, 5, 4});
}

TEST_CASE("Without a word about cores and quotas each CPU counts", "[kernels][unit]") {
  const UsableCpus usable = Machine().Find({7, 9});
  CHECK(usable.num_cores == 2);
  CHECK(usable.num_cpus == 2);
  CHECK(usable.ids == std::vector<int>{7, 9});
}

TEST_CASE("A control group's quota bounds the threads", "[kernels][unit]") {
  Machine machine;
  const std::vector<int> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  SECTION("version 2, seen from inside of a container") {
    machine.Write("proc/self/cgroup", "0::/");
    machine.Write("sys/fs/cgroup/cpu.max", "350000 100000");
    CHECK(machine.Find(eight).num_cores == 3);
    CHECK(machine.Find(eight).num_cpus == 3);
    CHECK(machine.Find({0, 1}).num_cores == 2);
    machine.Write("sys/fs/cgroup/cpu.max", "50000 100000");
    CHECK(machine.Find(eight).num_cores == 1);
    machine.Write("sys/fs/cgroup/cpu.max", "max 100000");
    CHECK(machine.Find(eight).num_cores == 8);
  }
  SECTION("version 2: the least of all groups on the way") {
    machine.Write("proc/self/cgroup", "0::/system.slice/heddle.service");
    machine.Write("sys/fs/cgroup/system.slice/heddle.service/cpu.max", "600000 100000");
    CHECK(machine.Find(eight).num_cores == 6);
    machine.Write("sys/fs/cgroup/system.slice/cpu.max", "500000 100000");
    CHECK(machine.Find(eight).num_cores == 5);
  }
  SECTION("version 1, whose path is the host's and not there") {
    machine.Write("proc/self/cgroup",
                  "9:name=systemd:/x\n4:cpuset:/x\n1:cpu,cpuacct:/docker/x\n0::/");
    machine.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
    machine.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
    CHECK(machine.Find(eight).num_cores == 2);
    machine.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
    CHECK(machine.Find(eight).num_cores == 8);
  }
  SECTION("what makes no sense limits nothing") {
    for (const char* text : {"", "max", "100000", "-5 100000", "100000 0", "x y", "1e9 1"}) {
      machine.Write("proc/self/cgroup", "0::/../..");
      machine.Write("sys/fs/cgroup/cpu.max", text);
      INFO(text);
      CHECK(machine.Find(eight).num_cores >= 1);
    }
    machine.Write("proc/self/cgroup", "cpu\n::\n0:\n:cpu");
    CHECK(machine.Find(eight).num_cores == 8);
  }
}

TEST_CASE("This process may compute somewhere", "[kernels][unit]") {
  const UsableCpus usable = FindUsableCpus();
  CHECK(usable.num_cores >= 1);
  CHECK(usable.num_cpus >= usable.num_cores);
  CHECK(usable.ids.size() >= static_cast<size_t>(usable.num_cpus));
}

}  // namespace
}  // namespace heddle::kernels::cpu
