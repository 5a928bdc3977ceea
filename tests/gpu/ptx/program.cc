#include "tests/gpu/ptx/program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/operands.h"
#include "tests/gpu/ptx/source_lines.h"
#include "tests/gpu/ptx/statements.h"

namespace heddle::ptx {
namespace {

// .b8 name[24] = {1, 2}, with what is before and behind the name.
struct Declaration {
  int32_t alignment = 1;
  int element_bytes = 0;
  std::string_view name, initial;
  int64_t bytes = 0;  // 0: name[], of a size that the launch gives
};

absl::Status Malformed(const Statement& at, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", at.line, ": ", std::string(why), ": ",
                                                 std::string(at.text.substr(0, 200))));
}

bool ReadDeclaration(std::string_view text, Declaration* declared) {
  for (std::string_view word = TakeUntil(" \t\n", &text); !word.empty() && word[0] == '.';
       word = TakeUntil(" \t\n[=", &text)) {
    uint64_t number = 0;
    if (word == ".align" || word == ".ptr") {
      if (word == ".align" && ReadNumber(TakeUntil(" \t\n", &text), &number)) {
        declared->alignment = static_cast<int32_t>(number);
      }
      continue;
    }
    if (const int bytes = TypeBytes(word); bytes > 0) declared->element_bytes = bytes;
    if (declared->element_bytes == 0) continue;
    declared->name = TakeUntil(" \t\n[=", &text);
    break;
  }
  if (declared->name.empty()) return false;
  declared->alignment = std::max<int32_t>(declared->alignment, declared->element_bytes);
  uint64_t count = 1;
  if (!text.empty() && text[0] == '[') {
    text.remove_prefix(1);
    const std::string_view size = TakeUntil("]", &text);
    if (size.empty()) {
      count = 0;
    } else if (!ReadNumber(size, &count) || count > (1 << 24)) {
      return false;
    }
    text = Trim(text.substr(1));
  }
  declared->bytes = static_cast<int64_t>(count) * declared->element_bytes;
  if (!text.empty() && text[0] == '=') declared->initial = Trim(text.substr(1));
  return true;
}

int32_t AlignUp(int32_t value, int32_t to) { return (value + to - 1) / to * to; }

// Outcome of instructions that are known and not supported: functions are not called in kernels
// but for angles of 2^31 and more.
Outcome Unsupported(Warp& warp, const Instruction&, Lanes) {
  return warp.Fail("this machine has no calls of functions");
}

Run Bind(Kernel& kernel, Instruction& instruction) {
  for (const auto bind : {BindArithmetic, BindMemory, BindControl, BindAsync, BindMatrix}) {
    if (const Run run = bind(kernel, instruction); run != nullptr) return run;
  }
  const bool of_calls = instruction.opcode == "call" ||
                        (instruction.opcode == "st" && instruction.Has("param")) ||
                        (instruction.opcode == "ld" && instruction.Has("param"));
  return of_calls ? Unsupported : nullptr;
}

class KernelReader {
 public:
  KernelReader(Names& names, SourceLines& lines, Kernel& kernel)
      : names_(names), lines_(lines), kernel_(kernel) {}

  // `.entry name(parameters) .maxntid 384, 1, 1`, what is behind .entry.
  absl::Status Head(const Statement& at, std::string_view text) {
    kernel_.name = std::string(TakeUntil("(", &text));
    if (kernel_.name.empty() || text.empty()) return Malformed(at, "an entry without parameters");
    text.remove_prefix(1);
    std::string_view parameters = TakeUntil(")", &text);
    while (!parameters.empty()) {
      std::string_view one = TakeUntil(",", &parameters);
      if (!parameters.empty()) parameters = Trim(parameters.substr(1));
      Declaration declared;
      if (!one.starts_with(".param") || !ReadDeclaration(one.substr(6), &declared)) {
        return Malformed(at, "a parameter");
      }
      const int32_t offset = AlignUp(kernel_.param_bytes, declared.alignment);
      const auto bytes = static_cast<int32_t>(declared.bytes);
      kernel_.params.push_back({offset, bytes});
      kernel_.param_bytes = offset + bytes;
      names_.DeclareSymbol(declared.name, Operand::Space::kParam, static_cast<uint64_t>(offset));
    }
    const size_t bound = text.find(".maxntid");
    if (bound != std::string_view::npos) {
      std::string_view rest = text.substr(bound + 8);
      uint64_t threads = 0;
      if (!ReadNumber(TakeUntil(", \t\n", &rest), &threads)) return Malformed(at, ".maxntid");
      kernel_.max_threads = static_cast<int32_t>(threads);
    }
    return absl::OkStatus();
  }

