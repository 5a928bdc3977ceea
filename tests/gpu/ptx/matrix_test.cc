// Products are compared with plain loops over small integers, so that they are exact. Which
// register of which thread holds which element, and where elements lie in shared memory, is
// worked out here by hand from the figures of the PTX ISA.
#include <bit>
#include <cmath>
#include <limits>

#include "catch2/catch.hpp"
#include "tests/gpu/ptx/async_testing.h"
#include "tests/gpu/ptx/matrix_testing.h"

namespace heddle::ptx {
namespace {

using Catch::Contains;
using test::AsyncRun;
using test::CopyIn;
using test::Failure;
using test::InitBarrier;
using test::Matrix;
using test::Put;
using test::Registers;
using test::Small;
using test::StoreAll;
using test::Wait;

TEST_CASE("ldmatrix gives each lane two neighbours of a row, or of a column", "[ptx]") {
  // Row r of matrix m, 16 bytes, lies at 16 * (8 * m + r); its element c is 100 m + 10 r + c.
  std::vector<uint8_t> image;
  for (int i = 0; i < 256; ++i) {
    Put(image, 2 * i, static_cast<uint16_t>(100 * (i / 64) + 10 * (i / 8 % 8) + i % 8));
  }
  for (const int count : {1, 2, 4}) {
    for (const bool transposed : {false, true}) {
      AsyncRun run{.in = image};
      // Lanes that give no address have one outside of shared memory.
      const std::string load =
          "shl.b32 %r4, %r1, 4;\nadd.s32 %r5, %r2, %r4;\nadd.s32 %r5, %r5, 1024;\n"
          "setp.lt.u32 %p3, %r1, " +
          std::to_string(8 * count) + ";\nselp.b32 %r5, %r5, 0, %p3;\n" +
          "ldmatrix.sync.aligned.m8n8.x" + std::to_string(count) + (transposed ? ".trans" : "") +
          ".shared.b16 " + Registers("%r", 10, count) + ", [%r5];\n";
      REQUIRE(
          run.Run(InitBarrier(1) + CopyIn(0, 1024, 512) + Wait(0) + load + StoreAll("%r", count),
                  true)
              .ok());
      for (int lane = 0; lane < 32; ++lane) {
        for (int m = 0; m < count; ++m) {
          const int line = lane / 4, pair = lane % 4 * 2;
          const int low = transposed ? 100 * m + 10 * pair + line : 100 * m + 10 * line + pair;
          const int high = low + (transposed ? 10 : 1);
          CHECK(run.Out<uint16_t>(static_cast<size_t>(2 * (lane * count + m))) == low);
          CHECK(run.Out<uint16_t>(static_cast<size_t>(2 * (lane * count + m) + 1)) == high);
        }
      }
      CHECK(run.counts.shared_least == count);
      CHECK(run.counts.shared_passes == count);
    }
  }
}

TEST_CASE("ldmatrix counts bank conflicts and wants aligned rows of all lanes", "[ptx]") {
  AsyncRun run;
  const auto load = [](int shift, const std::string& guard = "") {
    return "shl.b32 %r4, %r1, " + std::to_string(shift) + ";\nadd.s32 %r5, %r2, %r4;\n" + guard +
           "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10,%r11,%r12,%r13}, [%r5];\n";
  };
  REQUIRE(run.Run(load(7), true).ok());
  CHECK(run.counts.shared_passes == 32);
  CHECK(run.counts.shared_least == 4);
  CHECK_THAT(Failure(run, load(3)), Contains("not aligned to 16"));
  CHECK_THAT(Failure(run, "setp.lt.u32 %p3, %r1, 31;\n" + load(4, "@%p3 ")),
             Contains("not the same in all lanes"));
  CHECK_THAT(Failure(run, "setp.eq.u32 %p3, %r1, 31;\n@%p3 exit;\n" + load(4)),
             Contains("have exited"));
}

TEST_CASE("mma multiplies 16 by 16 with 16 by 8 and adds", "[ptx]") {
  for (const bool bf16 : {true, false}) {
    const Matrix a(16, 16, 1), b(16, 8, 2), c(16, 8, 3);
    // Lane l has, of A, rows l / 4 and 8 more, columns 2 (l % 4) and 8 more; of B, rows as A's
    // columns and column l / 4; of C, rows as A's and columns 2 (l % 4).
    AsyncRun run;
    run.in.resize(32 * 40);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      const int rows[] = {g, g + 8, g, g + 8}, columns[] = {t, t, t + 8, t + 8};
      uint32_t words[10];
      for (int i = 0; i < 4; ++i) {
        words[i] = Small(a.at(rows[i], columns[i]), bf16) |
                   uint32_t{Small(a.at(rows[i], columns[i] + 1), bf16)} << 16;
        words[6 + i] = std::bit_cast<uint32_t>(c.at(g + i / 2 * 8, t + i % 2));
      }
      for (int i = 0; i < 2; ++i) {
        words[4 + i] =
            Small(b.at(t + 8 * i, g), bf16) | uint32_t{Small(b.at(t + 8 * i + 1, g), bf16)} << 16;
      }
      std::memcpy(run.in.data() + lane * 40, words, 40);
    }
    std::string body =
        "mul.lo.s32 %r5, %r1, 40;\ncvt.u64.u32 %rd6, %r5;\nadd.s64 %rd7, %rd1, %rd6;\n";
    for (int i = 0; i < 6; ++i) {
      body +=
          "ld.global.u32 %r" + std::to_string(20 + i) + ", [%rd7+" + std::to_string(4 * i) + "];\n";
    }
    for (int i = 0; i < 4; ++i) {
      body += "ld.global.f32 %f" + std::to_string(10 + i) + ", [%rd7+" +
              std::to_string(24 + 4 * i) + "];\n";
    }
    const std::string type = bf16 ? "bf16.bf16" : "f16.f16";
    body += "mma.sync.aligned.m16n8k16.row.col.f32." + type +
            ".f32 {%f0,%f1,%f2,%f3}, {%r20,%r21,%r22,%r23}, {%r24,%r25}, {%f10,%f11,%f12,%f13};\n";
    REQUIRE(run.Run(body + StoreAll("%f", 4), true).ok());
    CHECK(run.counts.matrix_multiplies == 2048);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = c.at(row, column);
        for (int k = 0; k < 16; ++k) sum += a.at(row, k) * b.at(k, column);
        CHECK(run.Out<float>(static_cast<size_t>(4 * lane + i)) == sum);
      }
    }
  }
}

