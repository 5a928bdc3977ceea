// The matrix instructions of warpgroups. See async.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/emulate/async.h"
#include "tests/emulate/async_state.h"
#include "tests/emulate/elements.h"
#include "tests/emulate/emulator.h"

namespace heddle::kernels::cuda::emulate {
namespace {

// An instruction's depth is 32 bytes of both matrices.
constexpr int32_t kDepthBytes = 32;
constexpr int32_t kMostDepth = 32;
constexpr int32_t kMostOwnColumns = 64;  // of a thread: a quarter of 256
constexpr int32_t kGroupThreads = 128;

void Complain(const char* wrong) { Report(absl::StrCat(Where(), " ", wrong)); }

// A matrix in shared memory, swizzled by 128 bytes, as its descriptor says. Canonical layouts of
// 16-bit elements, before the swizzle, in bytes (of 8-bit ones the first, with k for 2 k):
//   along its depth      row r, k: (r / 8) * stride + (r % 8) * 128 + 2 k
//   along its rows       row r, k: (r / 64) * leading + (k / 8) * stride + (k % 8) * 128
//                                  + 2 (r % 64)
// Source: PTX ISA, "Shared Memory Matrix Layout", "Canonical Layouts", "Matrix Descriptor Format".
class SharedMatrix {
 public:
  SharedMatrix(uint64_t descriptor, bool along_rows, int32_t element_bytes = 2)
      : start_(static_cast<int32_t>(descriptor & 0x3FFF) << 4),
        leading_(static_cast<int32_t>((descriptor >> 16) & 0x3FFF) << 4),
        stride_(static_cast<int32_t>((descriptor >> 32) & 0x3FFF) << 4),
        element_bytes_(element_bytes),
        along_rows_(along_rows) {}

  static const char* Wrong(uint64_t descriptor) {
    if (descriptor >> 62 != 1) return "multiplies a matrix that is not swizzled by 128 bytes";
    if (((descriptor >> 49) & 7) != 0) return "multiplies a matrix with a base offset";
    if (((descriptor << 4) & 0x380) != 0)
      return "multiplies a matrix that does not begin a pattern";
    return nullptr;
  }
  int32_t Offset(int32_t row, int32_t k) const {
    if (along_rows_) {
      return start_ + row / 64 * leading_ + k / 8 * stride_ + k % 8 * 128 + row % 64 * 2;
    }
    return start_ + row / 8 * stride_ + row % 8 * 128 + k * element_bytes_;
  }
  uint16_t At(int32_t row, int32_t k) const {
    const int32_t offset = Offset(row, k);
    const int32_t swizzled = offset ^ (((offset >> 7) & 7) << 4);
    if (swizzled < 0 || swizzled + element_bytes_ > SharedBytes()) return 0xFFFF;
    uint16_t bits = 0;
    std::memcpy(&bits, SharedBase() + swizzled, static_cast<size_t>(element_bytes_));
    return bits;
  }
  // A row of an instruction's depth. Along its depth it is two units of 16 bytes, each swizzled.
  void Row(int32_t row, uint16_t (&bits)[kMostDepth]) const {
    const int32_t depth = kDepthBytes / element_bytes_;
    const int32_t offset = Offset(row, 0);
    const int32_t last = (offset + 16) ^ ((((offset + 16) >> 7) & 7) << 4);
    const int32_t first = offset ^ (((offset >> 7) & 7) << 4);
    if (along_rows_ || std::min(first, last) < 0 || std::max(first, last) + 16 > SharedBytes()) {
      for (int32_t k = 0; k < depth; ++k) bits[k] = At(row, k);
      return;
    }
    uint8_t bytes[kDepthBytes];
    std::memcpy(bytes, SharedBase() + first, 16);
    std::memcpy(bytes + 16, SharedBase() + last, 16);
    if (element_bytes_ == 2) {
      std::memcpy(bits, bytes, kDepthBytes);
    } else {
      for (int32_t k = 0; k < depth; ++k) bits[k] = bytes[k];
    }
  }
  // Lines of rows [first, first + count); some of them more than once.
  void AddLines(int32_t first, int32_t count, std::vector<int32_t>* lines) const {
    for (int32_t r = first; r < first + count; r += along_rows_ ? 64 : 1) {
      const int32_t depth = kDepthBytes / element_bytes_;
      for (int32_t k = 0; k < depth; k += along_rows_ ? 1 : depth) {
        lines->push_back(Offset(r, k) / kLineBytes);
      }
    }
  }

