#include "tests/gpu/ptx/bulk_copies.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/mbarrier.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {
namespace {

using Copy = BulkCopies::Copy;

constexpr int kBulkAlignment = 16;
constexpr uint32_t kBoxAlignment = 128;  // of a box in shared memory
constexpr int kMaxRowBytes = 256 * 8;    // of a box

// The ISA's order of operands: [dst], [src], size, [mbar] or [dst], [map, {...}], [mbar].
enum class Form : int64_t { kPlain, kTensor };

// Reads the map that a tensor instruction names: constant memory, parameters or global memory, by
// a generic address.
bool ReadMap(Warp& warp, const Operand& operand, int lane, TensorMap* map) {
  const uint64_t address = warp.Address(operand, lane);
  if (address % kMapAlignment != 0) {
    warp.Fail("the tensor map is not aligned to 64 bytes", lane);
    return false;
  }
  std::array<uint8_t, kMapBytes> bytes;
  constexpr int kPiece = 16;  // the most that an address is checked for at once
  for (int i = 0; i < kMapBytes; i += kPiece) {
    const uint8_t* piece = warp.Generic(address + static_cast<uint64_t>(i), kPiece, lane);
    if (piece == nullptr) return false;
    std::memcpy(bytes.data() + i, piece, kPiece);
  }
  if (DecodeMap(bytes.data(), map)) return true;
  warp.Fail("these 128 bytes are no tensor map", lane);
  return false;
}

// The bytes of a row of the box that are within the tensor: [*begin, *end) of its InnerBytes().
void ClipRow(const TensorMap& map, int64_t x, int64_t* begin, int64_t* end) {
  const int64_t size = int64_t{map.last[0]} + 1;
  const auto element = static_cast<int64_t>(map.strides[0]);
  *begin = std::clamp<int64_t>(-x, 0, map.box[0]) * element;
  *end = std::clamp<int64_t>(size - x, 0, map.box[0]) * element;
}

// The address of element 0 of a row of the box in global memory, within or before the tensor's own
// row; false if the row is outside in another dimension.
bool FindRow(const Copy& copy, int64_t row, uint64_t* address) {
  const TensorMap& map = copy.map;
  *address = copy.map.address + static_cast<uint64_t>(copy.coordinates[0]) * map.strides[0];
  for (size_t i = 1; i < map.rank; ++i) {
    const int64_t at = copy.coordinates[i] + row % map.box[i];
    row /= map.box[i];
    if (at < 0 || at > map.last[i]) return false;
    *address += static_cast<uint64_t>(at) * map.strides[i];
  }
  return true;
}

std::atomic<int64_t> tensor_copies{0};

// Parts of the box outside of the tensor become zero (ISA 5.5.3 "Tiled Mode").
bool CopyBox(const Copy& copy) {
  Warp& warp = *copy.warp;
  const TensorMap& map = copy.map;
  const auto inner = static_cast<uint32_t>(map.InnerBytes());
  const int span = SwizzleSpan(map.swizzle);
  int64_t begin, end;
  ClipRow(map, copy.coordinates[0], &begin, &end);
  uint8_t* shared = warp.block().shared().data();
  for (int64_t row = 0; row < map.NumRows(); ++row) {
    uint8_t bytes[kMaxRowBytes] = {};
    uint64_t from;
    if (FindRow(copy, row, &from) && begin < end) {
      from += static_cast<uint64_t>(begin);
      if (!warp.block().machine().IsAllocated(from, end - begin)) {
        warp.Fail(absl::StrCat("the tensor copy of line ", copy.instruction->line,
                               " reads what is not allocated, at row ", row, " of its box"),
                  copy.lane);
        return false;
      }
      std::memcpy(bytes + begin, reinterpret_cast<const void*>(from),
                  static_cast<size_t>(end - begin));
    }
    const uint32_t to = copy.to + static_cast<uint32_t>(row) * inner;
    for (uint32_t i = 0; i < inner; i += 16) {
      std::memcpy(shared + SwizzledAddress(to + i, span) - kSharedBase, bytes + i, 16);
    }
  }
  return true;
}

bool CopyBytes(const Copy& copy) {
  Warp& warp = *copy.warp;
  if (!warp.block().machine().IsAllocated(copy.from, copy.bytes)) {
    warp.Fail(
        absl::StrCat("the copy of line ", copy.instruction->line, " reads what is not allocated"),
        copy.lane);
    return false;
  }
  std::memcpy(warp.block().shared().data() + copy.to - kSharedBase,
              reinterpret_cast<const void*>(copy.from), static_cast<size_t>(copy.bytes));
  return true;
}

// A store that came after the copy was asked for races with it as much as one before it without a
// fence, so that this looks for stores once more.
void Perform(const Copy& copy) {
  Warp& warp = *copy.warp;
  if (!CheckAsyncProxy(warp, copy.to, copy.bytes, copy.lane)) return;
  tensor_copies += copy.is_tensor ? 1 : 0;
  if (!(copy.is_tensor ? CopyBox(copy) : CopyBytes(copy))) return;
  CompleteTransaction(warp, copy.barrier, copy.bytes, copy.lane);
}

bool Prepare(Warp& warp, const Instruction& instruction, int lane, Copy* copy) {
  const auto& operands = instruction.operands;
  copy->warp = &warp;
  copy->instruction = &instruction;
  copy->lane = lane;
  copy->is_tensor = static_cast<Form>(instruction.detail[0]) == Form::kTensor;
  copy->to = static_cast<uint32_t>(warp.Address(operands[0], lane));
  copy->barrier = static_cast<uint32_t>(warp.Address(operands.back(), lane));
  if (copy->is_tensor) {
    if (!ReadMap(warp, operands[1], lane, &copy->map)) return false;
    copy->bytes = static_cast<int32_t>(copy->map.BoxBytes());
    for (size_t i = 0; i < operands[1].elements.size(); ++i) {
      copy->coordinates[i] = warp.Row<int32_t>(operands[1].elements[i])[lane];
    }
  } else {
    copy->from = warp.Address(operands[1], lane);
    copy->bytes = warp.Row<int32_t>(operands[2])[lane];
  }
  return true;
}

// The ISA's rules for alignment and sizes; empty if all are kept.
std::string WrongTensorCopy(const Copy& copy, const Instruction& instruction) {
  const TensorMap& map = copy.map;
  if (map.rank != instruction.operands[1].elements.size()) {
    return absl::StrCat("a map of ", int{map.rank}, " dimensions");
  }
  if (copy.to % kBoxAlignment != 0) {
    return absl::StrCat("shared address ", copy.to, " is not aligned to 128 bytes");
  }
  if (map.swizzle != MapSwizzle::kNone && map.InnerBytes() != SwizzleSpan(map.swizzle)) {
    return "boxes narrower than the swizzle's span are not modelled";
  }
  return {};
}

std::string WrongPlainCopy(const Copy& copy) {
  if (copy.bytes <= 0 || copy.bytes % kBulkAlignment != 0) {
    return absl::StrCat(copy.bytes, " bytes are not a multiple of 16");
  }
  if (copy.to % kBulkAlignment != 0 || copy.from % kBulkAlignment != 0) {
    return "source or destination are not aligned to 16 bytes";
  }
  return {};
}

// A product is known to have read its operands only when its warp has waited for it.
bool CheckUnread(Warp& warp, const Copy& copy) {
  const SharedRange range = copy.Range();
  for (const auto& other : warp.block().warps()) {
    if (other->products == nullptr) continue;
    for (const auto& product : other->products->products) {
      if (!range.Overlaps(product.a_range) && !range.Overlaps(product.b_range)) continue;
      warp.Fail(absl::StrCat("the copy writes what warp ", other->index(),
                             " has not waited to have read, by the product of line ",
                             product.instruction->line),
                copy.lane);
      return false;
    }
  }
  return true;
}

Outcome RunBulkCopy(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Copy copy = {};
    if (!Prepare(warp, instruction, lane, &copy)) return Outcome::kAgain;
    const std::string wrong =
        copy.is_tensor ? WrongTensorCopy(copy, instruction) : WrongPlainCopy(copy);
    if (!wrong.empty()) return warp.Fail(wrong, lane);
    if (!CheckSignalled(warp, copy.barrier, lane) ||
        !CheckAsyncProxy(warp, copy.to, copy.bytes, lane) || !CheckUnread(warp, copy)) {
      return Outcome::kAgain;
    }
    warp.counts().bulk_bytes += copy.bytes;
    if (warp.block().machine().options().late) {
      BulkCopiesOf(warp.block()).copies.push_back(copy);
    } else {
      Perform(copy);
      if (warp.block().failed()) return Outcome::kAgain;
    }
  }
  return Outcome::kDone;
}

