// Asynchronous copies of single words (cp.async), fences between the proxies, and instructions
// that only tell the hardware what to expect. Bulk copies and mbarriers have files of their own.
#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/aligned.h"
#include "tests/gpu/ptx/bulk_copies.h"
#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/mbarrier.h"
#include "tests/gpu/ptx/program.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {
namespace {

using Copy = CopiesUnderWay::Copy;

// cp.async writes by the generic proxy: only its bulk forms belong to the async proxy.
void Perform(Warp& warp, const Copy& copy) {
  Block& block = warp.block();
  uint8_t* to = block.shared().data() + copy.to - kSharedBase;
  std::memset(to, 0, copy.bytes);
  if (copy.copied != 0) std::memcpy(to, reinterpret_cast<const void*>(copy.from), copy.copied);
  block.stored_by[(copy.to - kSharedBase) / 16] = static_cast<uint8_t>(1 + warp.index());
}

bool Prepare(Warp& warp, const Instruction& instruction, int lane, Copy* copy) {
  const auto bytes = static_cast<uint32_t>(instruction.detail[0]);
  const auto& operands = instruction.operands;
  const uint32_t copied = operands.size() > 3 ? warp.Row<uint32_t>(operands[3])[lane] : bytes;
  copy->from = warp.Address(operands[1], lane);
  copy->to = static_cast<uint32_t>(warp.Address(operands[0], lane));
  copy->lane = static_cast<uint8_t>(lane);
  copy->bytes = static_cast<uint8_t>(bytes);
  copy->copied = static_cast<uint8_t>(copied);
  if (copied > bytes) {
    warp.Fail(absl::StrCat("a source size of ", copied, " bytes"), lane);
  } else if (copy->from % bytes != 0) {
    warp.Fail(absl::StrCat("the source is not aligned to ", bytes, " bytes"), lane);
  } else if (copied != 0 && !warp.block().machine().IsAllocated(copy->from, copied)) {
    warp.Fail("the source is not allocated", lane);
  } else {
    return warp.Shared(copy->to, static_cast<int>(bytes), lane) != nullptr;
  }
  return false;
}

Outcome RunCopy(Warp& warp, const Instruction& instruction, Lanes lanes) {
  CopiesUnderWay& under_way = CopiesOf(warp);
  const bool late = warp.block().machine().options().late;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Copy copy = {};
    if (!Prepare(warp, instruction, lane, &copy)) return Outcome::kAgain;
    warp.counts().async_bytes += copy.copied;
    copy.group = under_way.next_group[static_cast<size_t>(lane)];
    if (late) {
      under_way.copies.push_back(copy);
    } else {
      Perform(warp, copy);
    }
  }
  return Outcome::kDone;
}

Outcome RunCommit(Warp& warp, const Instruction&, Lanes lanes) {
  CopiesUnderWay& under_way = CopiesOf(warp);
  for (size_t lane = 0; lane < kWarpLanes; ++lane) under_way.next_group[lane] += lanes >> lane & 1;
  return Outcome::kDone;
}

// wait_group n: all but the last n committed groups of the lane; wait_all: what was not committed,
// too (ISA 9.7.9.25.3.3).
Outcome RunWait(Warp& warp, const Instruction& instruction, Lanes lanes) {
  CopiesUnderWay& under_way = CopiesOf(warp);
  const int64_t allowed = instruction.detail[0];
  const auto over = [&](const Copy& copy) {
    if ((lanes >> copy.lane & 1) == 0) return false;
    return int64_t{copy.group} + allowed < int64_t{under_way.next_group[copy.lane]};
  };
  auto kept = under_way.copies.begin();
  for (const Copy& copy : under_way.copies) {
    if (over(copy)) {
      Perform(warp, copy);
    } else {
      *kept++ = copy;
    }
  }
  under_way.copies.erase(kept, under_way.copies.end());
  return Outcome::kDone;
}

Outcome RunProxyFence(Warp& warp, const Instruction&, Lanes) {
  const auto own = static_cast<uint8_t>(1 + warp.index());
  for (uint8_t& stored_by : warp.block().stored_by) stored_by = stored_by == own ? 0 : stored_by;
  FenceMbarriers(warp);
  return Outcome::kDone;
}

Outcome RunMbarrierFence(Warp& warp, const Instruction&, Lanes) {
  FenceMbarriers(warp);
  return Outcome::kDone;
}

Outcome RunNothing(Warp&, const Instruction&, Lanes) { return Outcome::kDone; }

// Registers are not counted here; all lanes have to be there.
Outcome RunSetRegisters(Warp& warp, const Instruction& instruction, Lanes lanes) {
  return AllLanesHere(warp, instruction, lanes) ? Outcome::kDone : Outcome::kAgain;
}

