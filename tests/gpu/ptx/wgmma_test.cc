// Products are compared with plain loops over small integers, so that they are exact. Which
// register of which thread holds which element, and where elements lie in shared memory, is
// worked out here by hand from the figures of the PTX ISA.
#include "catch2/catch.hpp"
#include "tests/gpu/ptx/async_testing.h"
#include "tests/gpu/ptx/matrix_testing.h"
#include "tests/gpu/ptx/small_floats.h"

namespace heddle::ptx {
namespace {

using Catch::Contains;
using test::AsyncRun;
using test::BF16;
using test::CopyIn;
using test::F16;
using test::Failure;
using test::InitBarrier;
using test::Matrix;
using test::Put;
using test::Registers;
using test::Small;
using test::StoreAll;
using test::Wait;

// Where wgmma finds element (mn, k) of a matrix that begins at `begin`, a multiple of 1024: the
// canonical layouts. A swizzle of `span` bytes exchanges 16-byte pieces within a span; which,
// says the row of 128 bytes that they lie in.
struct Layout {
  int span;  // 16: no swizzle
  bool mn_major;
  int leading, stride;
  int begin = 0;

  int At(int mn, int k) const {
    if (span == 16) {
      const int core = mn / 8 * stride + k / 8 * leading;
      return begin + core + (mn_major ? k % 8 * 16 + mn % 8 * 2 : mn % 8 * 16 + k % 8 * 2);
    }
    const int across = span / 2;  // elements of a span
    const int inner = mn_major ? mn : k, outer = mn_major ? k : mn;
    const int row = inner / across * leading + outer / 8 * stride + outer % 8 * span;
    const int piece = inner % across / 8 ^ (row / 128 % (span / 16));
    return begin + row + piece * 16 + inner % 8 * 2;
  }
  uint64_t Descriptor() const {
    const uint64_t mode = span == 128 ? 1 : span == 64 ? 2 : span == 32 ? 3 : 0;
    return static_cast<uint64_t>(begin) >> 4 | static_cast<uint64_t>(leading) >> 4 << 16 |
           static_cast<uint64_t>(stride) >> 4 << 32 | mode << 62;
  }
};

// %rd10 = the descriptor of what begins at sm + 1024 + layout.begin, likewise %rd11.
std::string Descriptors(const Layout& a, const Layout& b) {
  return "cvt.u64.u32 %rd9, %r2;\nadd.s64 %rd9, %rd9, 1024;\nshr.u64 %rd9, %rd9, 4;\n"
         "add.s64 %rd10, %rd9, " +
         std::to_string(static_cast<int64_t>(a.Descriptor())) + ";\nadd.s64 %rd11, %rd9, " +
         std::to_string(static_cast<int64_t>(b.Descriptor())) + ";\n";
}

std::string Shape(int columns, bool bf16) {
  return "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) + "k16.f32." +
         (bf16 ? "bf16.bf16 " : "f16.f16 ");
}

const char* const kFence = "wgmma.fence.sync.aligned;\n";
const char* const kCommit = "wgmma.commit_group.sync.aligned;\n";
const char* const kWait = "wgmma.wait_group.sync.aligned 0;\n";

// %f0.. are 1, %p4 is true.
std::string Ones(int columns) {
  std::string text = "setp.eq.u32 %p4, %r1, %r1;\n";
  for (int i = 0; i < columns / 2; ++i)
    text += "mov.f32 %f" + std::to_string(i) + ", 0f3F800000;\n";
  return text;
}

// The element of D that register i of a thread holds.
float Element(const AsyncRun& run, int columns, int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2;
  const int thread = row / 16 * 32 + lane;
  const int i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
  return run.Out<float>(static_cast<size_t>(thread * columns / 2 + i));
}

// d[row, column] = initial + sign * sum over k of a[row, k] b[column, k].
void CheckProduct(const AsyncRun& run, const Matrix& a, const Matrix& b, float initial,
                  float sign) {
  int wrong = 0;
  for (int row = 0; row < a.rows; ++row) {
    for (int column = 0; column < b.rows; ++column) {
      float sum = 0;
      for (int k = 0; k < a.columns; ++k) sum += a.at(row, k) * b.at(column, k);
      wrong += Element(run, b.rows, row, column) != initial + sign * sum;
    }
  }
  CHECK(wrong == 0);
}

AsyncRun WithImage(const Matrix& a, const Layout& a_layout, const Matrix& b, const Layout& b_layout,
                   bool bf16) {
  AsyncRun run{.threads = 128, .shared_bytes = 64 << 10};
  run.out.resize(static_cast<size_t>(128 * b.rows / 2 * 4));
  const auto put = [&](const Matrix& matrix, const Layout& layout) {
    for (int mn = 0; mn < matrix.rows; ++mn) {
      for (int k = 0; k < matrix.columns; ++k) {
        Put(run.in, layout.At(mn, k), Small(matrix.at(mn, k), bf16));
      }
    }
  };
  put(a, a_layout);
  put(b, b_layout);
  return run;
}

std::string CopyImage(const AsyncRun& run) {
  return InitBarrier(1) + CopyIn(0, 1024, static_cast<int>(run.in.size())) + Wait(0);
}

TEST_CASE("A warpgroup multiplies matrices in every layout of shared memory", "[ptx]") {
  struct Case {
    int columns;
    Layout a, b;
  };
  const Case cases[] = {
      {8, {16, false, 128, 256}, {16, false, 128, 256, 8192}},
      {24, {16, false, 1024, 128}, {16, false, 1024, 128, 8192}},
      {64, {16, true, 1024, 128}, {16, true, 128, 256, 8192}},
      {64, {32, false, 0, 256}, {32, false, 16, 256, 8192}},
      {64, {32, true, 512, 256}, {32, true, 512, 256, 8192}},
      {64, {64, false, 0, 512}, {64, false, 0, 512, 8192}},
      {64, {64, true, 512, 1024}, {64, true, 1024, 512, 8192}},
      {64, {128, false, 16, 1024}, {128, false, 16, 1024, 8192}},
      {128, {128, true, 0, 1024}, {128, true, 1024, 2048, 8192}},
      {256, {128, true, 0, 1024}, {128, true, 2048, 1024, 8192}},
      {256, {128, false, 0, 1024}, {64, true, 512, 4096, 8192}},
  };
  for (const Case& c : cases) {
    for (const bool bf16 : {true, false}) {
      INFO("columns " << c.columns << ", spans " << c.a.span << " and " << c.b.span);
      const Matrix a(64, 16, 4), b(c.columns, 16, 5);
      AsyncRun run = WithImage(a, c.a, b, c.b, bf16);
      const std::string body = CopyImage(run) + Ones(c.columns) + Descriptors(c.a, c.b) + kFence +
                               Shape(c.columns, bf16) + Registers("%f", 0, c.columns / 2) +
                               ", %rd10, %rd11, %p4, 1, 1, " + (c.a.mn_major ? "1, " : "0, ") +
                               (c.b.mn_major ? "1;\n" : "0;\n") + kCommit + kWait +
                               StoreAll("%f", c.columns / 2);
      for (const bool late : {true, false}) {
        REQUIRE(run.Run(body, late).ok());
        CheckProduct(run, a, b, /*initial=*/1, /*sign=*/1);
        CHECK(run.counts.matrix_multiplies == 64 * c.columns * 16);
      }
    }
  }
}

// K-major with a span of 128 bytes: 64 elements of K, four instructions that begin 32 bytes apart.
// The code of a small integer.
uint8_t E4M3(float value) {
  for (int bits = 0; bits < 256; ++bits) {
    if (FloatOfE4M3(static_cast<uint8_t>(bits)) == value) return static_cast<uint8_t>(bits);
  }
  return 0x7F;
}

TEST_CASE("A warpgroup multiplies E4M3, 32 of K at once", "[ptx]") {
  for (const int columns : {64, 96, 208}) {
    INFO("columns " << columns);
    const Matrix a(64, 32, 4), b(columns, 32, 5);
    AsyncRun run{.threads = 128, .shared_bytes = 64 << 10};
    run.out.resize(static_cast<size_t>(128 * columns / 2 * 4));
    run.in.resize(static_cast<size_t>(8192 + columns * 128));
    const auto put = [&](const Matrix& matrix, int begin) {  // rows of 128 bytes, swizzled
      for (int mn = 0; mn < matrix.rows; ++mn) {
        for (int k = 0; k < matrix.columns; ++k) {
          const int at = begin + mn * 128 + (k / 16 ^ mn % 8) * 16 + k % 16;
          run.in[static_cast<size_t>(at)] = E4M3(matrix.at(mn, k));
        }
      }
    };
    put(a, 0);
    put(b, 8192);
    const Layout a_layout = {128, false, 0, 1024}, b_layout = {128, false, 0, 1024, 8192};
    const std::string product = "wgmma.mma_async.sync.aligned.m64n" + std::to_string(columns) +
                                "k32.f32.e4m3.e4m3 " + Registers("%f", 0, columns / 2) +
                                ", %rd10, %rd11, %p4, 1, 1;\n";
    const std::string body = CopyImage(run) + Ones(columns) + Descriptors(a_layout, b_layout) +
                             kFence + product + kCommit + kWait + StoreAll("%f", columns / 2);
    for (const bool late : {true, false}) {
      REQUIRE(run.Run(body, late).ok());
      CheckProduct(run, a, b, /*initial=*/1, /*sign=*/1);
      CHECK(run.counts.matrix_multiplies == 64 * columns * 32);
    }
  }
}

TEST_CASE("Start addresses move along K within a swizzled row", "[ptx]") {
  const Layout layout_a = {128, false, 0, 1024}, layout_b = {128, false, 0, 1024, 8192};
  const Matrix a(64, 64, 6), b(32, 64, 7);
  AsyncRun run = WithImage(a, layout_a, b, layout_b, true);
  std::string body = CopyImage(run) + Ones(32) + Descriptors(layout_a, layout_b) + kFence;
  for (int k = 0; k < 4; ++k) {
    body +=
        Shape(32, true) + Registers("%f", 0, 16) +
        ", %rd10, %rd11, %p4, -1, 1, 0, 0;\nadd.s64 %rd10, %rd10, 2;\nadd.s64 %rd11, %rd11, 2;\n";
  }
  REQUIRE(run.Run(body + kCommit + kWait + StoreAll("%f", 16), true).ok());
  CheckProduct(run, a, b, 1, -1);
}

TEST_CASE("A in registers is multiplied, without D where scale-d is false", "[ptx]") {
  const Layout layout = {128, true, 0, 1024};
  const Matrix a(64, 16, 8), b(64, 16, 9);
  AsyncRun run = WithImage(b, layout, b, layout, false);
  const size_t image = run.in.size();
  // A's four registers of each thread behind the image, in pairs of K.
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 8; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      const int k = thread % 4 * 2 + i % 2 + i / 4 * 8;
      Put(run.in, static_cast<int>(image) + thread * 16 + i * 2, F16(a.at(row, k)));
    }
  }
  std::string body = InitBarrier(1) + CopyIn(0, 1024, static_cast<int>(image)) + Wait(0) +
                     Ones(64) + Descriptors(layout, layout) +
                     "shl.b32 %r5, %r1, 4;\ncvt.u64.u32 %rd6, %r5;\nadd.s64 %rd7, %rd1, %rd6;\n";
  for (int i = 0; i < 4; ++i) {
    body += "ld.global.u32 %r" + std::to_string(20 + i) + ", [%rd7+" +
            std::to_string(static_cast<int>(image) + 4 * i) + "];\n";
  }
  body += "setp.ne.u32 %p4, %r1, %r1;\n" + std::string(kFence) + Shape(64, false) +
          Registers("%f", 0, 32) + ", {%r20,%r21,%r22,%r23}, %rd11, %p4, 1, -1, 1;\n" + kCommit +
          kWait + StoreAll("%f", 32);
  for (const bool late : {true, false}) {
    REQUIRE(run.Run(body, late).ok());
    CheckProduct(run, a, b, 0, -1);
  }
}

