// Checks the shape of a JSON text before anything is built from it: parsers, copies and printers of
// trees are recursive, and look-ups in ordered objects are linear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace heddle::base {

struct JsonShape {
  enum class Excess : uint8_t { kNone, kDepth, kMembers };
  Excess excess = Excess::kNone;
  size_t offset = 0;  // of the byte that exceeds the limit
};

// The first place where brackets nest deeper than `max_depth`, or an object has more than
// `max_members` members; arrays may be long. Invalid JSON is left to the parser, which reports it.
JsonShape FindExcess(std::string_view text, int max_depth, int max_members);

}  // namespace heddle::base
