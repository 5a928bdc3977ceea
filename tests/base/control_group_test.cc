#include "base/control_group.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace heddle::base {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr const char* kMountV2 =
    "29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 "
    "rw,nsdelegate,memory_recursiveprot";

// The files that say in which groups a process is and what those may take.
class Machine {
 public:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = dir_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text << "\n";
  }
  void Write(const std::string& path, int64_t number) const { Write(path, std::to_string(number)); }
  ControlGroup Read() const { return ReadControlGroup(dir_.path()); }

 private:
  test::TempDir dir_;
};

TEST_CASE("A service's MemoryMax counts, although the topmost group has no limit", "[unit]") {
  Machine machine;
  machine.Write("proc/self/mountinfo", kMountV2);
  machine.Write("proc/self/cgroup", "0::/system.slice/heddle.service");
  const std::string own = "sys/fs/cgroup/system.slice/heddle.service/";
  machine.Write(own + "memory.max", 2 * kGiB);
  machine.Write(own + "memory.current", kGiB / 2);
  CHECK(machine.Read().memory_limit == 2 * kGiB);
  CHECK(machine.Read().memory_available == 3 * kGiB / 2);
  CHECK(machine.Read().cpus == ControlGroup::kUnlimited);

  SECTION("the least of all groups on the way counts") {
    machine.Write("sys/fs/cgroup/system.slice/memory.max", 4 * kGiB);
    machine.Write("sys/fs/cgroup/system.slice/memory.current", 7 * kGiB / 2);  // neighbours, too
    CHECK(machine.Read().memory_limit == 2 * kGiB);
    CHECK(machine.Read().memory_available == kGiB / 2);
  }
  SECTION("memory.high, from which on a group is held back, is a limit") {
    machine.Write(own + "memory.high", kGiB);
    CHECK(machine.Read().memory_limit == kGiB);
    CHECK(machine.Read().memory_available == kGiB / 2);
  }
  SECTION("pages of files that were read once are not taken") {
    machine.Write(own + "memory.stat", "anon 1\nfile 400000000\ninactive_file 268435456");
    CHECK(machine.Read().memory_available == 7 * kGiB / 4);
  }
  SECTION("a group that has more than it may has nothing left") {
    machine.Write(own + "memory.current", 3 * kGiB);
    CHECK(machine.Read().memory_available == 0);
  }
}

TEST_CASE("A quota of CPU time counts along the path", "[unit]") {
  Machine machine;
  machine.Write("proc/self/mountinfo", kMountV2);
  machine.Write("proc/self/cgroup", "0::/kubepods/pod1/heddle");
  machine.Write("sys/fs/cgroup/kubepods/pod1/heddle/cpu.max", "max 100000");
  CHECK(machine.Read().cpus == ControlGroup::kUnlimited);
  machine.Write("sys/fs/cgroup/kubepods/pod1/cpu.max", "350000 100000");
  CHECK(machine.Read().cpus == 3);
  machine.Write("sys/fs/cgroup/kubepods/pod1/heddle/cpu.max", "20000 100000");
  CHECK(machine.Read().cpus == 1);
}

