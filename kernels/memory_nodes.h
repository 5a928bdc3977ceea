// Memory placement on machines with several NUMA nodes. Source: mbind(2), get_mempolicy(2), sysfs
// node/.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace heddle::kernels {

// Parses a list as the kernel writes it, such as "0-1,3", into ascending numbers; empty if invalid.
std::vector<int> ParseNodeList(std::string_view list);

// The nodes that have memory and that this process may use.
std::vector<int> MemoryNodes();

// The nodes, ascending, that these processors belong to, of the first kMaxMemoryNodes. `root` is
// /sys/devices/system/node, or a test's. Empty where the system does not say.
inline constexpr int kMaxMemoryNodes = 64;
std::vector<int> NodesOfProcessors(std::span<const int> processors,
                                   const std::filesystem::path& root = "/sys/devices/system/node");

// Spreads the pages of [memory, memory + bytes), all of them untouched yet, over `nodes` in turn,
// so that all threads together read at the rate of all nodes. Returns false, with nothing changed,
// if the system does not allow it or the process was started under its own policy (numactl).
bool InterleaveOverNodes(void* memory, size_t bytes, const std::vector<int>& nodes);

}  // namespace heddle::kernels