 private:
  int32_t start_, leading_, stride_, element_bytes_;
  bool along_rows_;
};

int32_t ElementBytes(const Product& product) { return product.type == ProductType::kE4M3 ? 1 : 2; }
int32_t DepthOf(const Product& product) { return kDepthBytes / ElementBytes(product); }
SharedMatrix MatrixA(const Product& product) {
  return SharedMatrix(product.a_matrix, false, ElementBytes(product));
}
SharedMatrix MatrixB(const Product& product) {
  return SharedMatrix(product.b_matrix, product.b_is_transposed, ElementBytes(product));
}

std::vector<int32_t> LinesOf(const Product& product, int32_t warp) {
  std::vector<int32_t> lines;
  MatrixB(product).AddLines(0, product.columns, &lines);
  if (product.a == nullptr) MatrixA(product).AddLines(16 * warp, 16, &lines);
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  return lines;
}

uint64_t VersionsOf(const Product& product, int32_t warp) {
  uint64_t sum = 0;
  for (int32_t line : LinesOf(product, warp)) sum += Async().lines.version(line);
  return sum;
}

float ToF32(uint16_t bits, ProductType type) {
  if (type == ProductType::kE4M3) return ValueOfF8(static_cast<uint8_t>(bits));
  return type == ProductType::kF16 ? ValueOfF16(bits) : ValueOfBF16(bits);
}

// Row `row` of A, 0..15 within this warp's.
void LoadA(const PendingProduct& pending, int32_t warp, int32_t row, float (&a)[kMostDepth]) {
  const Product& product = pending.product;
  uint16_t bits[kMostDepth];
  if (product.a == nullptr) {
    MatrixA(product).Row(16 * warp + row, bits);
  } else {
    for (int32_t k = 0; k < DepthOf(product); ++k) {
      const uint32_t pair = pending.a[k % 8 / 2][2 * (k / 8) + row / 8];
      bits[k] = static_cast<uint16_t>(k % 2 == 0 ? pair : pair >> 16);
    }
  }
  for (int32_t k = 0; k < DepthOf(product); ++k) a[k] = ToF32(bits[k], product.type);
}

// Sums of a row's products with so many columns, side by side: each in the order of its depth.
void AddColumns(int32_t depth, int32_t columns, const float* row,
                const float (&b)[kMostDepth][kMostOwnColumns], float (&sums)[kMostOwnColumns]) {
  for (int32_t k = 0; k < depth; ++k) {
    for (int32_t c = 0; c < columns; ++c) sums[c] += row[k] * b[k][c];
  }
}

void Compute(const PendingProduct& pending, int32_t thread) {
  const Product& product = pending.product;
  const int32_t lane = thread % kWarpLanes;
  const int32_t warp = thread % kGroupThreads / kWarpLanes;
  float a[2][kMostDepth];
  LoadA(pending, warp, lane / 4, a[0]);
  LoadA(pending, warp, lane / 4 + 8, a[1]);
  const SharedMatrix matrix = MatrixB(product);
  const int32_t depth = DepthOf(product);
  const int32_t columns = product.columns / 4;
  float b[kMostDepth][kMostOwnColumns];
  for (int32_t c = 0; c < columns; ++c) {  // columns 8 n + 2 (lane % 4) and the next
    uint16_t bits[kMostDepth];
    matrix.Row(c / 2 * 8 + 2 * (lane % 4) + c % 2, bits);
    for (int32_t k = 0; k < depth; ++k) b[k][c] = ToF32(bits[k], product.type);
  }
  for (int32_t h = 0; h < 2; ++h) {
    float sums[kMostOwnColumns] = {};
    AddColumns(depth, columns, a[h], b, sums);
    for (int32_t c = 0; c < columns; ++c) {
      float& to = product.sums[c / 2 * 4 + 2 * h + c % 2];
      to = (product.adds ? to : 0.0f) + sums[c];
    }
  }
}

bool IsPending(const ProductThread& self, const float* sums) {
  const auto has = [sums](const std::vector<PendingProduct>& group) {
    return std::any_of(group.begin(), group.end(),
                       [sums](const PendingProduct& p) { return p.product.sums == sums; });
  };
  return has(self.open) || std::any_of(self.groups.begin(), self.groups.end(), has);
}

void Finish(const std::vector<PendingProduct>& group, int32_t thread) {
  for (const PendingProduct& pending : group) {
    const Product& product = pending.product;
    if (pending.is_first) {
      std::copy(pending.saved.begin(), pending.saved.end(), product.sums);
    }
    if (product.a != nullptr && !std::equal(product.a, product.a + 4, pending.own_a.begin())) {
      Complain("changed registers that a matrix instruction still reads");
    }
    const int32_t warp = thread % kGroupThreads / kWarpLanes;
    if (thread % kWarpLanes == 0 && VersionsOf(product, warp) != pending.versions) {
      Complain("waited for a product whose matrices changed meanwhile");
    }
    Compute(pending, thread);
  }
}

// The data that a lane shows the others of its warp.
struct Deposit {
  uint64_t a_matrix, b_matrix;
  uint32_t a[4];
};

// Checks that the lanes of a warp, and the warps of a group, issue the same product.
void CheckAgreement(const char* deposits, const Product& product) {
  for (int32_t lane = 0; lane < kWarpLanes; ++lane) {
    Deposit other;
    std::memcpy(&other, deposits + 64 * lane, sizeof(other));
    if (other.a_matrix != product.a_matrix || other.b_matrix != product.b_matrix) {
      return Complain("multiplies other matrices than its neighbours");
    }
  }
  auto& matrices = Async().matrices[Current().thread / kGroupThreads];
  const size_t index = Async().products[Current().thread].issued;
  if (index == matrices.size()) matrices.push_back(product.b_matrix);
  if (index > matrices.size() || matrices[index] != product.b_matrix) {
    Complain("multiplies another matrix than the other warps of its group");
  }
}

}  // namespace

void ProductIssue(const Product& product) {
  UseAsync();
  const int32_t thread = Current().thread;
  ProductThread& self = Async().products[thread];
  PendingProduct pending = {.product = product};
  Deposit mine = {product.a_matrix, product.b_matrix, {}};
  if (product.a != nullptr) std::copy_n(product.a, 4, mine.a);
  std::copy_n(mine.a, 4, pending.own_a.begin());
  const char* deposits = Exchange("WarpgroupMma", &mine, sizeof(mine));
  CheckAgreement(deposits, product);
  for (int32_t t = 0; t < 4; ++t) {
    Deposit other;
    std::memcpy(&other, deposits + 64 * (thread % kWarpLanes / 4 * 4 + t), sizeof(other));
    std::copy_n(other.a, 4, pending.a[t].begin());
  }
  if (!self.is_fenced) Complain("multiplies without a fence after it last touched its registers");
  const char* wrong = SharedMatrix::Wrong(product.b_matrix);
  if (product.a == nullptr && wrong == nullptr) wrong = SharedMatrix::Wrong(product.a_matrix);
  if (wrong != nullptr) Complain(wrong);
  if (thread % kWarpLanes == 0) {
    const int32_t warp = thread % kGroupThreads / kWarpLanes;
    for (int32_t line : LinesOf(product, warp)) {
      const char* bad = Async().lines.MatrixRead(line, thread);
      if (bad != nullptr) Complain(bad);
    }
    pending.versions = VersionsOf(product, warp);
  }
  if (!IsPending(self, product.sums)) {
    const int32_t count = product.columns / 2;
    pending.is_first = true;
    pending.saved.assign(product.sums, product.sums + count);
    std::fill_n(product.sums, count, std::numeric_limits<float>::quiet_NaN());
  }
  ++self.issued;
  self.open.push_back(std::move(pending));
}

void ProductFence() {
  UseAsync();
  Async().products[Current().thread].is_fenced = true;
}

void ProductCommit() {
  ProductThread& self = Async().products[Current().thread];
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}

void ProductWait(int32_t groups_left) {
  UseAsync();
  ProductThread& self = Async().products[Current().thread];
  // Lets others run first: from here on they may touch what the product has read.
  Exchange("ProductWait", nullptr, 0);
  while (static_cast<int32_t>(self.groups.size()) > groups_left) {
    Finish(self.groups.front(), Current().thread);
    self.groups.pop_front();
  }
  self.is_fenced = false;
}

void EndProducts() {
  for (const ProductThread& thread : Async().products) {
    if (!thread.groups.empty() || !thread.open.empty()) {
      return Complain("ends with products that it never waited for");
    }
  }
}

}  // namespace heddle::kernels::cuda::emulate