// A [64 rows, 64 of K] of a wider matrix, B [64 of K, 64 columns], N contiguous: what copies with
// swizzles put there is what products find there.
TEST_CASE("Tensor copies and products agree on swizzled tiles", "[ptx]") {
  const Matrix a(64, 64, 10), b(64, 64, 11);
  struct Case {
    MapSwizzle swizzle;
    int span;
  };
  const Case cases[] = {
      {MapSwizzle::k128Bytes, 128}, {MapSwizzle::k64Bytes, 64}, {MapSwizzle::k32Bytes, 32}};
  for (const Case& c : cases) {
    // A's 64 rows of K and, behind them, B's 64 rows of N; each box is one span wide.
    AsyncRun run{.threads = 128, .shared_bytes = 64 << 10};
    run.out.resize(128 * 32 * 4);
    for (int i = 0; i < 64; ++i) {
      for (int j = 0; j < 64; ++j) {
        Put(run.in, (i * 64 + j) * 2, BF16(a.at(i, j)));
        Put(run.in, 8192 + (i * 64 + j) * 2, BF16(b.at(j, i)));
      }
    }
    const uint64_t sizes[2] = {64, 128}, strides[1] = {128};
    const uint32_t box[2] = {static_cast<uint32_t>(c.span / 2), 64}, ones[2] = {1, 1};
    run.maps = {{.data_type = 9,
                 .rank = 2,
                 .address = 0,
                 .sizes = sizes,
                 .strides = strides,
                 .box = box,
                 .element_strides = ones,
                 .interleave = 0,
                 .swizzle = static_cast<int>(c.swizzle),
                 .l2_promotion = 0,
                 .fill = 0}};
    std::string body =
        InitBarrier(1) + "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16384;\n";
    const int boxes = 128 / c.span;  // of each matrix, 64 rows each
    for (int i = 0; i < 2 * boxes; ++i) {
      body += "mov.u32 %r10, " + std::to_string(i % boxes * c.span / 2) + ";\nmov.u32 %r11, " +
              std::to_string(i / boxes * 64) + ";\nadd.s32 %r12, %r2, " +
              std::to_string(1024 + i * 64 * c.span) +
              ";\n@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
              "[%r12], [%rd3, {%r10, %r11}], [%r2];\n";
    }
    // A: rows of a span, 8 of them to the next 8. B: K outside, 8 of K to the next 8; the next
    // span of N is the next box.
    const Layout layout_a = {c.span, false, 0, 8 * c.span};
    const Layout layout_b = {c.span, true, 64 * c.span, 8 * c.span, 8192};
    body += Wait(0) + Ones(64) + kFence;
    for (int k = 0; k < 64; k += 16) {
      Layout at_a = layout_a, at_b = layout_b;
      at_a.begin += k * 2 / c.span * 64 * c.span + k * 2 % c.span;
      at_b.begin += k * c.span;
      body += Descriptors(at_a, at_b) + Shape(64, true) + Registers("%f", 0, 32) +
              ", %rd10, %rd11, %p4, 1, 1, 0, 1;\n";
    }
    body += std::string(kCommit) + kWait + StoreAll("%f", 32);
    for (const bool late : {true, false}) {
      INFO("span " << c.span);
      REQUIRE(run.Run(body, late).ok());
      CheckProduct(run, a, b, 1, 1);
    }
  }
}

