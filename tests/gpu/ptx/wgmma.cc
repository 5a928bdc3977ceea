#include "tests/gpu/ptx/wgmma.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/aligned.h"
#include "tests/gpu/ptx/fragments.h"
#include "tests/gpu/ptx/shared_matrix.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {
namespace {

using Product = ProductsUnderWay::Product;

constexpr int kWarpsOfGroup = 4;
constexpr int kRowsOfGroup = 64;  // M

// The data that binding keeps for wgmma.mma_async.
struct Form {
  int columns;  // N
  SmallFloat type;
  bool a_in_registers;
  bool a_mn_major, b_mn_major;
  bool negated;  // one of A and B is
  // Line of an instruction behind the fence that writes registers of the product; 0: none.
  int32_t write_line;
};

void Keep(const Form& form, Instruction* instruction) {
  instruction->detail[0] = form.columns;
  instruction->detail[1] = static_cast<int64_t>(form.type);
  instruction->detail[2] = form.a_in_registers | form.a_mn_major << 1 | form.b_mn_major << 2;
  instruction->detail[3] = form.negated | int64_t{form.write_line} << 1;
}

Form FormOf(const Instruction& instruction) {
  const int64_t flags = instruction.detail[2];
  return {static_cast<int>(instruction.detail[0]),
          static_cast<SmallFloat>(instruction.detail[1]),
          (flags & 1) != 0,
          (flags & 2) != 0,
          (flags & 4) != 0,
          (instruction.detail[3] & 1) != 0,
          static_cast<int32_t>(instruction.detail[3] >> 1)};
}

// Accumulators of products that follow each other stay here until other registers are meant.
class Accumulators {
 public:
  explicit Accumulators(Warp& warp) : warp_(warp) {}
  ~Accumulators() { Store(); }
  Accumulators(const Accumulators&) = delete;
  Accumulators& operator=(const Accumulators&) = delete;

  Sums& Of(const Product& product) {
    const Instruction* next = product.instruction;
    if (held_ == nullptr || !SameRegisters(*held_, *next)) {
      Store();
      held_ = next;
      if (product.accumulates) {
        LoadSums(warp_, next->operands[0].elements, FormOf(*next).columns, &sums_);
      }
    }
    if (!product.accumulates) sums_.fill(0);
    return sums_;
  }

 private:
  static bool SameRegisters(const Instruction& a, const Instruction& b) {
    return &a == &b ||
           std::equal(a.operands[0].elements.begin(), a.operands[0].elements.end(),
                      b.operands[0].elements.begin(), b.operands[0].elements.end(),
                      [](const Operand& x, const Operand& y) { return x.row == y.row; });
  }
  void Store() {
    if (held_ == nullptr) return;
    StoreSums(warp_, held_->operands[0].elements, FormOf(*held_).columns, sums_);
  }

