// Properties of characters by the names that \p{...} has in regular expressions: ECMA-262's (tables
// "Binary Unicode property aliases" and "Non-binary Unicode property aliases"), which other
// dialects share, and names of scripts alone, as Rust and Python's `regex` take them.
#pragma once

#include <string_view>

#include "engine/grammar/code_points.h"

namespace heddle::engine::grammar {

// nullptr if there is no such property. The first use of a name takes some milliseconds; the set is
// kept for the life of the process, as there are some hundreds of names. Thread-safe.
const CodePointSet* FindProperty(std::string_view name);

}  // namespace heddle::engine::grammar