const Layout kPlainA = {128, false, 0, 1024}, kPlainB = {128, false, 0, 1024, 8192};

// A product of 8 columns in kPlainA and kPlainB, to registers from `first` on.
std::string Product(int first = 0) {
  return Shape(8, true) + Registers("%f", first, 4) + ", %rd10, %rd11, %p4, 1, 1, 0, 0;\n";
}

TEST_CASE("Products happen when they are waited for, in groups", "[ptx]") {
  const Matrix a(64, 16, 12), b(8, 16, 13);
  AsyncRun run = WithImage(a, kPlainA, b, kPlainB, true);
  const std::string two = CopyImage(run) + Ones(16) + Descriptors(kPlainA, kPlainB) + kFence +
                          Product(0) + kCommit + Product(4) + kCommit +
                          "wgmma.wait_group.sync.aligned 1;\n";
  // Registers of a product under way still hold what they did.
  REQUIRE(run.Run(two + "mov.f32 %f0, %f4;\n" + kWait + StoreAll("%f", 4), true).ok());
  CHECK(run.Out<float>(0) == 1);
  REQUIRE(run.Run(two + kWait + "mov.f32 %f0, %f4;\n" + StoreAll("%f", 4), true).ok());
  CHECK(run.Out<float>(0) == Element(run, 8, 0, 0));
  CHECK(run.Out<float>(0) != 1);
  REQUIRE(run.Run(two + kWait + StoreAll("%f", 4), true).ok());
  CheckProduct(run, a, b, 1, 1);
}

