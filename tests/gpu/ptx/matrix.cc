// Matrices of a warp: ldmatrix (ISA 9.7.14.5.15) and mma (9.7.14.5.14).
#include <algorithm>
#include <cstring>
#include <string>

#include "tests/gpu/ptx/aligned.h"
#include "tests/gpu/ptx/fragments.h"
#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"
#include "tests/gpu/ptx/wgmma.h"

namespace heddle::ptx {
namespace {

constexpr int kMatrixRows = 8;  // of 8 elements, 16 bytes
constexpr int kRowBytes = 16;

using Matrix = std::array<std::array<uint16_t, 8>, kMatrixRows>;

// Lanes 8i..8i+7 hold the addresses of matrix i's rows. What the rows take in shared memory's
// banks is counted by the way: a pass reads each of the 8 groups of banks once.
bool ReadMatrix(Warp& warp, const Operand& address, int index, Matrix* matrix,
                AccessCounts* access) {
  std::array<int, 8> reads = {};
  for (int row = 0; row < kMatrixRows; ++row) {
    const int lane = index * kMatrixRows + row;
    const auto at = static_cast<uint32_t>(warp.Address(address, lane));
    const uint8_t* from = warp.Shared(at, kRowBytes, lane);
    if (from == nullptr) return false;
    std::memcpy((*matrix)[static_cast<size_t>(row)].data(), from, kRowBytes);
    ++reads[at / kRowBytes % 8];
  }
  access->shared_passes += *std::max_element(reads.begin(), reads.end());
  ++access->shared_least;
  return true;
}

// A lane receives two elements that follow each other in row lane / 4; of the transposed matrix
// with .trans.
Outcome RunLoadMatrix(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (!AllLanesHere(warp, instruction, lanes)) return Outcome::kAgain;
  const bool transposed = instruction.detail[0] != 0;
  const auto& registers = instruction.operands[0].elements;
  std::array<Matrix, 4> matrices;
  AccessCounts access = {.shared_requests = 1};
  for (size_t i = 0; i < registers.size(); ++i) {
    if (!ReadMatrix(warp, instruction.operands[1], static_cast<int>(i), &matrices[i], &access)) {
      return Outcome::kAgain;
    }
  }
  warp.CountAccess(access);
  for (size_t i = 0; i < registers.size(); ++i) {
    uint32_t* to = warp.Row<uint32_t>(registers[i]);
    const Matrix& matrix = matrices[i];
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      const size_t row = lane / 4, column = lane % 4 * 2;
      const uint32_t low = transposed ? matrix[column][row] : matrix[row][column];
      const uint32_t high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
      to[lane] = low | high << 16;
    }
  }
  return Outcome::kDone;
}

Outcome RunMultiply(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (!AllLanesHere(warp, instruction, lanes)) return Outcome::kAgain;
  const auto type = static_cast<SmallFloat>(instruction.detail[0]);
  FragmentA a;
  FragmentB b;
  Sums sums;
  LoadFragmentA(warp, instruction.operands[1].elements, type, &a);
  LoadFragmentB(warp, instruction.operands[2].elements, type, &b);
  LoadSums(warp, instruction.operands[3].elements, kMmaColumns, &sums);
  MultiplyAdd(a, b, kMmaColumns, &sums);
  StoreSums(warp, instruction.operands[0].elements, kMmaColumns, sums);
  warp.counts().matrix_multiplies += kFragmentRows * kMmaColumns * kFragmentDepth;
  return Outcome::kDone;
}

// Registers of 32 bits; sources may be constants.
bool BindRegisters(Kernel& kernel, Operand& operand, size_t count, bool is_source) {
  if (operand.kind != Operand::Kind::kVector || operand.elements.size() != count) return false;
  return std::all_of(operand.elements.begin(), operand.elements.end(), [&](Operand& element) {
    return is_source ? BindSource(kernel, element, 4)
                     : element.kind == Operand::Kind::kRow && element.bytes == 4;
  });
}

std::string Modifiers(const Instruction& instruction) {
  std::string joined;
  for (const std::string& modifier : instruction.modifiers) joined += "." + modifier;
  return joined;
}

Run BindLoadMatrix(Kernel& kernel, Instruction& instruction) {
  const std::string modifiers = Modifiers(instruction);
  for (const size_t count : {1u, 2u, 4u}) {
    const std::string plain = ".sync.aligned.m8n8.x" + std::to_string(count);
    for (const std::string space : {".shared", ".shared::cta"}) {
      const bool transposed = modifiers == plain + ".trans" + space + ".b16";
      if (!transposed && modifiers != plain + space + ".b16") continue;
      instruction.detail[0] = transposed ? 1 : 0;
      const bool known = instruction.operands.size() == 2 &&
                         BindRegisters(kernel, instruction.operands[0], count, false) &&
                         instruction.operands[1].kind == Operand::Kind::kAddress;
      return known ? RunLoadMatrix : nullptr;
    }
  }
  return nullptr;
}

Run BindMultiply(Kernel& kernel, Instruction& instruction) {
  const std::string modifiers = Modifiers(instruction);
  if (modifiers == ".sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") {
    instruction.detail[0] = static_cast<int64_t>(SmallFloat::kBF16);
  } else if (modifiers == ".sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
    instruction.detail[0] = static_cast<int64_t>(SmallFloat::kF16);
  } else {
    return nullptr;
  }
  auto& operands = instruction.operands;
  const bool known = operands.size() == 4 && BindRegisters(kernel, operands[0], 4, false) &&
                     BindRegisters(kernel, operands[1], 4, true) &&
                     BindRegisters(kernel, operands[2], 2, true) &&
                     BindRegisters(kernel, operands[3], 4, true);
  return known ? RunMultiply : nullptr;
}

}  // namespace

Run BindMatrix(Kernel& kernel, Instruction& instruction) {
  if (instruction.opcode == "ldmatrix") return BindLoadMatrix(kernel, instruction);
  if (instruction.opcode == "mma") return BindMultiply(kernel, instruction);
  if (instruction.opcode == "wgmma") return BindWgmma(kernel, instruction);
  return nullptr;
}

}  // namespace heddle::ptx
