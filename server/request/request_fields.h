// A request's body as its parsers see it: an object whose fields are checked, and of which nothing
// else can be read. To read a field that the route's table does not declare, or as another type
// than it declares, does not compile.
//
// A RequestFields is made by Check alone, which holds the whole object to the table. A function
// that several routes share takes a table of the fields that it reads; where a route's table lacks
// one of them, the call does not compile.
// Ownership: a view; the JSON outlives it. Thread-safety: that of the JSON.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/request/fields.h"

namespace heddle::server {

// The name of a field as a template's argument.
template <size_t n>
struct FieldName {
  // NOLINTNEXTLINE(google-explicit-constructor): names are written as string literals.
  consteval FieldName(const char (&name)[n]) { std::copy(name, name + n, text); }
  constexpr std::string_view view() const { return {text, n - 1}; }

  char text[n] = {};
};

// The row of `name`, or nothing. A span, because GCC 12 takes a comparison of an element's address
// with nullptr for no constant where it checks for undefined behaviour.
constexpr std::span<const Field> FindField(std::span<const Field> table, std::string_view name) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) return table.subspan(i, 1);
  }
  return {};
}

constexpr bool Declares(std::span<const Field> table, std::string_view name, FieldType type) {
  const std::span<const Field> field = FindField(table, name);
  return !field.empty() && field[0].type == type;
}

constexpr bool HoldsNumbers(std::span<const Field> table) {
  return std::all_of(table.begin(), table.end(), [](const Field& field) {
    return field.type == FieldType::kInteger || field.type == FieldType::kNumber;
  });
}

// Whether all of `part` is in `whole`, with the same types.
constexpr bool IsPart(std::span<const Field> part, std::span<const Field> whole) {
  return std::all_of(part.begin(), part.end(), [whole](const Field& field) {
    const std::span<const Field> other = FindField(whole, field.name);
    return !other.empty() && other[0].type == field.type &&
           (field.members.empty() || other[0].members.data() == field.members.data());
  });
}

// The reading of checked members; total, whatever the object holds.
class CheckedObject {
 protected:
  explicit CheckedObject(const Json& object) : object_(&object) {}

  const Json* Member(std::string_view name) const { return Find(*object_, name); }
  bool BoolOr(std::string_view name, bool fallback) const;
  // Beyond the type, the nearest that it holds; integers may be written as 3.0.
  int64_t IntOr(std::string_view name, int64_t fallback) const;
  uint64_t UintOr0(std::string_view name) const;
  double NumberOr(std::string_view name, double fallback) const;

 private:
  const Json* object_;
};

template <const auto& kTable>
class RequestFields : private CheckedObject {
 public:
  // INVALID_ARGUMENT: the object is not what the table says; `path` is its own, for errors.
  static absl::StatusOr<RequestFields> Check(const Json& object, std::string_view path = "") {
    if (absl::Status status = CheckFields(object, kTable, path); !status.ok()) return status;
    return RequestFields(object);
  }

  // Some of the fields of a wider table.
  template <const auto& kWider>
  requires(IsPart(kTable, kWider))
      // NOLINTNEXTLINE(google-explicit-constructor): a part of what is checked is checked.
      RequestFields(const RequestFields<kWider>& wider)
      : CheckedObject(wider) {}

  // `fallback` where the field is missing or null.
  template <FieldName name>
  requires(Declares(kTable, name.view(), FieldType::kBoolean)) bool Bool(bool fallback) const {
    return BoolOr(name.view(), fallback);
  }
  template <FieldName name>
  requires(Declares(kTable, name.view(), FieldType::kInteger)) int64_t Int(int64_t fallback)
  const { return IntOr(name.view(), fallback); }
  // The bits of an integer of 64 bits, with a sign or without; 0: missing.
  template <FieldName name>
  requires(Declares(kTable, name.view(), FieldType::kInteger)) uint64_t Uint()
  const { return UintOr0(name.view()); }
  template <FieldName name>
  requires(Declares(kTable, name.view(), FieldType::kNumber)) double Number(double fallback) const {
    return NumberOr(name.view(), fallback);
  }

  // Calls `take(i, value)` for each row i of a table of numbers whose field is there.
  template <typename Take>
  requires(HoldsNumbers(kTable)) void ForEachNumber(Take take) const {
    for (size_t i = 0; i < std::size(kTable); ++i) {
      if (Member(kTable[i].name) != nullptr) take(i, NumberOr(kTable[i].name, 0));
    }
  }

  // Calls `take(name, value)` for each field that is there.
  template <typename Take>
  void ForEach(Take take) const {
    for (const Field& field : kTable) {
      if (const Json* value = Member(field.name)) take(field.name, *value);
    }
  }

  // nullptr where the field is missing or null.
  template <FieldName name>
  requires(Declares(kTable, name.view(), FieldType::kString)) const std::string* Text() const {
    return TextOf(Member(name.view()));
  }

  // The object, by the table of its own members.
  template <FieldName name, const auto& kMembers>
  requires(Declares(kTable, name.view(), FieldType::kObject) &&
           FindField(kTable, name.view())[0].members.data() ==
               &kMembers[0]) std::optional<RequestFields<kMembers>> Object()
  const {
    const Json* object = Member(name.view());
    if (object == nullptr) return std::nullopt;
    return RequestFields<kMembers>(*object);
  }

  // As it came, but for its type: for what has a form of its own, and for handing on.
  template <FieldName name>
  requires(!FindField(kTable, name.view()).empty()) const Json* Value() const {
    return Member(name.view());
  }

  template <FieldName name>
  requires(!FindField(kTable, name.view()).empty()) bool Has() const {
    return Member(name.view()) != nullptr;
  }

 private:
  template <const auto& kOther>
  friend class RequestFields;

  explicit RequestFields(const Json& object) : CheckedObject(object) {}
};

}  // namespace heddle::server