TEST_CASE("A misused warpgroup product is a fault", "[ptx]") {
  const Matrix a(64, 16, 14), b(8, 16, 15);
  AsyncRun run = WithImage(a, kPlainA, b, kPlainB, true);
  const std::string begin = CopyImage(run) + Ones(8) + Descriptors(kPlainA, kPlainB);
  const std::string end = std::string(kCommit) + kWait;
  REQUIRE(run.Run(begin + kFence + Product() + end, true).ok());
  CHECK_THAT(Failure(run, begin + Product() + end), Contains("no wgmma.fence"));
  CHECK_THAT(Failure(run, begin + kFence + Product() + end + Product() + end),
             Contains("no wgmma.fence"));
  CHECK_THAT(Failure(run, begin + kFence + "mov.f32 %f2, %f1;\n" + Product() + end),
             Contains("writes registers of it"));
  CHECK_THAT(Failure(run, begin + kFence + Product() + kWait), Contains("without having waited"));
  CHECK_THAT(Failure(run, begin + kFence + Product(), false), Contains("without having waited"));
  CHECK_THAT(Failure(run, begin + "setp.lt.u32 %p4, %r1, 5;\n" + kFence + Product() + end),
             Contains("scale-d"));
  CHECK_THAT(
      Failure(run, begin + "setp.lt.u32 %p5, %r1, 5;\n" + kFence + "@%p5 " + Product() + end),
      Contains("not the same in all lanes"));
  const std::string shift = "cvt.u64.u32 %rd12, %r1;\nshr.u64 %rd12, %rd12, ";
  CHECK_THAT(
      Failure(run, begin + shift + "4;\nadd.s64 %rd10, %rd10, %rd12;\n" + kFence + Product() + end),
      Contains("descriptor is not the same"));
  CHECK_THAT(
      Failure(run, begin + shift + "6;\nadd.s64 %rd10, %rd10, %rd12;\n" + kFence + Product() + end),
      Contains("of this warpgroup"));
  const auto with = [&](const std::string& change) {
    return begin + change + kFence + Product() + end;
  };
  CHECK_THAT(Failure(run, with("or.b64 %rd10, %rd10, 16384;\n")),
             Contains("outside of its fields"));
  CHECK_THAT(Failure(run, with("or.b64 %rd11, %rd11, 562949953421312;\n")),
             Contains("base offset 1"));
  CHECK_THAT(Failure(run, with("add.s64 %rd11, %rd11, 8;\n")), Contains("do not begin at"));
  CHECK_THAT(Failure(run, with("add.s64 %rd11, %rd11, 7;\n")), Contains("leaves the swizzle"));
  CHECK_THAT(Failure(run, with("or.b64 %rd11, %rd11, 16383;\n")), Contains("do not begin"));
  CHECK_THAT(Failure(run, with("add.s64 %rd11, %rd11, 4096;\n")), Contains("not the block's"));
  run.threads = 96;
  CHECK_THAT(Failure(run, begin + kFence + Product() + end), Contains("all four warps"));
}