Outcome RunPrefetchBulk(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const uint32_t* bytes = warp.Row<uint32_t>(instruction.operands[1]);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    const uint64_t address = warp.Address(instruction.operands[0], lane);
    if (address % kBulkAlignment != 0 || bytes[lane] % kBulkAlignment != 0) {
      return warp.Fail("a bulk prefetch of what is not aligned to 16 bytes", lane);
    }
    if (bytes[lane] != 0 && !warp.block().machine().IsAllocated(address, bytes[lane])) {
      return warp.Fail("a bulk prefetch of what is not allocated", lane);
    }
  }
  return Outcome::kDone;
}

Outcome RunPrefetchMap(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    TensorMap map;
    if ((lanes >> lane & 1) != 0 && !ReadMap(warp, instruction.operands[0], lane, &map)) {
      return Outcome::kAgain;
    }
  }
  return Outcome::kDone;
}

Outcome RunNothing(Warp&, const Instruction&, Lanes) { return Outcome::kDone; }

bool IsAddress(const Operand& operand) { return operand.kind == Operand::Kind::kAddress; }

bool EndsWith(const Instruction& instruction, std::initializer_list<std::string_view> modifiers) {
  return std::equal(modifiers.begin(), modifiers.end(), instruction.modifiers.begin() + 2,
                    instruction.modifiers.end());
}