  absl::Status Body(Statements& statements) {
    names_.Open();
    const int32_t outermost = names_.depth();
    while (names_.depth() >= outermost) {
      const Statement at = statements.Next();
      switch (at.kind) {
        case Statement::Kind::kEnd:
          return Malformed(at, "a kernel without an end");
        case Statement::Kind::kOpen:
          names_.Open();
          break;
        case Statement::Kind::kClose:
          names_.Close();
          break;
        case Statement::Kind::kLabel:
          labels_[std::string(at.text)] = static_cast<int32_t>(kernel_.code.size());
          break;
        case Statement::Kind::kDirective:
          HEDDLE_RETURN_IF_ERROR(Directive(at));
          break;
        case Statement::Kind::kInstruction:
          HEDDLE_RETURN_IF_ERROR(Read(at));
          break;
      }
    }
    Instruction end;
    end.opcode = "ret";
    kernel_.code.push_back(end);
    return Finish();
  }

 private:
  absl::Status Directive(const Statement& at) {
    std::string_view rest = at.text;
    const std::string_view what = TakeUntil(" \t\n", &rest);
    if (what == ".reg") {
      const absl::Status status = names_.DeclareRegisters(rest);
      return status.ok() ? status : Malformed(at, std::string(status.message()));
    }
    Declaration declared;
    const bool is_read = ReadDeclaration(rest, &declared);
    if (what == ".local" || what == ".shared") {
      if (!is_read || declared.bytes == 0) return Malformed(at, "a variable");
      const bool is_local = what == ".local";
      int32_t& bytes = is_local ? kernel_.local_bytes : kernel_.static_shared_bytes;
      bytes = AlignUp(bytes, declared.alignment);
      names_.DeclareSymbol(declared.name,
                           is_local ? Operand::Space::kLocal : Operand::Space::kShared,
                           static_cast<uint64_t>(bytes) + (is_local ? 0 : kSharedBase));
      bytes += static_cast<int32_t>(declared.bytes);
    } else if (what == ".param") {  // of a call
      if (!is_read) return Malformed(at, "a variable");
      names_.DeclareSymbol(declared.name, Operand::Space::kParam, UINT32_MAX);
    } else if (what == ".loc") {
      source_ = lines_.Place(rest);
    } else if (what != ".pragma") {
      return Malformed(at, "a directive that is not known");
    }
    return absl::OkStatus();
  }

  absl::Status Read(const Statement& at) {
    Instruction made;
    made.line = at.line;
    made.source = source_;
    made.text = std::string(at.text);
    std::string_view rest = at.text;
    if (rest[0] == '@') {
      rest.remove_prefix(1);
      const auto guard = names_.Read(TakeUntil(" \t\n", &rest));
      if (!guard.ok() || guard->kind != Operand::Kind::kPredicate) return Malformed(at, "a guard");
      made.guard = guard->row;
      made.guard_negated = guard->negated;
    }
    std::string_view name = TakeUntil(" \t\n", &rest);
    made.opcode = std::string(TakeUntil(".", &name));
    while (!name.empty()) {
      name.remove_prefix(1);
      made.modifiers.emplace_back(TakeUntil(".", &name));
    }
    if (!rest.empty() && made.opcode != "call") {
      auto operands = names_.ReadList(rest);
      if (!operands.ok()) return Malformed(at, std::string(operands.status().message()));
      made.operands = std::move(operands).value();
    }
    kernel_.code.push_back(std::move(made));
    return absl::OkStatus();
  }

  // Places of labels and of dynamic shared memory are known now.
  absl::Status Finish() {
    kernel_.static_shared_bytes = AlignUp(kernel_.static_shared_bytes, kernel_.shared_alignment);
    for (Instruction& instruction : kernel_.code) {
      for (Operand& operand : instruction.operands) {
        if (operand.space == Operand::Space::kShared && operand.value >= kDynamic) {
          operand.value += kSharedBase + static_cast<uint64_t>(kernel_.static_shared_bytes);
          operand.value -= kDynamic;
        }
        if (operand.kind != Operand::Kind::kLabel) continue;
        const auto label = labels_.find(operand.text);
        if (label != labels_.end()) operand.value = static_cast<uint64_t>(label->second);
        if (label == labels_.end() && instruction.opcode == "bra") {
          return absl::InvalidArgumentError(absl::StrCat("no label ", operand.text));
        }
      }
      instruction.run = Bind(kernel_, instruction);
      if (instruction.run == nullptr) {
        return absl::UnimplementedError(absl::StrCat("line ", instruction.line,
                                                     ": this machine does not know ",
                                                     instruction.text.substr(0, 200)));
      }
    }
    return absl::OkStatus();
  }

 public:
  // Addresses of dynamic shared memory until its place is known.
  static constexpr uint64_t kDynamic = uint64_t{1} << 40;

 private:
  Names& names_;
  SourceLines& lines_;
  Kernel& kernel_;
  int32_t source_ = -1;  // of what is read
  std::map<std::string, int32_t, std::less<>> labels_;
};

class ModuleReader {
 public:
  explicit ModuleReader(std::string_view text) : statements_(text) {}

