// The callables of a template: functions of the environment, macros, bound methods, and `loop`
// itself.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/heap.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

struct ForStmt;    // ast.h
struct MacroStmt;  // ast.h
struct Scope;      // evaluator.h

struct Args {
  absl::InlinedVector<Value, 4> positional;
  absl::InlinedVector<std::pair<std::string_view, Value>, 2> named;
};

// Sorts `args` into one value per parameter name, kMissing if not given, with Python's messages for
// too many, too few or unknown arguments.
absl::Status BindArgs(const Args& args, std::string_view function,
                      std::span<const std::string_view> names, size_t required,
                      std::span<Value> out);

template <size_t N>
absl::StatusOr<std::array<Value, N>> Bind(const Args& args, std::string_view function,
                                          size_t required, const std::string_view (&names)[N]) {
  std::array<Value, N> out;
  if (absl::Status s = BindArgs(args, function, names, required, out); !s.ok()) return s;
  return out;
}

// The type of every filter, test and method: `self` is the value to the left of the bar, the `is`
// or the dot.
using BuiltinFunction = absl::StatusOr<Value> (*)(Heap& heap, const Value& self, const Args& args);

struct Builtin {
  std::string_view name;
  BuiltinFunction function;  // nullptr: a modifying method, which the sandbox forbids
};

const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);

// The methods of one name: the meaning of `x.name` if x is a text, a sequence or a dictionary. They
// are looked up once, when the template is parsed.
struct MethodSet {
  const Builtin* of_text = nullptr;
  const Builtin* of_list = nullptr;
  const Builtin* of_tuple = nullptr;
  const Builtin* of_dict = nullptr;

  const Builtin* For(const Value& object) const;
};
MethodSet FindMethods(std::string_view name);

enum class Global : uint8_t { kRange, kNamespace, kDict, kRaiseException, kStrftimeNow };

struct Callable {
  enum class Kind : uint8_t { kGlobal, kMethod, kLoopCycle, kLoopChanged, kMacro };
  Kind kind;
  std::string_view name;
  Global global = Global::kRange;
  const Builtin* method = nullptr;   // kMethod, of `self`
  Value self = {};                   // kMethod, kLoopCycle, kLoopChanged
  const MacroStmt* macro = nullptr;  // kMacro, with the scope that it was defined in
  Scope* scope = nullptr;
};

// The `loop` object inside a for.
struct LoopState {
  std::span<const Value> items;
  size_t index0 = 0;
  int64_t depth0 = 0;                      // depth of a recursive loop
  const ForStmt* statement;                // the body that loop(...) repeats, if it is recursive
  Scope* scope;                            // scope around the loop
  const Sequence* last_changed = nullptr;  // arguments of the last loop.changed(...)
};

}  // namespace heddle::engine::text::jinja
