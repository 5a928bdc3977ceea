// Cuts PTX text into statements: what ends with ';', a label, a brace that opens or closes a scope,
// a directive. Sections of the ISA: 4.1 "Source Format", 4.2 "Comments", 4.3 "Statements".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::ptx {

struct Statement {
  enum class Kind : uint8_t { kEnd, kOpen, kClose, kLabel, kDirective, kInstruction };
  Kind kind = Kind::kEnd;
  std::string_view text;  // without the ';', ':' or '{' that ends it
  int32_t line = 0;
  bool opens = false;  // a directive with a body: kOpen comes next
};

class Statements {
 public:
  // `text` must outlive this; comments are blanked in a copy.
  explicit Statements(std::string_view text);
  Statement Next();
  // Behind the brace that closes the scope which was opened last.
  void SkipScope();

 private:
  void SkipSpace();
  Statement Cut(Statement::Kind kind, size_t end, size_t next);
  Statement Directive();

  std::string text_;
  size_t at_ = 0;
  int32_t line_ = 1;
};

// Takes a word, up to `any of ends` or the end, off the front of `*rest`, both sides trimmed.
std::string_view TakeUntil(std::string_view ends, std::string_view* rest);
std::string_view Trim(std::string_view text);

}  // namespace heddle::ptx