bool BindCoordinates(Kernel& kernel, Operand& map, std::string_view dimensions) {
  if (dimensions.size() != 2 || dimensions[1] != 'd' ||
      dimensions[0] != static_cast<char>('0' + map.elements.size())) {
    return false;
  }
  return std::all_of(map.elements.begin(), map.elements.end(),
                     [&](Operand& element) { return BindSource(kernel, element, 4); });
}

}  // namespace

// ".async.bulk" is known to be there.
Run BindBulkCopy(Kernel& kernel, Instruction& instruction) {
  auto& operands = instruction.operands;
  if (operands.empty() || !IsAddress(operands[0])) return nullptr;
  if (EndsWith(instruction, {"prefetch", "L2", "global"})) {
    return operands.size() == 2 && BindSource(kernel, operands[1], 4) ? RunPrefetchBulk : nullptr;
  }
  // Without clusters a shared::cluster address is one of the block's own window.
  for (const std::string_view space : {"shared::cluster", "shared::cta"}) {
    constexpr std::string_view kSignal = "mbarrier::complete_tx::bytes";
    if (EndsWith(instruction, {space, "global", kSignal})) {
      instruction.detail[0] = static_cast<int64_t>(Form::kPlain);
      const bool known = operands.size() == 4 && IsAddress(operands[1]) &&
                         BindSource(kernel, operands[2], 4) && IsAddress(operands[3]);
      return known ? RunBulkCopy : nullptr;
    }
    const std::string dimensions =
        instruction.modifiers.size() > 3 ? instruction.modifiers[3] : std::string();
    if (EndsWith(instruction, {"tensor", dimensions, space, "global", kSignal}) ||
        EndsWith(instruction, {"tensor", dimensions, space, "global", "tile", kSignal})) {
      instruction.detail[0] = static_cast<int64_t>(Form::kTensor);
      const bool known = operands.size() == 3 && IsAddress(operands[1]) && IsAddress(operands[2]) &&
                         BindCoordinates(kernel, operands[1], dimensions);
      return known ? RunBulkCopy : nullptr;
    }
  }
  return nullptr;
}

Run BindPrefetch(Kernel&, Instruction& instruction) {
  if (instruction.operands.size() != 1 || !IsAddress(instruction.operands[0])) return nullptr;
  if (instruction.Has("tensormap")) return RunPrefetchMap;
  return instruction.Has("L1") || instruction.Has("L2") ? RunNothing : nullptr;
}

bool AdvanceBulkCopies(Block& block) {
  if (block.bulk == nullptr || block.bulk->copies.empty()) return false;
  // Bulk copies are not ordered among each other: the last one first is what is expected least.
  const Copy copy = block.bulk->copies.back();
  block.bulk->copies.pop_back();
  Perform(copy);
  return true;
}

int64_t TensorCopies() { return tensor_copies; }

}  // namespace heddle::ptx
