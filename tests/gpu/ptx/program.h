// A PTX module as this machine runs it: kernels of decoded instructions. What nvcc makes of
// kernels/cuda is PTX before it is machine code; here that PTX runs on a host, so that the very
// instructions, operands and parameter layouts of a device build are tried where there is no GPU.
//
// The unit of account is a row: a register of all 32 lanes of a warp, 32 values of the register's
// width side by side. Rows are counted in units of 32 bytes. Source: NVIDIA, "PTX ISA" 9.0; section
// numbers refer to it. Thread-safety: a parsed module is constant.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::ptx {

class Warp;
struct Instruction;

// Lanes of a warp, lane 0 in bit 0.
using Lanes = uint32_t;
inline constexpr Lanes kAllLanes = 0xFFFFFFFF;
inline constexpr int kWarpLanes = 32;

enum class Outcome : uint8_t {
  kDone,   // go on behind the instruction
  kAgain,  // nothing has changed yet: the same instruction again, when others have run
  kMoved,  // the instruction has set the places of all its lanes itself (branches, exit)
};

// Executes an instruction for `lanes`: those that are at it and that its guard lets through.
using Run = Outcome (*)(Warp&, const Instruction&, Lanes lanes);

struct Operand {
  enum class Kind : uint8_t {
    kRow,        // a register or a constant: `row`
    kPredicate,  // `row` is the number of the predicate; `negated` for !p
    kSink,       // _
    kAddress,    // [base + offset]: `row` holds the base (-1: none), `value` the offset;
                 // [base, {a, b}]: the coordinates are `elements`
    kVector,     // {a, b, ...}: `elements`
    kImmediate,  // `value`: bits of an integer, or of the F32 or F64 that was written
    kSymbol,     // a variable's name by itself: `value` is its address in its state space
    kSpecial,    // %tid.x and such: `text`
    kLabel,      // `value`: index of the instruction
  };
  enum class Space : uint8_t { kNone, kParam, kShared, kLocal, kGlobal };
  Kind kind = Kind::kSink;
  Space space = Space::kNone;  // of kSymbol, and of kAddress without or beside a base
  bool negated = false;
  uint8_t bytes = 0;  // width of the register's values: 2, 4 or 8 (16 is not supported)
  int32_t row = -1;
  uint64_t value = 0;
  std::string text;
  std::vector<Operand> elements;
};

struct Instruction {
  Run run = nullptr;
  int32_t guard = -1;  // number of the predicate, -1: none
  bool guard_negated = false;
  std::string opcode;                  // "wgmma": up to the first '.'
  std::vector<std::string> modifiers;  // "mma_async", "sync", ... in order, without '.'
  // In the order written; where an instruction writes d|p, both in that order. Binding turns
  // immediates that are sources of rows into constant rows.
  std::vector<Operand> operands;
  int32_t line = 0;     // in the module's text
  int32_t source = -1;  // line of source, in Module::sources; -1: not known
  std::string text;     // for messages
  // For the binding code: data that `run` needs without reading strings.
  int64_t detail[4] = {};

  bool Has(std::string_view modifier) const;
};

struct Kernel {
  std::string name;
  std::vector<Instruction> code;
  int32_t num_rows = 0;  // in units of 32 bytes
  int32_t num_predicates = 0;
  // Rows with the same value in all lanes, which a warp begins with. Width as in `bytes`.
  struct Constant {
    int32_t row;
    uint8_t bytes;
    uint64_t value;
  };
  std::vector<Constant> constants;
  struct Param {
    int32_t offset, bytes;
  };
  std::vector<Param> params;
  int32_t param_bytes = 0;
  int32_t static_shared_bytes = 0;
  int32_t shared_alignment = 16;
  int32_t local_bytes = 0;  // of a thread
  int32_t max_threads = 1024;

  // The row of a constant, made if there is none yet.
  int32_t ConstantRow(uint64_t value, uint8_t bytes);
};

// A variable of .global or .const at module scope, with its initial value.
struct Variable {
  std::unique_ptr<uint8_t[]> data;
  int64_t bytes;
};

struct Module {
  std::map<std::string, Kernel, std::less<>> kernels;
  std::map<std::string, Variable, std::less<>> variables;
  std::vector<std::string> sources;  // lines of source, see SourceLines::Shown
};

// INVALID_ARGUMENT names line and text of what is not understood: an instruction that this machine
// does not know is an error here and not when it is reached.
absl::StatusOr<Module> ParseModule(std::string_view text);

// Each gives instructions of one kind what runs them; nullptr: not one of its own. They may turn
// operands into constant rows and keep what they need in `detail`. An instruction of theirs with
// modifiers that they do not know is not their own.
Run BindArithmetic(Kernel& kernel, Instruction& instruction);  // arithmetic.cc, conversions.cc
Run BindMemory(Kernel& kernel, Instruction& instruction);      // memory.cc: ld, st, atom, cvta, ...
Run BindControl(Kernel& kernel, Instruction& instruction);     // control.cc: bra, bar, shfl, ...
Run BindAsync(Kernel& kernel, Instruction& instruction);       // async.cc: copies, mbarrier, ...
Run BindMatrix(Kernel& kernel, Instruction& instruction);      // matrix.cc: ldmatrix, mma, wgmma

// The operand as a source of `bytes` wide values: immediates become constant rows. False: it can
// be none, or its register is of another width.
bool BindSource(Kernel& kernel, Operand& operand, uint8_t bytes);

}  // namespace heddle::ptx
