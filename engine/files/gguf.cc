// Typed access to the metadata that gguf_parser.cc has found and checked.
#include "engine/files/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/message.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

// Every type that the format has defined and that occurs in files; block sizes as in ggml.
constexpr GgmlTypeInfo kGgmlTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},
    {25, "I16", 1, 2},        {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
};

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Calls visit(T{}) with the C++ type of a scalar; false for strings and arrays.
template <typename Visitor>
bool VisitScalar(GgufType type, Visitor visit) {
  switch (type) {
    case GgufType::kU8:
      visit(uint8_t{});
      return true;
    case GgufType::kI8:
      visit(int8_t{});
      return true;
    case GgufType::kU16:
      visit(uint16_t{});
      return true;
    case GgufType::kI16:
      visit(int16_t{});
      return true;
    case GgufType::kU32:
      visit(uint32_t{});
      return true;
    case GgufType::kI32:
      visit(int32_t{});
      return true;
    case GgufType::kU64:
      visit(uint64_t{});
      return true;
    case GgufType::kI64:
      visit(int64_t{});
      return true;
    case GgufType::kF32:
      visit(float{});
      return true;
    case GgufType::kF64:
      visit(double{});
      return true;
    case GgufType::kBool:
      visit(uint8_t{});
      return true;
    case GgufType::kString:
    case GgufType::kArray:
      return false;
  }
  return false;
}

bool IsInteger(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kString &&
         type != GgufType::kArray && type != GgufType::kBool;
}

// Element `index` of packed scalars of `type`, converted to T: int64_t for integers (a larger u64
// saturates), double for all.
template <typename T>
T ScalarAt(GgufType type, const std::byte* base, uint64_t index) {
  T result{};
  VisitScalar(type, [&](auto tag) {
    using Stored = decltype(tag);
    Stored value = Load<Stored>(base + index * sizeof(Stored));
    if constexpr (std::is_same_v<T, int64_t> && std::is_same_v<Stored, uint64_t>) {
      constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
      result = static_cast<int64_t>(std::min(value, kMax));
    } else {
      result = static_cast<T>(+value);  // the + makes chars numbers
    }
  });
  return result;
}

template <typename T>
absl::StatusOr<T> OrAbsent(absl::StatusOr<T> found, T absent) {
  if (absl::IsNotFound(found.status())) return absent;
  return found;
}

}  // namespace

std::string_view Name(GgufType type) {
  static constexpr std::string_view kNames[] = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                "i32", "f32", "bool", "string", "array",
                                                "u64", "i64", "f64"};
  size_t index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

const GgmlTypeInfo* FindGgmlType(uint32_t id) {
  for (const GgmlTypeInfo& info : kGgmlTypes) {
    if (info.id == id) return &info;
  }
  return nullptr;
}

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> keys;
  keys.reserve(metadata_.size());
  for (const auto& [key, value] : metadata_) keys.push_back(key);
  return keys;
}

absl::StatusOr<const GgufFile::Value*> GgufFile::Find(std::string_view key) const {
  auto it = metadata_.find(key);
  if (it == metadata_.end()) {
    return absl::NotFoundError(base::StrCat(name_, ": no metadata key ", base::Quote(key)));
  }
  return &it->second;
}

absl::Status GgufFile::WrongType(std::string_view key, const Value& value,
                                 std::string_view expected) const {
  std::string found = value.type == GgufType::kArray
                          ? base::StrCat("array of ", Name(value.element_type))
                          : std::string(Name(value.type));
  return absl::InvalidArgumentError(base::StrCat(name_, ": metadata key ", base::Quote(key), " is ",
                                                 found, ", expected ", expected));
}

absl::StatusOr<std::string_view> GgufFile::String(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufType::kString) return WrongType(key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size());
}

absl::StatusOr<int64_t> GgufFile::Int(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (!IsInteger(value->type)) return WrongType(key, *value, "an integer");
  return ScalarAt<int64_t>(value->type, value->bytes.data(), 0);
}

absl::StatusOr<double> GgufFile::Float(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  bool is_number =
      IsInteger(value->type) || value->type == GgufType::kF32 || value->type == GgufType::kF64;
  if (!is_number) return WrongType(key, *value, "a number");
  return ScalarAt<double>(value->type, value->bytes.data(), 0);
}

absl::StatusOr<bool> GgufFile::Bool(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufType::kBool) return WrongType(key, *value, "a bool");
  return Load<uint8_t>(value->bytes.data()) != 0;
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return WrongType(key, *value, "an array of strings");
  }
  std::vector<std::string_view> strings;
  strings.reserve(value->count);  // the parser has checked that all are in the file
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    uint64_t length = Load<uint64_t>(at);
    at += sizeof(length);
    strings.emplace_back(reinterpret_cast<const char*>(at), length);
    at += length;
  }
  return strings;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  bool fits = value->type == GgufType::kArray &&
              (IsInteger(value->element_type) || value->element_type == GgufType::kBool);
  if (!fits) return WrongType(key, *value, "an array of integers");
  std::vector<int64_t> ints(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    ints[i] = ScalarAt<int64_t>(value->element_type, value->bytes.data(), i);
  }
  return ints;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  HEDDLE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  bool fits = value->type == GgufType::kArray && value->element_type != GgufType::kString &&
              value->element_type != GgufType::kArray && value->element_type != GgufType::kBool;
  if (!fits) return WrongType(key, *value, "an array of numbers");
  std::vector<float> floats(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    floats[i] = static_cast<float>(ScalarAt<double>(value->element_type, value->bytes.data(), i));
  }
  return floats;
}

absl::StatusOr<std::string_view> GgufFile::StringOr(std::string_view key,
                                                    std::string_view absent) const {
  return OrAbsent(String(key), absent);
}
absl::StatusOr<int64_t> GgufFile::IntOr(std::string_view key, int64_t absent) const {
  return OrAbsent(Int(key), absent);
}
absl::StatusOr<bool> GgufFile::BoolOr(std::string_view key, bool absent) const {
  return OrAbsent(Bool(key), absent);
}

bool GgufFile::IsArray(std::string_view key) const {
  auto it = metadata_.find(key);
  return it != metadata_.end() && it->second.type == GgufType::kArray;
}

int64_t GgufFile::ArrayLength(std::string_view key) const {
  return IsArray(key) ? static_cast<int64_t>(metadata_.find(key)->second.count) : 0;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace heddle::engine
