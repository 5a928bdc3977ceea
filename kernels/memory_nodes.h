// Memory of machines with several NUMA nodes. Source: mbind(2), get_mempolicy(2), sysfs node/.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace heddle::kernels {

// The numbers of a list as the kernel writes them, such as "0-1,3", rising; empty if it is none.
std::vector<int> ParseNodeList(std::string_view list);

// Nodes that have memory and that this process may use.
std::vector<int> MemoryNodes();

// Spreads the pages of [memory, memory + bytes), none of them touched yet, over `nodes` in turn, so
// that all threads together read at the rate of all nodes. False, and nothing changed, if the
// system does not allow it or the process was started under a policy of its own (numactl).
bool InterleaveOverNodes(void* memory, size_t bytes, const std::vector<int>& nodes);

}  // namespace heddle::kernels
