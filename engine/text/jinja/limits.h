// Limits on the cost of one chat template. Templates come with models and are untrusted: an endless
// or exploding one must end in an error. The defaults exceed the needs of the largest real
// templates with chats of a megabyte by a factor of 50 and more. At the full depth a rendering
// takes up to 1.5 MiB of stack: do not render on a thread with less than 4 MiB.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::engine::text {

struct TemplateLimits {
  size_t max_source_bytes = 1 << 20;
  int max_nesting = 100;         // brackets, tags and operators within each other in the source
  int max_tree_height = 300;     // of one expression: `a + b + c + ...` counts each operator
  int max_depth = 1000;          // nodes being evaluated at once; macros may call themselves
  uint64_t max_steps = 4000000;  // nodes evaluated; about 0.2 s
  uint64_t max_built_bytes = 512u << 20;  // bytes of values built in all
  size_t max_output_bytes = 64u << 20;
};

}  // namespace heddle::engine::text