  absl::StatusOr<Module> Read() {
    for (Statement at = statements_.Next(); at.kind != Statement::Kind::kEnd;
         at = statements_.Next()) {
      if (at.kind != Statement::Kind::kDirective) return Malformed(at, "not expected in a module");
      HEDDLE_RETURN_IF_ERROR(Directive(at));
    }
    module_.sources = lines_.Shown();
    return std::move(module_);
  }

 private:
  absl::Status Directive(const Statement& at) {
    std::string_view rest = at.text;
    std::string_view what = TakeUntil(" \t\n", &rest);
    while (what == ".visible" || what == ".weak" || what == ".extern") {
      what = TakeUntil(" \t\n", &rest);
    }
    if (what == ".entry") return Entry(at, rest);
    if (what == ".func") {
      if (at.opens && statements_.Next().kind == Statement::Kind::kOpen) statements_.SkipScope();
      return absl::OkStatus();
    }
    if (what == ".global" || what == ".const") return Global(at, rest);
    if (what == ".shared") return DynamicShared(at, rest);
    if (what == ".file") lines_.Name(rest);
    if (what == ".section" && at.opens) {
      statements_.Next();
      statements_.SkipScope();
    }
    for (const char* of_module : {".version", ".target", ".address_size", ".file", ".section"}) {
      if (what == of_module) return absl::OkStatus();
    }
    return Malformed(at, "not expected in a module");
  }

  absl::Status Entry(const Statement& at, std::string_view rest) {
    Kernel kernel;
    Names names(kernel);
    for (const auto& [name, variable] : module_.variables) {
      names.DeclareSymbol(name, Operand::Space::kGlobal,
                          reinterpret_cast<uint64_t>(variable.data.get()));
    }
    for (const Declaration& dynamic : dynamic_shared_) {
      names.DeclareSymbol(dynamic.name, Operand::Space::kShared, KernelReader::kDynamic);
      kernel.shared_alignment = std::max(kernel.shared_alignment, dynamic.alignment);
    }
    KernelReader reader(names, lines_, kernel);
    HEDDLE_RETURN_IF_ERROR(reader.Head(at, rest));
    if (!at.opens || statements_.Next().kind != Statement::Kind::kOpen) {
      return Malformed(at, "no body");
    }
    HEDDLE_RETURN_IF_ERROR(reader.Body(statements_));
    std::string name = kernel.name;
    module_.kernels[std::move(name)] = std::move(kernel);
    return absl::OkStatus();
  }

  absl::Status Global(const Statement& at, std::string_view rest) {
    Declaration declared;
    if (!ReadDeclaration(rest, &declared) || declared.bytes == 0)
      return Malformed(at, "a variable");
    Variable variable{std::make_unique<uint8_t[]>(static_cast<size_t>(declared.bytes)),
                      declared.bytes};
    std::string_view values = declared.initial;
    if (!values.empty() && values[0] == '{') values = values.substr(1, values.size() - 2);
    for (int64_t i = 0; !values.empty(); i += declared.element_bytes) {
      uint64_t value = 0;
      if (i >= declared.bytes || !ReadNumber(TakeUntil(",", &values), &value)) {
        return Malformed(at, "an initial value");
      }
      std::memcpy(variable.data.get() + i, &value, static_cast<size_t>(declared.element_bytes));
      if (!values.empty()) values = Trim(values.substr(1));
    }
    module_.variables[std::string(declared.name)] = std::move(variable);
    return absl::OkStatus();
  }

  absl::Status DynamicShared(const Statement& at, std::string_view rest) {
    Declaration declared;
    if (!ReadDeclaration(rest, &declared) || declared.bytes != 0) {
      return Malformed(at, "shared memory of a module");
    }
    dynamic_shared_.push_back(declared);
    return absl::OkStatus();
  }

  Statements statements_;
  Module module_;
  SourceLines lines_;
  std::vector<Declaration> dynamic_shared_;
};

}  // namespace

bool Instruction::Has(std::string_view modifier) const {
  return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
}

int32_t Kernel::ConstantRow(uint64_t value, uint8_t bytes) {
  if (bytes < 8) value &= (uint64_t{1} << (8 * bytes)) - 1;
  for (const Constant& constant : constants) {
    if (constant.value == value && constant.bytes == bytes) return constant.row;
  }
  constants.push_back({num_rows, bytes, value});
  num_rows += bytes;
  return constants.back().row;
}

bool BindSource(Kernel& kernel, Operand& operand, uint8_t bytes) {
  if (operand.kind == Operand::Kind::kImmediate) {
    operand.row = kernel.ConstantRow(operand.value, bytes);
    operand.kind = Operand::Kind::kRow;
    operand.bytes = bytes;
  }
  return operand.kind == Operand::Kind::kRow && operand.bytes == bytes;
}

absl::StatusOr<Module> ParseModule(std::string_view text) { return ModuleReader(text).Read(); }

}  // namespace heddle::ptx
