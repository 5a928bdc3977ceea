// The values of a chat template: Python's, as far as templates can see them.
//
// A Value is 16 bytes and trivially copyable. It owns nothing: texts, sequences, dictionaries and
// namespaces are in the Heap of one rendering (heap.h), in the parsed template, or in the JSON
// context, all of which outlive it. Copying is therefore free, a substring is a view, and a cycle
// through a namespace leaks nothing.
// Thread-safety: only the thread that renders uses a Value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace heddle::engine::text::jinja {

enum class Kind : uint8_t {
  kMissing,    // an argument that was not given; never seen by a template
  kUndefined,  // an undefined name: prints as nothing, fails in arithmetic
  kNone,
  kBool,
  kInt,
  kWideInt,  // above int64_t: JSON schemas contain 18446744073709551615
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kCallable,
  kLoop,
};

enum class SequenceKind : uint8_t {
  kList,
  kTuple,
  kRange,
  kKeys,
  kValues,
  kItems,
  kGenerator,
  kGroup
};

// The reason why a value is undefined, which decides the message of its use.
enum class Absence : uint8_t { kVariable, kAttribute, kElement, kHint };

class Value;
struct Callable;   // callable.h
struct LoopState;  // callable.h

// An immutable sequence. A generator can be iterated once; `consumed` says that it was.
struct Sequence {
  const Value* items;
  uint32_t size;
  mutable bool consumed;
};

struct Dict;       // dict.h
struct Namespace;  // dict.h

class Value {
 public:
  Value() : kind_(Kind::kMissing) {}

  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool b) { return Value(Kind::kBool, static_cast<int64_t>(b)); }
  static Value Int(int64_t i) { return Value(Kind::kInt, i); }
  static Value WideInt(uint64_t u) { return Value(Kind::kWideInt, static_cast<int64_t>(u)); }
  static Value Float(double d);
  // `text` must outlive the value: use Heap::String for a temporary. At most 1 GiB.
  static Value String(std::string_view text, bool markup = false);
  static Value Of(const Sequence* s, SequenceKind kind);
  static Value Of(Dict* d) { return Pointer(Kind::kDict, d); }
  static Value Of(Namespace* n) { return Pointer(Kind::kNamespace, n); }
  static Value Of(const Callable* c) { return Pointer(Kind::kCallable, c); }
  static Value Of(LoopState* l) { return Pointer(Kind::kLoop, l); }

  static Value UndefinedVariable(std::string_view name);
  static Value UndefinedAttribute(const Value& object, std::string_view name);
  static Value UndefinedElement(const Value& object, int64_t index);
  static Value UndefinedHint(std::string_view message);

  Kind kind() const { return kind_; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }
  bool is_sequence(SequenceKind k) const { return is_sequence() && sequence_kind() == k; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const {
    return is_integer() || kind_ == Kind::kFloat || kind_ == Kind::kWideInt;
  }
  bool is_markup() const { return is_string() && tag_ != 0; }

  int64_t integer() const { return payload_.integer; }  // kBool and kInt
  uint64_t wide() const { return static_cast<uint64_t>(payload_.integer); }
  double real() const { return payload_.real; }
  double AsDouble() const;  // any number
  std::string_view text() const { return {payload_.text, size_}; }
  const Sequence& sequence() const { return *payload_.sequence; }
  SequenceKind sequence_kind() const { return static_cast<SequenceKind>(tag_); }
  Dict& dict() const { return *static_cast<Dict*>(payload_.object); }
  Namespace& name_space() const { return *static_cast<Namespace*>(payload_.object); }
  const Callable& callable() const { return *static_cast<const Callable*>(payload_.constant); }
  LoopState& loop() const { return *static_cast<LoopState*>(payload_.object); }
  const void* identity() const { return payload_.constant; }

  // Python's truth value: empty, zero, None and undefined are false.
  bool Truthy() const;
  // type(x).__name__, for messages.
  std::string_view TypeName() const;
  // The message of using an undefined value, such as "'x' is undefined".
  std::string UndefinedMessage() const;

 private:
  explicit Value(Kind kind, int64_t integer = 0) : kind_(kind) { payload_.integer = integer; }
  static Value Pointer(Kind kind, const void* p) {
    Value v(kind);
    v.payload_.constant = p;
    return v;
  }
  std::string OwnerDescription() const;

  Kind kind_;
  uint8_t tag_ = 0;        // SequenceKind, markup flag, or Absence
  uint8_t owner_ = 0;      // Kind of the object, for an undefined attribute
  uint8_t owner_tag_ = 0;  // tag of that object
  uint32_t size_ = 0;      // bytes of text
  union {
    int64_t integer;
    double real;
    const char* text;
    const Sequence* sequence;
    void* object;
    const void* constant;
  } payload_ = {};
};

static_assert(sizeof(Value) == 16);

// The status of an operation that Python forbids; the evaluator adds the line.
absl::Status TemplateError(std::string_view message);
// "... is undefined" for undefined operands, or a TypeError with this message.
absl::Status UndefinedError(const Value& undefined);

}  // namespace heddle::engine::text::jinja