TEST_CASE("mma multiplies subnormal, infinite and signed small floats", "[ptx]") {
  // Lane 0's A(0, 0) times B(0, 0); all else is zero.
  const auto product = [](uint32_t a, uint32_t b, const char* type) {
    AsyncRun run;
    const std::string body =
        "mov.u32 %r20, 0;\nmov.u32 %r24, 0;\nmov.u32 %r25, 0;\nmov.f32 %f10, 0f00000000;\n"
        "setp.eq.u32 %p3, %r1, 0;\n@%p3 mov.u32 %r24, " +
        std::to_string(a) + ";\n@%p3 mov.u32 %r25, " + std::to_string(b) +
        ";\nmma.sync.aligned.m16n8k16.row.col.f32." + type +
        ".f32 {%f0,%f1,%f2,%f3}, {%r24,%r20,%r20,%r20}, {%r25,%r20}, {%f10,%f10,%f10,%f10};\n";
    REQUIRE(run.Run(body + StoreAll("%f", 4), true).ok());
    return run.Out<float>(0);
  };
  CHECK(product(0x0001, 0x3C00, "f16.f16") == 0x1p-24f);
  CHECK(product(0x83FF, 0x4000, "f16.f16") == -2 * 1023 * 0x1p-24f);
  CHECK(product(0x7BFF, 0x3C00, "f16.f16") == 65504);
  CHECK(product(0xFC00, 0x3C00, "f16.f16") == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(product(0x7E00, 0x3C00, "f16.f16")));
  CHECK(product(0xC049, 0x3F80, "bf16.bf16") == -3.140625f);
}

}  // namespace
}  // namespace heddle::ptx
