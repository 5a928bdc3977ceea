#include "tests/gpu/ptx/operands.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/gpu/ptx/statements.h"

namespace heddle::ptx {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

absl::Status Unknown(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not understood: ", std::string(what)));
}

// Cuts at commas and bars outside of brackets.
std::vector<std::string_view> SplitList(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (depth > 0 || (c != ',' && c != '|')) continue;
    parts.push_back(Trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  return parts;
}

}  // namespace

int TypeBytes(std::string_view type) {
  if (type == ".pred") return 0;
  if (type.size() < 3 || type[0] != '.' || std::string_view("bsuf").find(type[1]) > 3) return -1;
  int bits = 0;
  const auto [end, error] = std::from_chars(type.data() + 2, type.data() + type.size(), bits);
  return error == std::errc() && end == type.data() + type.size() ? bits / 8 : -1;
}

bool ReadNumber(std::string_view text, uint64_t* value) {
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  if (text.empty() || !IsDigit(text[0])) return false;
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && std::string_view("xXfFdD").find(text[1]) < 6) {
    base = 16;
    text.remove_prefix(2);
  }
  if (text.back() == 'U') text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base);
  if (negative) *value = -*value;
  return error == std::errc() && end == text.data() + text.size();
}

int32_t Names::Allocate(uint8_t bytes, int32_t count) {
  int32_t& next = bytes == 0 ? kernel_.num_predicates : kernel_.num_rows;
  const int32_t first = next;
  next += count * std::max<int32_t>(1, bytes);
  return first;
}

absl::Status Names::DeclareRegisters(std::string_view text) {
  const std::string_view type = TakeUntil(" \t\n", &text);
  const int bytes = TypeBytes(type);
  if (bytes < 0 || bytes == 1 || bytes > 8) return Unknown(".reg " + std::string(type));
  for (std::string_view name : SplitList(text)) {
    const size_t angle = name.find('<');
    uint64_t count = 1;
    if (angle != std::string_view::npos &&
        !ReadNumber(Trim(name.substr(angle + 1, name.find('>') - angle - 1)), &count)) {
      return Unknown(name);
    }
    if (count > 1'000'000) return Unknown(name);
    const auto width = static_cast<uint8_t>(bytes);
    const auto number = static_cast<int32_t>(count);
    auto& where =
        angle == std::string_view::npos ? scopes_.back().registers : scopes_.back().families;
    where[std::string(Trim(name.substr(0, angle)))] = {width, Allocate(width, number), number};
  }
  return absl::OkStatus();
}

void Names::DeclareSymbol(std::string_view name, Operand::Space space, uint64_t value) {
  Operand operand;
  operand.kind = Operand::Kind::kSymbol;
  operand.space = space;
  operand.value = value;
  operand.text = std::string(name);
  scopes_.back().symbols[operand.text] = operand;
}

bool Names::FindRegister(std::string_view name, Operand* operand) const {
  size_t digits = name.size();
  while (digits > 0 && IsDigit(name[digits - 1])) --digits;
  int32_t number = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), number);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const Registers* found = nullptr;
    int32_t index = 0;
    if (const auto one = scope->registers.find(name); one != scope->registers.end()) {
      found = &one->second;
    } else if (const auto many = scope->families.find(name.substr(0, digits));
               many != scope->families.end() && digits < name.size() &&
               number < many->second.count) {
      found = &many->second;
      index = number;
    }
    if (found == nullptr) continue;
    operand->kind = found->bytes == 0 ? Operand::Kind::kPredicate : Operand::Kind::kRow;
    operand->bytes = found->bytes;
    operand->row = found->first + index * std::max<int32_t>(1, found->bytes);
    return true;
  }
  return false;
}

absl::StatusOr<Operand> Names::ReadAddress(std::string_view text) const {
  std::string_view rest = Trim(text.substr(1, text.size() - 2));
  const std::string_view base_text = TakeUntil("+,", &rest);
  Operand address;
  HEDDLE_ASSIGN_OR_RETURN(Operand base, Read(base_text));
  address.kind = Operand::Kind::kAddress;
  address.space = base.space;
  switch (base.kind) {
    case Operand::Kind::kRow:
      address.row = base.row;
      address.bytes = base.bytes;
      break;
    case Operand::Kind::kSymbol:
    case Operand::Kind::kImmediate:
      address.value = base.value;
      break;
    default:
      return Unknown(text);
  }
  if (!rest.empty() && rest[0] == '+') {
    rest.remove_prefix(1);
    uint64_t offset = 0;
    if (!ReadNumber(TakeUntil(",", &rest), &offset)) return Unknown(text);
    address.value += offset;
  }
  if (!rest.empty()) {  // coordinates
    HEDDLE_ASSIGN_OR_RETURN(Operand coordinates, Read(Trim(rest.substr(1))));
    if (coordinates.kind != Operand::Kind::kVector) return Unknown(text);
    address.elements = std::move(coordinates.elements);
  }
  return address;
}

absl::StatusOr<Operand> Names::Read(std::string_view text) const {
  Operand operand;
  if (text.empty()) return Unknown("an empty operand");
  if (text[0] == '{' || text[0] == '[') {
    if (text.back() != (text[0] == '{' ? '}' : ']')) return Unknown(text);
    if (text[0] == '[') return ReadAddress(text);
    operand.kind = Operand::Kind::kVector;
    HEDDLE_ASSIGN_OR_RETURN(operand.elements, ReadList(text.substr(1, text.size() - 2)));
    return operand;
  }
  if (text == "_") return operand;
  if (text[0] == '!') {
    if (!FindRegister(text.substr(1), &operand)) return Unknown(text);
    operand.negated = true;
    return operand;
  }
  if (FindRegister(text, &operand)) return operand;
  if (text[0] == '%') {
    operand.kind = Operand::Kind::kSpecial;
    operand.text = std::string(text);
    return operand;
  }
  if (ReadNumber(text, &operand.value)) {
    operand.kind = Operand::Kind::kImmediate;
    return operand;
  }
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto symbol = scope->symbols.find(text);
    if (symbol != scope->symbols.end()) return symbol->second;
  }
  operand.kind = Operand::Kind::kLabel;
  operand.text = std::string(text);
  return operand;
}

absl::StatusOr<std::vector<Operand>> Names::ReadList(std::string_view text) const {
  std::vector<Operand> operands;
  for (const std::string_view part : SplitList(text)) {
    HEDDLE_ASSIGN_OR_RETURN(Operand operand, Read(part));
    operands.push_back(std::move(operand));
  }
  return operands;
}

}  // namespace heddle::ptx
