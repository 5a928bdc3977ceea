#include "kernels/memory_nodes.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace heddle::kernels {
namespace {

constexpr int kMaxNodes = 1024;
constexpr int kWordBits = static_cast<int>(sizeof(unsigned long) * CHAR_BIT);

// Returns Mems_allowed_list of /proc/self/status.
std::string AllowedNodes() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kKey = "Mems_allowed_list:";
    if (line.starts_with(kKey)) return line.substr(kKey.size());
  }
  return "";
}

}  // namespace

std::vector<int> ParseNodeList(std::string_view list) {
  std::vector<int> nodes;
  while (!list.empty() && (list.back() == '\n' || list.back() == ' ')) list.remove_suffix(1);
  while (!list.empty() && (list.front() == '\t' || list.front() == ' ')) list.remove_prefix(1);
  if (list.empty()) return nodes;
  const std::vector<std::string> ranges = absl::StrSplit(std::string(list), ',');
  for (const std::string& range : ranges) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int first = 0;
    int last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= kMaxNodes ||
        (!nodes.empty() && first <= nodes.back())) {
      return {};
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int> MemoryNodes() {
  std::string line;
  std::ifstream in("/sys/devices/system/node/has_memory");
  std::getline(in, line);
  const std::vector<int> present = ParseNodeList(line);
  const std::vector<int> allowed = ParseNodeList(AllowedNodes());
  std::vector<int> nodes;
  std::set_intersection(present.begin(), present.end(), allowed.begin(), allowed.end(),
                        std::back_inserter(nodes));
  return nodes;
}

std::vector<int> NodesOfProcessors(std::span<const int> processors,
                                   const std::filesystem::path& root) {
  std::vector<int> nodes;
  for (int node = 0; node < kMaxMemoryNodes; ++node) {
    std::string line;
    std::ifstream in(root / ("node" + std::to_string(node)) / "cpulist");
    std::getline(in, line);
    const std::vector<int> own = ParseNodeList(line);
    if (std::any_of(processors.begin(), processors.end(), [&](int processor) {
          return std::binary_search(own.begin(), own.end(), processor);
        })) {
      nodes.push_back(node);
    }
  }
  return nodes;
}

bool InterleaveOverNodes(void* memory, size_t bytes, const std::vector<int>& nodes) {
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0) return false;
  if (policy != MPOL_DEFAULT) return false;
  std::array<unsigned long, kMaxNodes / kWordBits> mask = {};
  for (const int node : nodes) mask[node / kWordBits] |= 1ul << (node % kWordBits);
  return syscall(SYS_mbind, memory, bytes, MPOL_INTERLEAVE, mask.data(), kMaxNodes, 0) == 0;
}

}  // namespace heddle::kernels