  Warp& warp_;
  const Instruction* held_ = nullptr;
  Sums sums_;
};

// The warp's first row among the warpgroup's 64.
int FirstRow(const Warp& warp) { return warp.index() % kWarpsOfGroup * kFragmentRows; }

// `half`: the half of 32 of K, for E4M3.
bool LoadA(Warp& warp, const Product& product, const Form& form, int half, FragmentA* a) {
  if (form.a_in_registers) {
    LoadFragmentA(warp, product.instruction->operands[1].elements, form.type, a);
  } else {
    SharedMatrix matrix;
    DecodeDescriptor(product.a, form.a_mn_major, kRowsOfGroup, &matrix);
    const int first = FirstRow(warp);
    const bool loaded = form.type == SmallFloat::kE4M3
                            ? LoadMatrixE4M3(warp, matrix, half, first, kFragmentRows, a->data())
                            : LoadMatrix(warp, matrix, form.type, first, kFragmentRows, a->data());
    if (!loaded) return false;
  }
  if (form.negated) {
    for (float& x : *a) x = -x;
  }
  return true;
}

bool Perform(Warp& warp, const Product& product, Accumulators* accumulators) {
  const Form form = FormOf(*product.instruction);
  const bool is_e4m3 = form.type == SmallFloat::kE4M3;
  FragmentA a;
  FragmentB b;
  SharedMatrix matrix;
  DecodeDescriptor(product.b, form.b_mn_major, form.columns, &matrix);
  Sums* sums = nullptr;
  for (int half = 0; half < (is_e4m3 ? 2 : 1); ++half) {
    const bool loaded = LoadA(warp, product, form, half, &a) &&
                        (is_e4m3 ? LoadMatrixE4M3(warp, matrix, half, 0, form.columns, b.data())
                                 : LoadMatrix(warp, matrix, form.type, 0, form.columns, b.data()));
    if (!loaded) return false;
    if (sums == nullptr) sums = &accumulators->Of(product);
    MultiplyAdd(a, b, form.columns, sums);
  }
  return true;
}

// The descriptors of the four warps have to be the same, and so have their instructions.
bool CheckHistory(Warp& warp, const ProductsUnderWay& own) {
  const int64_t last = own.issued - 1;
  const auto slot = static_cast<size_t>(last) % own.history.size();
  const int first = warp.index() / kWarpsOfGroup * kWarpsOfGroup;
  const auto& warps = warp.block().warps();
  if (first + kWarpsOfGroup > static_cast<int>(warps.size())) {
    warp.Fail("the block has not all four warps of this warpgroup");
    return false;
  }
  for (int i = first; i < first + kWarpsOfGroup; ++i) {
    const ProductsUnderWay* other = warps[static_cast<size_t>(i)]->products.get();
    if (other == nullptr || other->issued <= last ||
        other->issued > last + static_cast<int64_t>(own.history.size()) ||
        other->history[slot] == own.history[slot]) {
      continue;
    }
    warp.Fail(
        absl::StrCat("another product, or other descriptors, than warp ", i, " of this warpgroup"));
    return false;
  }
  return true;
}

// Checks that no copy to memory that the product reads is pending; false after Fail.
bool CheckArrived(Warp& warp, const SharedRange& range) {
  if (warp.block().bulk == nullptr) return true;
  for (const BulkCopies::Copy& copy : warp.block().bulk->copies) {
    if (!range.Overlaps(copy.Range())) continue;
    warp.Fail(absl::StrCat("the product reads what nobody waited for, of the copy of line ",
                           copy.instruction->line));
    return false;
  }
  return true;
}

// A descriptor of all lanes; false after Fail.
bool ReadDescriptor(Warp& warp, const Operand& operand, bool mn_major, int mn_count,
                    uint64_t* descriptor, SharedMatrix* matrix) {
  const uint64_t* row = warp.Row<uint64_t>(operand);
  *descriptor = row[0];
  if (std::any_of(row, row + kWarpLanes, [&](uint64_t other) { return other != row[0]; })) {
    warp.Fail("the descriptor is not the same in all lanes");
    return false;
  }
  const std::string wrong = DecodeDescriptor(*descriptor, mn_major, mn_count, matrix);
  if (!wrong.empty()) warp.Fail(wrong);
  return wrong.empty();
}

// A product as its instruction asks for it; false after Fail.
bool Prepare(Warp& warp, const Instruction& instruction, Product* product) {
  const Form form = FormOf(instruction);
  const auto& operands = instruction.operands;
  const Lanes accumulates = warp.Predicate(operands[3]);
  if (accumulates != 0 && accumulates != kAllLanes) {
    warp.Fail("scale-d is not the same in all lanes");
    return false;
  }
  *product = {.instruction = &instruction,
              .a = 0,
              .b = 0,
              .accumulates = accumulates != 0,
              .happened = false,
              .group = ProductsOf(warp).next_group,
              .a_range = {},
              .b_range = {}};
  SharedMatrix matrix;
  if (!form.a_in_registers) {
    if (!ReadDescriptor(warp, operands[1], form.a_mn_major, kRowsOfGroup, &product->a, &matrix)) {
      return false;
    }
    product->a_range = matrix.Range(FirstRow(warp), kFragmentRows);
  }
  if (!ReadDescriptor(warp, operands[2], form.b_mn_major, form.columns, &product->b, &matrix)) {
    return false;
  }
  product->b_range = matrix.Range(0, form.columns);
  return CheckArrived(warp, product->a_range) && CheckArrived(warp, product->b_range);
}

Outcome RunMultiply(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (!AllLanesHere(warp, instruction, lanes)) return Outcome::kAgain;
  ProductsUnderWay& under_way = ProductsOf(warp);
  if (!under_way.fenced) return warp.Fail("no wgmma.fence since the last wait");
  if (const int32_t line = FormOf(instruction).write_line; line != 0) {
    return warp.Fail(absl::StrCat("line ", line, " writes registers of it behind the fence"));
  }
  Product product;
  if (!Prepare(warp, instruction, &product)) return Outcome::kAgain;
  under_way.history[static_cast<size_t>(under_way.issued) % under_way.history.size()] = {
      &instruction, product.a, product.b};
  ++under_way.issued;
  if (!CheckHistory(warp, under_way)) return Outcome::kAgain;
  if (!warp.block().machine().options().late) {
    Accumulators accumulators(warp);
    if (!Perform(warp, product, &accumulators)) return Outcome::kAgain;
    product.happened = true;
  }
  under_way.products.push_back(product);
  const Form form = FormOf(instruction);
  const int depth = form.type == SmallFloat::kE4M3 ? 2 * kFragmentDepth : kFragmentDepth;
  warp.counts().matrix_multiplies += int64_t{kFragmentRows} * form.columns * depth;
  return Outcome::kDone;
}

Outcome RunFence(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (!AllLanesHere(warp, instruction, lanes)) return Outcome::kAgain;
  ProductsOf(warp).fenced = true;
  return Outcome::kDone;
}

Outcome RunCommit(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (!AllLanesHere(warp, instruction, lanes)) return Outcome::kAgain;
  ++ProductsOf(warp).next_group;
  return Outcome::kDone;
}

// Waits for all but the last detail[0] committed groups; uncommitted products are not waited for.
Outcome RunWait(Warp& warp, const Instruction& instruction, Lanes lanes) {
  if (!AllLanesHere(warp, instruction, lanes)) return Outcome::kAgain;
  ProductsUnderWay& under_way = ProductsOf(warp);
  under_way.fenced = false;
  const int64_t end = under_way.next_group - instruction.detail[0];
  Accumulators accumulators(warp);
  while (!under_way.products.empty() && under_way.products.front().group < end) {
    const Product& product = under_way.products.front();
    if (!product.happened && !Perform(warp, product, &accumulators)) return Outcome::kAgain;
    under_way.products.pop_front();
  }
  return Outcome::kDone;
}

// "m64n128k16", or k32 of E4M3: N; 0: another shape.
int ColumnsOf(std::string_view shape, SmallFloat type) {
  if (!shape.starts_with("m64n")) return 0;
  if (!shape.ends_with(type == SmallFloat::kE4M3 ? "k32" : "k16")) return 0;
  const std::string_view digits = shape.substr(4, shape.size() - 7);
  int columns = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), columns);
  const bool known = error == std::errc() && end == digits.data() + digits.size() && columns >= 8 &&
                     columns <= kMaxColumns && columns % 8 == 0;
  return known ? columns : 0;
}