TEST_CASE("Stores that no proxy fence orders before a product are a fault", "[ptx]") {
  const Matrix a(64, 16, 16), b(8, 16, 17);
  AsyncRun run = WithImage(a, kPlainA, b, kPlainB, true);
  const std::string begin = CopyImage(run) + Ones(8) + Descriptors(kPlainA, kPlainB);
  const std::string store = "setp.eq.u32 %p5, %r1, 70;\n@%p5 st.shared.u32 [%r2+1152], %r1;\n";
  const std::string product = std::string(kFence) + Product() + kCommit + kWait;
  CHECK_THAT(Failure(run, begin + store + "bar.sync 0;\n" + product), Contains("store of warp 2"));
  CHECK(run.Run(begin + store + "fence.proxy.async.shared::cta;\nbar.sync 0;\n" + product, true)
            .ok());
  // A store while the product reads: it is late enough to see it.
  CHECK_THAT(Failure(run, begin + kFence + Product() + kCommit + "bar.sync 0;\n" + store +
                              "bar.sync 0;\n" + kWait),
             Contains("store of warp 2"));
}

TEST_CASE("Copies and products on the same memory have to wait for each other", "[ptx]") {
  const Matrix a(64, 16, 18), b(8, 16, 19);
  AsyncRun run = WithImage(a, kPlainA, b, kPlainB, true);
  const int bytes = static_cast<int>(run.in.size());
  const std::string begin = Ones(8) + Descriptors(kPlainA, kPlainB);
  const std::string product = std::string(kFence) + Product() + kCommit;
  CHECK_THAT(
      Failure(run, InitBarrier(1) + CopyIn(0, 1024, bytes) + begin + product + kWait + Wait(0)),
      Contains("nobody waited for"));
  // The stage is given back before the product that reads it is over: A's first rows, B's.
  for (const int to : {1024, 1024 + 8192}) {
    const std::string again = "bar.sync 0;\n" + CopyIn(0, to, 256);
    for (const bool late : {true, false}) {
      CHECK_THAT(Failure(run, CopyImage(run) + begin + product + again + kWait + Wait(1), late),
                 Contains("has not waited to have read"));
    }
    CHECK(run.Run(CopyImage(run) + begin + product + kWait + again + Wait(1, "AGAIN"), true).ok());
  }
  // The bytes between A and B are nobody's.
  CHECK(run.Run(CopyImage(run) + begin + product + "bar.sync 0;\n" + CopyIn(0, 1024 + 10240, 256) +
                    kWait + Wait(1, "AGAIN"),
                true)
            .ok());
}