Run BindCopy(Kernel& kernel, Instruction& instruction) {
  auto& operands = instruction.operands;
  const auto& modifiers = instruction.modifiers;
  if (modifiers.size() == 2 && modifiers[1] == "commit_group") {
    return operands.empty() ? RunCommit : nullptr;
  }
  if (modifiers.size() == 2 && modifiers[1] == "wait_all") {
    instruction.detail[0] = -1;
    return operands.empty() ? RunWait : nullptr;
  }
  if (modifiers.size() == 2 && modifiers[1] == "wait_group") {
    if (operands.size() != 1 || operands[0].kind != Operand::Kind::kImmediate) return nullptr;
    instruction.detail[0] = static_cast<int64_t>(operands[0].value);
    return RunWait;
  }
  if (modifiers.size() != 4 || (modifiers[1] != "ca" && modifiers[1] != "cg") ||
      (modifiers[2] != "shared" && modifiers[2] != "shared::cta") || modifiers[3] != "global" ||
      operands.size() < 3 || operands.size() > 4 || operands[0].kind != Operand::Kind::kAddress ||
      operands[1].kind != Operand::Kind::kAddress ||
      operands[2].kind != Operand::Kind::kImmediate ||
      (operands.size() > 3 && !BindSource(kernel, operands[3], 4))) {
    return nullptr;
  }
  const uint64_t bytes = operands[2].value;
  const bool known = bytes == 16 || (modifiers[1] == "ca" && (bytes == 4 || bytes == 8));
  instruction.detail[0] = static_cast<int64_t>(bytes);
  return known ? RunCopy : nullptr;
}

bool IsExactly(const Instruction& instruction, std::initializer_list<const char*> modifiers) {
  return std::equal(modifiers.begin(), modifiers.end(), instruction.modifiers.begin(),
                    instruction.modifiers.end());
}

// ISA 9.7.13.4 "membar / fence": proxies and initialisations only.
Run BindFence(const Instruction& instruction) {
  if (IsExactly(instruction, {"proxy", "async"}) ||
      IsExactly(instruction, {"proxy", "async", "shared::cta"})) {
    return RunProxyFence;
  }
  if (IsExactly(instruction, {"proxy", "async", "global"})) return RunNothing;
  if (IsExactly(instruction, {"mbarrier_init", "release", "cluster"})) return RunMbarrierFence;
  return nullptr;
}

// ISA 9.7.19.5: a constant of 24 to 256, by 8.
Run BindSetRegisters(const Instruction& instruction) {
  if ((!IsExactly(instruction, {"inc", "sync", "aligned", "u32"}) &&
       !IsExactly(instruction, {"dec", "sync", "aligned", "u32"})) ||
      instruction.operands.size() != 1 ||
      instruction.operands[0].kind != Operand::Kind::kImmediate) {
    return nullptr;
  }
  const uint64_t count = instruction.operands[0].value;
  return count >= 24 && count <= 256 && count % 8 == 0 ? RunSetRegisters : nullptr;
}

}  // namespace

Run BindAsync(Kernel& kernel, Instruction& instruction) {
  const std::string& opcode = instruction.opcode;
  const auto& modifiers = instruction.modifiers;
  if (opcode == "cp" && modifiers.size() > 1 && modifiers[0] == "async") {
    return modifiers[1] == "bulk" ? BindBulkCopy(kernel, instruction)
                                  : BindCopy(kernel, instruction);
  }
  if (opcode == "mbarrier") return BindMbarrier(kernel, instruction);
  if (opcode == "fence") return BindFence(instruction);
  if (opcode == "prefetch" || opcode == "prefetchu") return BindPrefetch(kernel, instruction);
  if (opcode == "setmaxnreg") return BindSetRegisters(instruction);
  // It orders grids, which here run one after the other.
  if (opcode == "griddepcontrol") return modifiers.size() == 1 ? RunNothing : nullptr;
  return nullptr;
}

CopiesUnderWay& CopiesOf(Warp& warp) {
  if (warp.copies == nullptr) warp.copies = std::make_unique<CopiesUnderWay>();
  return *warp.copies;
}

BulkCopies& BulkCopiesOf(Block& block) {
  if (block.bulk == nullptr) block.bulk = std::make_unique<BulkCopies>();
  return *block.bulk;
}

bool CheckAsyncProxy(Warp& warp, uint32_t address, int64_t bytes, int lane) {
  Block& block = warp.block();
  const int64_t begin = int64_t{address} - kSharedBase;
  if (begin < 0 || begin + bytes > static_cast<int64_t>(block.shared().size())) {
    warp.Fail(absl::StrCat(bytes, " bytes at shared address ", address, " are not the block's"),
              lane);
    return false;
  }
  for (int64_t i = begin / 16; i * 16 < begin + bytes; ++i) {
    if (block.stored_by[static_cast<size_t>(i)] == 0) continue;
    warp.Fail(absl::StrCat("no fence.proxy.async between a store of warp ",
                           block.stored_by[static_cast<size_t>(i)] - 1, " to shared address ",
                           kSharedBase + i * 16, " and this use of it by the async proxy"),
              lane);
    return false;
  }
  return true;
}

std::string LeftBehind(const Block& block) {
  if (block.bulk == nullptr || block.bulk->copies.empty()) return {};
  return absl::StrCat("the block ends before a bulk copy into its shared memory has, line ",
                      block.bulk->copies.front().instruction->line);
}

}  // namespace heddle::ptx