bool IsRegister(const Operand& operand, int bytes) {
  return operand.kind == Operand::Kind::kRow && operand.bytes == bytes;
}

bool AreRegisters(const Operand& operand, int count) {
  return operand.kind == Operand::Kind::kVector &&
         static_cast<int>(operand.elements.size()) == count &&
         std::all_of(operand.elements.begin(), operand.elements.end(),
                     [](const Operand& element) { return IsRegister(element, 4); });
}

// The immediates behind scale-d: scales of 1 or -1 for A and B, then 0 or 1 for each matrix of
// 16-bit elements in shared memory.
bool ReadImmediates(const Instruction& instruction, Form* form) {
  const auto& operands = instruction.operands;
  const bool is_e4m3 = form->type == SmallFloat::kE4M3;
  if (is_e4m3 && form->a_in_registers) return false;  // not modelled
  if (operands.size() != (is_e4m3 ? 6u : form->a_in_registers ? 7u : 8u)) return false;
  for (size_t i = 4; i < operands.size(); ++i) {
    if (operands[i].kind != Operand::Kind::kImmediate) return false;
    const auto value = static_cast<int32_t>(operands[i].value);
    const bool is_scale = i < 6;
    if (value != 1 && value != (is_scale ? -1 : 0)) return false;
    if (is_scale) {
      form->negated = form->negated != (value < 0);
    } else if (i + 1 == operands.size()) {
      form->b_mn_major = value == 1;
    } else {
      form->a_mn_major = value == 1;
    }
  }
  return true;
}