TEST_CASE("Version 1 has a hierarchy for each controller", "[unit]") {
  Machine machine;
  machine.Write("proc/self/mountinfo",
                "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
                "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
  machine.Write("proc/self/cgroup",
                "9:name=systemd:/docker/x\n4:memory:/docker/x\n1:cpu,cpuacct:/a\n0::/");
  const std::string memory = "sys/fs/cgroup/memory/";  // what is mounted is /docker/x itself
  machine.Write(memory + "memory.limit_in_bytes", 3 * kGiB);
  machine.Write(memory + "memory.usage_in_bytes", kGiB);
  machine.Write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", 200000);
  machine.Write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", 100000);
  CHECK(machine.Read().memory_limit == 3 * kGiB);
  CHECK(machine.Read().memory_available == 2 * kGiB);
  CHECK(machine.Read().cpus == 2);

  SECTION("the limit of a group above, which is not to be seen from here, stands in the counts") {
    machine.Write(memory + "memory.stat", "cache 1\nhierarchical_memory_limit 1073741824");
    CHECK(machine.Read().memory_limit == kGiB);
    CHECK(machine.Read().memory_available == kGiB);
  }
  SECTION("the number that stands for no limit is none") {
    machine.Write(memory + "memory.limit_in_bytes", "9223372036854771712");
    machine.Write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", -1);
    CHECK(machine.Read().memory_limit == ControlGroup::kUnlimited);
    CHECK(machine.Read().cpus == ControlGroup::kUnlimited);
  }
  SECTION("both versions at once: the lesser counts") {
    machine.Write("sys/fs/cgroup/unified/memory.max", kGiB);
    CHECK(machine.Read().memory_limit == kGiB);
  }
}

TEST_CASE("A container sees its own group as the topmost one", "[unit]") {
  Machine machine;
  machine.Write("proc/self/mountinfo", kMountV2);
  machine.Write("proc/self/cgroup", "0::/");
  machine.Write("sys/fs/cgroup/memory.max", kGiB);
  CHECK(machine.Read().memory_limit == kGiB);
  SECTION("also where the path is the host's, which is not there") {
    machine.Write("proc/self/cgroup", "0::/system.slice/docker-1.scope");
    CHECK(machine.Read().memory_limit == kGiB);
  }
  SECTION("also where the path begins outside") {
    machine.Write("proc/self/cgroup", "0::/../elsewhere");
    CHECK(machine.Read().memory_limit == kGiB);
  }
  SECTION("also where no list of mounts is to be seen") {
    machine.Write("proc/self/mountinfo", "");
    CHECK(machine.Read().memory_limit == kGiB);
  }
}

TEST_CASE("A mount of another place is found by the list of mounts", "[unit]") {
  Machine machine;
  machine.Write("proc/self/mountinfo",
                "29 23 0:26 / /run/control\\040groups rw,relatime - cgroup2 none rw");
  machine.Write("proc/self/cgroup", "0::/a:b c");  // a group's name may hold colons and spaces
  machine.Write("run/control groups/a:b c/memory.max", kGiB);
  CHECK(machine.Read().memory_limit == kGiB);
}

TEST_CASE("What makes no sense limits nothing and ends nothing", "[unit]") {
  Machine machine;
  machine.Write("proc/self/mountinfo", kMountV2);
  machine.Write("proc/self/cgroup", "0::/a");
  for (const std::string& text :
       {std::string(), std::string("max"), std::string("-1"), std::string("1e9"), std::string("x"),
        std::string("99999999999999999999"), std::string(3 << 20, '9'), std::string(64, '\0')}) {
    INFO(text.substr(0, 32));
    machine.Write("sys/fs/cgroup/a/memory.max", text);
    CHECK(machine.Read().memory_limit == ControlGroup::kUnlimited);
  }
  for (const char* text : {"", "max", "100000", "-5 100000", "100000 0", "x y", "1e9 1"}) {
    INFO(text);
    machine.Write("sys/fs/cgroup/a/cpu.max", text);
    CHECK(machine.Read().cpus == ControlGroup::kUnlimited);
  }
}

TEST_CASE("Damaged lists are read without harm", "[unit]") {
  Machine machine;
  const std::string mounts = std::string(kMountV2) + "\n35 31 0:32 / /m rw - cgroup c rw,memory\n";
  const std::string groups = "4:memory:/docker/x\n0::/a/b/c\n";
  std::mt19937 random(20);
  for (int round = 0; round < 300; ++round) {
    auto damage = [&](std::string text) {
      for (int i = 0; i < 4; ++i) text[random() % text.size()] = " :/-\n\\0."[random() % 8];
      return text.substr(0, random() % text.size());
    };
    machine.Write("proc/self/mountinfo", damage(mounts));
    machine.Write("proc/self/cgroup", damage(groups));
    CHECK(machine.Read().cpus == ControlGroup::kUnlimited);
  }
  std::string deep = "0::";
  for (int i = 0; i < 5000; ++i) deep += "/a";
  machine.Write("proc/self/mountinfo", kMountV2);
  machine.Write("proc/self/cgroup", deep);
  CHECK(machine.Read().cpus == ControlGroup::kUnlimited);
}

}  // namespace
}  // namespace heddle::base
