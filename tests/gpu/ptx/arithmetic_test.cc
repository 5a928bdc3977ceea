// Values are from the ISA's text and from hand arithmetic.
#include <algorithm>
#include <bit>
#include <cmath>

#include "catch2/catch.hpp"
#include "tests/gpu/ptx/testing.h"

namespace heddle::ptx {
namespace {

// The value that one thread stores from %r2 after `body`.
uint32_t Result(const std::string& body) {
  std::vector<uint32_t> memory(1);
  const absl::Status status =
      test::RunBody(body + "\nst.global.u32 [%rd1], %r2;", memory, {{1, 1, 1}, {1, 1, 1}, 0});
  INFO(body);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return memory[0];
}

// The same of %f2.
float Float(const std::string& body) {
  return std::bit_cast<float>(Result(body + "\nmov.b32 %r2, %f2;"));
}

TEST_CASE("Integers wrap, and divide by nothing as the ISA says", "[ptx]") {
  CHECK(Result("mov.u32 %r1, 0x7FFFFFFF;\nadd.s32 %r2, %r1, 1;") == 0x80000000);
  CHECK(Result("mov.u32 %r1, 70000;\nmul.lo.s32 %r2, %r1, %r1;") == 605032704u);
  CHECK(Result("mov.u32 %r1, -7;\ndiv.s32 %r2, %r1, 2;") == static_cast<uint32_t>(-3));
  CHECK(Result("mov.u32 %r1, -7;\nrem.s32 %r2, %r1, 2;") == static_cast<uint32_t>(-1));
  CHECK(Result("mov.u32 %r1, 0x80000000;\ndiv.s32 %r2, %r1, -1;") == 0x80000000);
  CHECK(Result("mov.u32 %r1, 100000;\nmul.wide.u32 %rd2, %r1, 100000;\nshr.u64 %rd2, %rd2, 32;\n"
               "cvt.u32.u64 %r2, %rd2;") == 2);
  CHECK(Result("mov.u32 %r1, -5;\nshr.s32 %r2, %r1, 40;") == 0xFFFFFFFF);
  CHECK(Result("mov.u32 %r1, 5;\nshl.b32 %r2, %r1, 32;") == 0);
}

TEST_CASE("Bits are inserted, permuted and counted", "[ptx]") {
  CHECK(Result("mov.u32 %r1, 0xAB;\nmov.u32 %r3, 0x11111111;\nbfi.b32 %r2, %r1, %r3, 8, 8;") ==
        0x1111AB11);
  CHECK(Result("mov.u32 %r1, 0x33221100;\nmov.u32 %r3, 0x77665544;\n"
               "prmt.b32 %r2, %r1, %r3, 0x7250;") == 0x77225500);
  CHECK(Result("mov.u32 %r1, 0x80;\nprmt.b32 %r2, %r1, %r1, 0x8888;") == 0xFFFFFFFF);
  CHECK(Result("mov.u32 %r1, 0xF0F0;\npopc.b32 %r2, %r1;") == 8);
  CHECK(Result("mov.u64 %rd2, 1;\nclz.b64 %r2, %rd2;") == 63);
  // (a & b) ^ c
  CHECK(Result("mov.u32 %r1, 12;\nmov.u32 %r3, 10;\nmov.u32 %r4, 3;\n"
               "lop3.b32 %r2, %r1, %r3, %r4, 0x6A;") == 11);
}

TEST_CASE("Floats compare with NaN as ordered or unordered", "[ptx]") {
  const std::string load = "mov.f32 %f1, 0f7FC00000;\nmov.f32 %f3, 0f3F800000;\n";
  const auto compare = [&](const std::string& name) {
    return Result(load + "setp." + name + ".f32 %p1, %f1, %f3;\nselp.u32 %r2, 1, 0, %p1;");
  };
  CHECK(compare("lt") == 0);
  CHECK(compare("ne") == 0);
  CHECK(compare("ltu") == 1);
  CHECK(compare("neu") == 1);
  CHECK(compare("geu") == 1);
  CHECK(Float(load + "max.f32 %f2, %f1, %f3;") == 1);
  CHECK(Float("mov.f32 %f1, 0f80000000;\nmov.f32 %f3, 0f00000000;\nmin.f32 %f2, %f3, %f1;\n"
              "rcp.rn.f32 %f2, %f2;") == -INFINITY);
}

TEST_CASE("Fused products round once", "[ptx]") {
  // (1 + 2^-23)^2 - 1 = 2^-22 + 2^-46, of which a product rounded before loses the last.
  CHECK(Float("mov.f32 %f1, 0f3F800001;\nmov.f32 %f3, 0fBF800000;\n"
              "fma.rn.f32 %f2, %f1, %f1, %f3;") == std::ldexp(1.0f, -22) + std::ldexp(1.0f, -46));
  // 1 + 2^-30, down and to nearest; and -1 - 2^-30, down.
  CHECK(Float("mov.f32 %f1, 0f3F800000;\nmov.f32 %f3, 0f30800000;\n"
              "fma.rm.f32 %f2, %f1, %f1, %f3;") == 1.0f);
  CHECK(Float("mov.f32 %f1, 0f3F800000;\nmov.f32 %f3, 0fB0800000;\nmov.f32 %f4, 0fBF800000;\n"
              "fma.rm.f32 %f2, %f1, %f4, %f3;") == -1.00000011920928955f);
  // BF16: 1.0078125 * 1.0078125 - 1.015625 = 2^-14 exactly; halves do not mix.
  CHECK(Result("mov.b32 %r1, 0x40003F81;\nmov.b32 %r3, 0x40003F81;\nmov.b32 %r4, 0xC080BF82;\n"
               "fma.rn.bf16x2 %r2, %r1, %r3, %r4;") == 0x00003880);
}

TEST_CASE("Conversions round and saturate", "[ptx]") {
  const auto of_float = [](const std::string& bits, const std::string& name) {
    return static_cast<int32_t>(Result("mov.f32 %f1, " + bits + ";\n" + name + " %r2, %f1;"));
  };
  CHECK(of_float("0f40200000", "cvt.rni.s32.f32") == 2);  // 2.5
  CHECK(of_float("0f40600000", "cvt.rni.s32.f32") == 4);  // 3.5
  CHECK(of_float("0fC0600000", "cvt.rzi.s32.f32") == -3);
  CHECK(of_float("0f7F800000", "cvt.rzi.s32.f32") == INT32_MAX);
  CHECK(of_float("0fFF800000", "cvt.rzi.s32.f32") == INT32_MIN);
  CHECK(of_float("0f7FC00000", "cvt.rzi.s32.f32") == 0);
  CHECK(of_float("0fBF800000", "cvt.rzi.u32.f32") == 0);
  CHECK(Float("mov.f32 %f1, 0f40000000;\ncvt.sat.f32.f32 %f2, %f1;") == 1);
  CHECK(Result("mov.u16 %rs1, 0x00FF;\ncvt.s16.s8 %rs2, %rs1;\ncvt.u32.u16 %r2, %rs2;") == 0xFFFF);
  CHECK(Result("mov.u32 %r1, -1;\ncvt.s64.s32 %rd2, %r1;\nshr.u64 %rd2, %rd2, 48;\n"
               "cvt.u32.u64 %r2, %rd2;") == 0xFFFF);
  // 1.0 and -2.0: the first is the high half. 1 + 2^-8 is a tie, and goes to the even 1.
  CHECK(Result("mov.f32 %f1, 0f3F800000;\nmov.f32 %f3, 0fC0000000;\n"
               "cvt.rn.bf16x2.f32 %r2, %f1, %f3;") == 0x3F80C000);
  CHECK(Result("mov.f32 %f1, 0f3F808000;\nmov.f32 %f3, 0f3F818000;\n"
               "cvt.rn.bf16x2.f32 %r2, %f1, %f3;") == 0x3F803F82);
  CHECK(Result("mov.f32 %f1, 0f3F800000;\nmov.f32 %f3, 0f477FE000;\n"  // 65504
               "cvt.rn.f16x2.f32 %r2, %f1, %f3;") == 0x3C007BFF);
  // E4M3: 448 is 0x7E, beyond it too; 1 is 0x38; 2^-9 the least; 17 a tie between 16 and 18.
  const auto e4m3 = [](const std::string& high, const std::string& low) {
    return Result("mov.f32 %f1, " + high + ";\nmov.f32 %f3, " + low +
                  ";\ncvt.rn.satfinite.e4m3x2.f32 %rs1, %f1, %f3;\ncvt.u32.u16 %r2, %rs1;");
  };
  CHECK(e4m3("0f447A0000", "0fC3E00000") == 0x7EFE);
  CHECK(e4m3("0f3F800000", "0f3B000000") == 0x3801);
  CHECK(e4m3("0f41880000", "0f41980000") == 0x585A);  // 17 to 16, 19 to 20
  CHECK(Result("mov.b16 %rs1, 0x3801;\ncvt.rn.f16x2.e4m3x2 %r2, %rs1;") == 0x3C001800);
}

TEST_CASE("Narrow loads extend, vectors and packs keep their order", "[ptx]") {
  std::vector<uint32_t> memory = {0x80FF7F01, 0, 0, 0};
  REQUIRE(test::RunBody("ld.global.s8 %rs1, [%rd1+2];\ncvt.s32.s16 %r1, %rs1;\n"
                        "ld.global.u8 %rs2, [%rd1+3];\ncvt.u32.u16 %r2, %rs2;\n"
                        "ld.global.v2.u16 {%rs3, %rs4}, [%rd1];\nmov.b32 %r3, {%rs4, %rs3};\n"
                        "st.global.v2.u32 [%rd1+8], {%r2, %r3};\nst.global.u32 [%rd1+4], %r1;",
                        memory, {{1, 1, 1}, {1, 1, 1}, 0})
              .ok());
  CHECK(memory[1] == 0xFFFFFFFF);
  CHECK(memory[2] == 0x80);
  CHECK(memory[3] == 0x7F0180FF);
}

TEST_CASE("Variables have their initial values, windows their own addresses", "[ptx]") {
  std::vector<uint32_t> memory(2);
  REQUIRE(test::RunBody(".local .align 8 .b8 depot[16];\nmov.u64 %rd2, depot;\n"
                        "cvta.local.u64 %rd3, %rd2;\nmov.u32 %r1, 5;\nst.u32 [%rd3+4], %r1;\n"
                        "ld.local.u32 %r2, [%rd2+4];\nst.global.u32 [%rd1], %r2;\n"
                        "mov.u64 %rd4, table;\nld.global.u32 %r3, [%rd4+4];\n"
                        "st.global.u32 [%rd1+4], %r3;",
                        memory, {{1, 1, 1}, {1, 1, 1}, 0},
                        ".global .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 1, 0, 0};")
              .ok());
  CHECK(memory[0] == 5);
  CHECK(memory[1] == 258);
}

TEST_CASE("Additions by several lanes to one word all count", "[ptx]") {
  std::vector<uint32_t> memory(33);
  REQUIRE(test::RunBody(std::string(test::kOwnWord) +
                            "atom.global.add.u32 %r2, [%rd1+128], 3;\nst.global.u32 [%rd2], %r2;",
                        memory)
              .ok());
  CHECK(memory[32] == 96);
  std::sort(memory.begin(), memory.end());
  CHECK(memory[31] == 93);
}

}  // namespace
}  // namespace heddle::ptx