void AppendRows(const Operand& operand, std::vector<int32_t>* rows) {
  if (operand.kind == Operand::Kind::kRow) rows->push_back(operand.row);
  for (const Operand& element : operand.elements) rows->push_back(element.row);
}

// Looks back along the straight line from the product to its fence. What branches there is not
// followed.
int32_t FindWrite(const Kernel& kernel, const Instruction& product) {
  std::vector<int32_t> own;
  AppendRows(product.operands[0], &own);
  if (product.operands[1].kind == Operand::Kind::kVector) AppendRows(product.operands[1], &own);
  for (const Instruction* at = &product; at != kernel.code.data();) {
    --at;
    if (at->opcode == "bra" || (at->opcode == "wgmma" && at->Has("fence"))) return 0;
    if (at->opcode == "wgmma" || at->operands.empty()) continue;
    std::vector<int32_t> written;
    if (at->operands[0].kind != Operand::Kind::kAddress) AppendRows(at->operands[0], &written);
    if (std::find_first_of(written.begin(), written.end(), own.begin(), own.end()) !=
        written.end()) {
      return at->line;
    }
  }
  return 0;
}

Run BindMultiply(const Kernel& kernel, Instruction& instruction) {
  const auto& modifiers = instruction.modifiers;
  const auto& operands = instruction.operands;
  if (modifiers.size() != 7 || modifiers[1] != "sync" || modifiers[2] != "aligned" ||
      modifiers[4] != "f32" || modifiers[5] != modifiers[6] ||
      (modifiers[5] != "bf16" && modifiers[5] != "f16" && modifiers[5] != "e4m3") ||
      operands.size() < 4) {
    return nullptr;
  }
  Form form = {};
  form.type = modifiers[5] == "bf16"  ? SmallFloat::kBF16
              : modifiers[5] == "f16" ? SmallFloat::kF16
                                      : SmallFloat::kE4M3;
  form.columns = ColumnsOf(modifiers[3], form.type);
  form.a_in_registers = operands[1].kind == Operand::Kind::kVector;
  const bool known =
      form.columns != 0 && AreRegisters(operands[0], form.columns / 2) &&
      (form.a_in_registers ? AreRegisters(operands[1], 4) : IsRegister(operands[1], 8)) &&
      IsRegister(operands[2], 8) && operands[3].kind == Operand::Kind::kPredicate &&
      ReadImmediates(instruction, &form);
  if (known) form.write_line = FindWrite(kernel, instruction);
  Keep(form, &instruction);
  return known ? RunMultiply : nullptr;
}

}  // namespace

Run BindWgmma(Kernel& kernel, Instruction& instruction) {
  const auto& modifiers = instruction.modifiers;
  if (modifiers.size() < 3 || modifiers[1] != "sync" || modifiers[2] != "aligned") return nullptr;
  if (modifiers[0] == "mma_async") return BindMultiply(kernel, instruction);
  if (modifiers.size() != 3) return nullptr;
  const auto& operands = instruction.operands;
  if (modifiers[0] == "fence") return operands.empty() ? RunFence : nullptr;
  if (modifiers[0] == "commit_group") return operands.empty() ? RunCommit : nullptr;
  if (modifiers[0] != "wait_group" || operands.size() != 1 ||
      operands[0].kind != Operand::Kind::kImmediate || operands[0].value > 7) {
    return nullptr;
  }
  instruction.detail[0] = static_cast<int64_t>(operands[0].value);
  return RunWait;
}

ProductsUnderWay& ProductsOf(Warp& warp) {
  if (warp.products == nullptr) warp.products = std::make_unique<ProductsUnderWay>();
  return *warp.products;
}

std::string LeftBehind(const Warp& warp) {
  if (warp.products == nullptr || warp.products->products.empty()) return {};
  return absl::StrCat("the warp exits without having waited for the product of line ",
                      warp.products->products.front().instruction->line);
}

}  // namespace heddle::ptx
