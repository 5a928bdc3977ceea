#include "base/control_group.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

namespace heddle::base {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = ControlGroup::kUnlimited;
// Larger numbers mean no limit: version 1 writes the largest number of pages, in bytes.
constexpr int64_t kNoNumber = kUnlimited / 2;
// The kernel's files are far smaller, but a container may have other files in their place.
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr int kMaxDepth = 64;  // nested groups; the kernel's users have some ten
constexpr int kMaxMounts = 64;

std::string ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  char block[4096];
  while (text.size() < kMaxFileBytes && (in.read(block, sizeof(block)), in.gcount() > 0)) {
    text.append(block, static_cast<size_t>(in.gcount()));
  }
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool Names(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = Split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Parses a number from 0 on; "max", -1 and anything else give none.
std::optional<int64_t> ToNumber(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  int64_t value = 0;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &value)) return std::nullopt;
  return value >= 0 && value < kNoNumber ? std::optional(value) : std::nullopt;
}

int64_t ReadLimit(const fs::path& path) { return ToNumber(ReadText(path)).value_or(kUnlimited); }

// The number after `key` in a file of lines "key number".
std::optional<int64_t> ReadKey(const fs::path& path, std::string_view key) {
  const std::string text = ReadText(path);
  for (std::string_view line : Split(text, '\n')) {
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ') {
      return ToNumber(line.substr(key.size() + 1));
    }
  }
  return std::nullopt;
}

// The whole CPUs that a quota allows.
int64_t CpusOf(std::optional<int64_t> quota_us, std::optional<int64_t> period_us) {
  if (quota_us.value_or(0) <= 0 || period_us.value_or(0) <= 0) return kUnlimited;
  return std::max<int64_t>(1, *quota_us / *period_us);
}

// One hierarchy of groups: version 2 has one with all controllers, version 1 several with some
// each.
struct Hierarchy {
  bool is_v2 = false;
  bool memory = false;
  bool cpu = false;
};

void AddMemory(const fs::path& folder, bool is_v2, ControlGroup* all) {
  int64_t limit = ReadLimit(folder / (is_v2 ? "memory.max" : "memory.limit_in_bytes"));
  if (is_v2) {
    limit = std::min(limit, ReadLimit(folder / "memory.high"));
  } else {  // also covers groups above, visible from here or not
    const auto above = ReadKey(folder / "memory.stat", "hierarchical_memory_limit");
    all->memory_limit = std::min(all->memory_limit, above.value_or(kUnlimited));
  }
  if (limit == kUnlimited) return;
  const auto used =
      ToNumber(ReadText(folder / (is_v2 ? "memory.current" : "memory.usage_in_bytes")));
  const auto unused_files =
      ReadKey(folder / "memory.stat", is_v2 ? "inactive_file" : "total_inactive_file");
  const int64_t taken = std::max<int64_t>(0, used.value_or(0) - unused_files.value_or(0));
  all->memory_limit = std::min(all->memory_limit, limit);
  all->memory_available = std::min(all->memory_available, std::max<int64_t>(0, limit - taken));
}

void AddCpu(const fs::path& folder, bool is_v2, ControlGroup* all) {
  int64_t cpus = kUnlimited;
  if (is_v2) {
    const std::string text = ReadText(folder / "cpu.max");
    const std::vector<std::string_view> words = Split(text, ' ');
    if (words.size() >= 2) cpus = CpusOf(ToNumber(words[0]), ToNumber(words[1]));
  } else {
    cpus = CpusOf(ToNumber(ReadText(folder / "cpu.cfs_quota_us")),
                  ToNumber(ReadText(folder / "cpu.cfs_period_us")));
  }
  all->cpus = std::min(all->cpus, cpus);
}

void AddFolder(const fs::path& folder, const Hierarchy& hierarchy, ControlGroup* all) {
  if (hierarchy.memory) AddMemory(folder, hierarchy.is_v2, all);
  if (hierarchy.cpu) AddCpu(folder, hierarchy.is_v2, all);
}

// Adds `folder` and the folders on the way from it to `group`. Missing folders limit nothing.
void AddPath(fs::path folder, const fs::path& group, const Hierarchy& hierarchy,
             ControlGroup* all) {
  AddFolder(folder, hierarchy, all);
  int depth = 0;
  for (const fs::path& part : group.relative_path()) {
    if (part == ".." || ++depth > kMaxDepth) return;
    if (part.empty() || part == ".") continue;
    folder /= part;
    AddFolder(folder, hierarchy, all);
  }
}