TEST_CASE("Products of other shapes and types are not understood", "[ptx]") {
  AsyncRun run{.threads = 128};
  const auto refused = [&](const std::string& product) {
    return absl::IsUnimplemented(run.Run(product + ";\n", true));
  };
  CHECK(
      refused("wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%f0,%f1,%f2,%f3,%f4,%f5}, "
              "%rd10, %rd11, %p4, 1, 1, 0, 0"));
  CHECK(refused(Shape(8, true) + "{%f0,%f1,%f2}, %rd10, %rd11, %p4, 1, 1, 0, 0"));
  CHECK(refused(Shape(8, true) + "{%f0,%f1,%f2,%f3}, %rd10, %rd11, %p4, 1, 2, 0, 0"));
  CHECK(refused(Shape(8, true) + "{%f0,%f1,%f2,%f3}, %rd10, %rd11, %p4, 1, 1, 0"));
  CHECK(
      refused("wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r10,%r11}, %rd10, %rd11, %p4, "
              "1, 1, 0, 0"));
  CHECK(refused("wgmma.wait_group.sync.aligned 8"));
  CHECK(
      refused("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r20,%r21}, "
              "{%r24}, {%f0,%f1,%f2,%f3}"));
}

}  // namespace
}  // namespace heddle::ptx
