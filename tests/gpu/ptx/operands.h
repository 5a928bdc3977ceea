// Names and operands of a kernel while it is read. Sections of the ISA: 4.4 "Identifiers", 4.5
// "Constants", 6 "Instruction Operands".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// Meanings of names, by scope. Registers get rows of the kernel, or predicates.
class Names {
 public:
  explicit Names(Kernel& kernel) : kernel_(kernel), scopes_(1) {}

  void Open() { scopes_.emplace_back(); }
  void Close() { scopes_.pop_back(); }
  int32_t depth() const { return static_cast<int32_t>(scopes_.size()); }

  // ".b32 %r<12>" or ".pred p, q": what is behind .reg.
  absl::Status DeclareRegisters(std::string_view text);
  void DeclareSymbol(std::string_view name, Operand::Space space, uint64_t value);

  // An operand as it is written. Names of labels stay names (kLabel, `text`), as they may come
  // later: whatever is no other name is one.
  absl::StatusOr<Operand> Read(std::string_view text) const;
  // Several, separated by commas, or by '|' where an instruction has two destinations.
  absl::StatusOr<std::vector<Operand>> ReadList(std::string_view text) const;

 private:
  struct Registers {
    uint8_t bytes;  // 0: predicates
    int32_t first, count;
  };
  struct Scope {
    std::map<std::string, Registers, std::less<>> registers;  // a single one by its whole name
    std::map<std::string, Registers, std::less<>> families;   // %r<12> by "%r"
    std::map<std::string, Operand, std::less<>> symbols;
  };
  int32_t Allocate(uint8_t bytes, int32_t count);
  bool FindRegister(std::string_view name, Operand* operand) const;
  absl::StatusOr<Operand> ReadAddress(std::string_view text) const;

  Kernel& kernel_;
  std::vector<Scope> scopes_;
};

// "12", "-3", "0x1F", "0f3F800000", "0d3FF0000000000000".
bool ReadNumber(std::string_view text, uint64_t* value);

// Bytes of ".b32" and such, 0 for ".pred", -1 for what is no type.
int TypeBytes(std::string_view type);

}  // namespace heddle::ptx