// Undoes mountinfo's escapes: a space is written as \040.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) { return at < text.size() ? text[at] - '0' : -1; };
    const int a = digit(i + 1), b = digit(i + 2), c = digit(i + 3);
    const bool is_octal = a >= 0 && a < 4 && b >= 0 && b < 8 && c >= 0 && c < 8;
    if (text[i] == '\\' && is_octal) {
      out.push_back(static_cast<char>(a * 64 + b * 8 + c));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

// A mount of a hierarchy, and the part of its groups that it shows.
struct Mount {
  Hierarchy hierarchy;
  fs::path group;   // the topmost visible group
  fs::path folder;  // below the file system's root
};

// Parses a line of mountinfo: "id parent device root folder options [tags] - type source options".
std::optional<Mount> ParseMount(std::string_view line) {
  const std::vector<std::string_view> words = Split(line, ' ');
  const auto dash = std::find(words.begin(), words.end(), "-");
  if (dash - words.begin() < 6 || words.end() - dash < 2) return std::nullopt;
  Mount mount;
  if (dash[1] == "cgroup2") {
    mount.hierarchy = {.is_v2 = true, .memory = true, .cpu = true};
  } else if (dash[1] == "cgroup" && words.end() - dash >= 4) {
    mount.hierarchy = {.memory = Names(dash[3], "memory"), .cpu = Names(dash[3], "cpu")};
  }
  if (!mount.hierarchy.memory && !mount.hierarchy.cpu) return std::nullopt;
  mount.group = Unescape(words[3]);
  mount.folder = Unescape(words[4]);
  return mount;
}

std::vector<Mount> Mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  const std::string text = ReadText(root / "proc/self/mountinfo");
  for (std::string_view line : Split(text, '\n')) {
    std::optional<Mount> mount = ParseMount(line);
    if (mount && mounts.size() < kMaxMounts) mounts.push_back(*std::move(mount));
  }
  if (!mounts.empty()) return mounts;
  // In a sandbox mountinfo may be missing; then the customary place is used.
  const fs::path custom = "/sys/fs/cgroup";
  mounts.push_back({{.is_v2 = true, .memory = true, .cpu = true}, "/", custom});
  mounts.push_back({{.memory = true}, "/", custom / "memory"});
  mounts.push_back({{.cpu = true}, "/", custom / "cpu"});
  return mounts;
}

// The path of `group` below `top`; nullopt if it is elsewhere.
std::optional<fs::path> Below(const fs::path& group, const fs::path& top) {
  auto [rest, end] = std::mismatch(group.begin(), group.end(), top.begin(), top.end());
  if (end != top.end() && !end->empty()) return std::nullopt;
  fs::path below;
  for (; rest != group.end(); ++rest) below /= *rest;
  return below;
}

// A line of /proc/self/cgroup: "0::/path" for version 2, "4:cpu,cpuacct:/path" for version 1.
struct Membership {
  Hierarchy hierarchy;
  fs::path group;
};

std::vector<Membership> Memberships(const fs::path& root) {
  std::vector<Membership> all;
  const std::string text = ReadText(root / "proc/self/cgroup");
  for (std::string_view line : Split(text, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos || all.size() >= kMaxMounts) continue;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    const Hierarchy hierarchy = {.is_v2 = names.empty(),
                                 .memory = names.empty() || Names(names, "memory"),
                                 .cpu = names.empty() || Names(names, "cpu")};
    all.push_back({hierarchy, line.substr(second + 1)});
  }
  return all;
}

bool AddMember(const Mount& mount, const Membership& member, const fs::path& folder,
               ControlGroup* all) {
  const Hierarchy both = {.is_v2 = mount.hierarchy.is_v2,
                          .memory = mount.hierarchy.memory && member.hierarchy.memory,
                          .cpu = mount.hierarchy.cpu && member.hierarchy.cpu};
  if (member.hierarchy.is_v2 != both.is_v2 || (!both.memory && !both.cpu)) return false;
  const std::optional<fs::path> below = Below(member.group, mount.group);
  if (below) AddPath(folder, *below, both, all);
  return below.has_value();
}

}  // namespace

ControlGroup ReadControlGroup(const fs::path& root) {
  ControlGroup all;
  const std::vector<Membership> memberships = Memberships(root);
  for (const Mount& mount : Mounts(root)) {
    const fs::path folder = root / mount.folder.relative_path();
    bool is_inside = false;
    for (const Membership& member : memberships) {
      is_inside = AddMember(mount, member, folder, &all) || is_inside;
    }
    // In a container the path may be the host's and not be below the mount; the mount's own folder
    // is then the container's.
    if (!is_inside) AddFolder(folder, mount.hierarchy, &all);
  }
  all.memory_available = std::min(all.memory_available, all.memory_limit);
  return all;
}

}  // namespace heddle::base
