#include <algorithm>
#include <iterator>
#include <numeric>

#include "catch2/catch.hpp"
#include "tests/gpu/ptx/testing.h"

namespace heddle::ptx {
namespace {

using Catch::Contains;
using test::KernelText;
using test::kOwnWord;
using test::RunBody;

std::vector<uint32_t> Words(size_t n) { return std::vector<uint32_t>(n); }

TEST_CASE("Lanes that branched apart come together again", "[ptx]") {
  auto memory = Words(32);
  // Even lanes add 1, odd ones 2, all of them 10.
  REQUIRE(RunBody(std::string(kOwnWord) +
                      "and.b32 %r2, %r1, 1;\nsetp.eq.s32 %p1, %r2, 0;\nmov.u32 %r3, 0;\n"
                      "@%p1 bra EVEN;\nadd.s32 %r3, %r3, 2;\nbra.uni JOIN;\nEVEN:\n"
                      "add.s32 %r3, %r3, 1;\nJOIN:\nshfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;\n"
                      "add.s32 %r3, %r3, 10;\nadd.s32 %r3, %r3, %r4;\nst.global.u32 [%rd2], %r3;",
                  memory)
              .ok());
  CHECK(memory == std::vector<uint32_t>(32, 13));
}

TEST_CASE("Lanes leave a loop one after the other", "[ptx]") {
  auto memory = Words(32);
  REQUIRE(RunBody(std::string(kOwnWord) +
                      "mov.u32 %r2, 0;\nmov.u32 %r3, 0;\nLOOP:\nadd.s32 %r3, %r3, %r2;\n"
                      "add.s32 %r2, %r2, 1;\nsetp.le.s32 %p1, %r2, %r1;\n@%p1 bra LOOP;\n"
                      "st.global.u32 [%rd2], %r3;",
                  memory)
              .ok());
  for (uint32_t lane = 0; lane < 32; ++lane) CHECK(memory[lane] == lane * (lane + 1) / 2);
}

TEST_CASE("Warps meet at a barrier and see what the others stored", "[ptx]") {
  auto memory = Words(96);
  REQUIRE(RunBody(std::string(kOwnWord) +
                      ".shared .align 4 .b8 box[384];\nmov.u32 %r2, box;\nshl.b32 %r3, %r1, 2;\n"
                      "add.s32 %r4, %r2, %r3;\nst.shared.u32 [%r4], %r1;\nbar.sync 0;\n"
                      "sub.s32 %r5, %r2, %r3;\nld.shared.u32 %r6, [%r5+380];\n"
                      "st.global.u32 [%rd2], %r6;",
                  memory, {{1, 1, 1}, {96, 1, 1}, 0})
              .ok());
  for (uint32_t i = 0; i < 96; ++i) CHECK(memory[i] == 95 - i);
}

TEST_CASE("A barrier that a warp never reaches is reported with places", "[ptx]") {
  auto memory = Words(64);
  const absl::Status status = RunBody(
      "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 32;\n@%p1 bra.uni MEET;\nbar.sync 2, 64;\n"
      "MEET:\nbar.sync 1, 64;",
      memory, {{1, 1, 1}, {64, 1, 1}, 0});
  CHECK(absl::IsAborted(status));
  CHECK_THAT(std::string(status.message()), Contains("nobody can go on"));
  CHECK_THAT(std::string(status.message()), Contains("bar.sync 2, 64"));
}

TEST_CASE("Blocks and threads know their places", "[ptx]") {
  auto memory = Words(24);
  REQUIRE(RunBody("mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\n"
                  "mov.u32 %r7, %ctaid.y;\nmov.u32 %r8, %nctaid.x;\n"
                  "mad.lo.s32 %r2, %r7, %r8, %r2;\nmad.lo.s32 %r4, %r2, %r3, %r1;\n"
                  "mul.wide.u32 %rd3, %r4, 4;\nadd.s64 %rd2, %rd1, %rd3;\n"
                  "st.global.u32 [%rd2], %r4;",
                  memory, {{3, 2, 1}, {4, 1, 1}, 0})
              .ok());
  std::vector<uint32_t> expected(24);
  std::iota(expected.begin(), expected.end(), 0u);
  CHECK(memory == expected);
}

TEST_CASE("Memory that is not there, or not aligned, is a fault that says where", "[ptx]") {
  auto memory = Words(32);
  const auto message = [&](const std::string& body) {
    const absl::Status status = RunBody(body, memory, {{1, 1, 1}, {32, 1, 1}, 64});
    CHECK(absl::IsAborted(status));
    return std::string(status.message());
  };
  CHECK_THAT(message("ld.global.u32 %r1, [%rd1+128];"), Contains("not allocated"));
  CHECK_THAT(message("ld.global.u32 %r1, [%rd1+-4];"), Contains("not allocated"));
  CHECK_THAT(message("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1+8];"), Contains("not aligned"));
  CHECK_THAT(message("mov.u32 %r1, 1088;\nld.shared.u32 %r2, [%r1];"), Contains("64 bytes"));
  CHECK_THAT(message("mov.u32 %r1, 0;\nld.shared.u32 %r2, [%r1];"), Contains("shared memory at 0"));
  CHECK_THAT(message("mov.u32 %r1, 1026;\nst.shared.u32 [%r1], %r1;"), Contains("not aligned"));
  CHECK_THAT(message(std::string(kOwnWord) + "setp.eq.u32 %p1, %r1, 7;\n@%p1 trap;"),
             Contains("trap"));
  CHECK_THAT(message(std::string(kOwnWord) +
                     "setp.eq.u32 %p1, %r1, 7;\n@%p1 ld.global.u32 %r2, [%rd1+512];"),
             Contains("thread 7, line"));
}

TEST_CASE("A shuffle that reads a lane which takes no part is a fault", "[ptx]") {
  auto memory = Words(32);
  const absl::Status status =
      RunBody(std::string(kOwnWord) +
                  "setp.lt.u32 %p1, %r1, 16;\n@%p1 shfl.sync.idx.b32 %r2, %r1, 20, 31, 0xFFFF;",
              memory);
  CHECK_THAT(std::string(status.message()), Contains("lane 20, which takes no part"));
}

TEST_CASE("Votes and reductions over a warp", "[ptx]") {
  auto memory = Words(96);
  REQUIRE(RunBody(std::string(kOwnWord) +
                      "setp.gt.u32 %p1, %r1, 28;\nvote.sync.ballot.b32 %r2, %p1, -1;\n"
                      "st.global.u32 [%rd2], %r2;\nxor.b32 %r3, %r1, 21;\n"
                      "redux.sync.max.u32 %r4, %r3, -1;\nst.global.u32 [%rd2+128], %r4;\n"
                      "shfl.sync.up.b32 %r5|%p2, %r1, 3, 0, -1;\nst.global.u32 [%rd2+256], %r5;",
                  memory)
              .ok());
  CHECK(memory[5] == 0xE0000000);
  CHECK(memory[32 + 9] == 31);
  CHECK(memory[64 + 2] == 2);  // keeps its own
  CHECK(memory[64 + 31] == 28);
}

TEST_CASE("Launches that a device refuses are refused", "[ptx]") {
  auto memory = Words(32);
  CHECK(absl::IsInvalidArgument(RunBody("", memory, {{1, 1, 1}, {1025, 1, 1}, 0})));
  CHECK(absl::IsInvalidArgument(RunBody("", memory, {{1, 65536, 1}, {32, 1, 1}, 0})));
  CHECK(absl::IsInvalidArgument(RunBody("", memory, {{1, 1, 1}, {32, 1, 1}, kMaxSharedBytes + 1})));
}

TEST_CASE("What is not PTX of this machine is an error with its line", "[ptx]") {
  auto memory = Words(32);
  const auto error = [&](const std::string& body) {
    return std::string(RunBody(body, memory).message());
  };
  CHECK_THAT(error("frobnicate.u32 %r1, %r2;"), Contains("line 16") && Contains("frobnicate"));
  CHECK_THAT(error("add.s32 %r1, %rd1, 2;"), Contains("does not know"));
  CHECK_THAT(error("bra NOWHERE;"), Contains("NOWHERE"));
  CHECK_THAT(error("ld.global.u32 %r1, [%rd1+x];"), Contains("not understood"));
  for (const char* text : {".visible .entry k(", ".visible .entry k() {", ".reg .b32 %r<4>;", "}",
                           ".global .b8 x[99999999999];", "add.s32 %r1;"}) {
    CHECK_FALSE(ParseModule(text).ok());
  }
}

TEST_CASE("Counts tell scattered accesses from dense ones", "[ptx]") {
  auto memory = Words(1024);
  const auto counts = [&](const std::string& body) {
    Counts counted;
    REQUIRE(RunBody(std::string(kOwnWord) + body, memory, {{1, 1, 1}, {32, 1, 1}, 8192}, "", {},
                    &counted)
                .ok());
    return counted;
  };
  const Counts dense = counts("ld.global.u32 %r2, [%rd2];");
  CHECK(dense.global_requests == 1);
  CHECK(dense.global_sectors == 4);
  CHECK(dense.global_bytes == 128);
  const Counts scattered =
      counts("mul.wide.u32 %rd4, %r1, 128;\nadd.s64 %rd4, %rd1, %rd4;\nld.global.u32 %r2, [%rd4];");
  CHECK(scattered.global_sectors == 32);
  // One bank for all lanes; then each its own; then the same word for all.
  const std::string column = "shl.b32 %r3, %r1, 7;\nst.shared.u32 [%r3+1024], %r1;";
  CHECK(counts(column).shared_passes == 32);
  CHECK(counts(column).shared_least == 1);
  CHECK(counts("shl.b32 %r3, %r1, 2;\nst.shared.u32 [%r3+1024], %r1;").shared_passes == 1);
  CHECK(counts("mov.u32 %r3, 1024;\nld.shared.u32 %r4, [%r3];").shared_passes == 1);
}

TEST_CASE("Accesses are counted by instruction if asked for", "[ptx]") {
  auto memory = Words(1024);
  const std::string body = std::string(kOwnWord) +
                           "mov.u32 %r2, 0;\nAGAIN:\nshl.b32 %r3, %r1, 7;\n"
                           "st.shared.u32 [%r3+1024], %r1;\nld.global.u32 %r4, [%rd2];\n"
                           "add.u32 %r2, %r2, 1;\nsetp.lt.u32 %p1, %r2, 3;\n@%p1 bra AGAIN;";
  for (const bool by_instruction : {false, true}) {
    Counts counts;
    REQUIRE(RunBody(body, memory, {{2, 1, 1}, {32, 1, 1}, 8192}, "",
                    {.by_instruction = by_instruction}, &counts)
                .ok());
    CHECK(counts.shared_passes == 2 * 3 * 32);
    CHECK(counts.global_sectors == 2 * 3 * 4);
    std::vector<AccessCounts> counted;
    std::copy_if(counts.accesses.begin(), counts.accesses.end(), std::back_inserter(counted),
                 [](const AccessCounts& a) { return a.shared_requests + a.global_requests != 0; });
    REQUIRE(counted.size() == (by_instruction ? 2u : 0u));
    if (!by_instruction) continue;
    CHECK(counted[0].shared_requests == 6);
    CHECK(counted[0].shared_passes == 6 * 32);
    CHECK(counted[0].shared_least == 6);
    CHECK(counted[0].global_requests == 0);
    CHECK(counted[1].global_sectors == 6 * 4);
    CHECK(counted[1].global_bytes == 6 * 128);
    CHECK(counted[1].shared_passes == 0);
  }
}

// As nvcc writes it with -lineinfo.
TEST_CASE("Instructions know the lines of source that they came from", "[ptx]") {
  const std::string body =
      "add.s32 %r1, 1, 2;\n.loc 1 40 3\nadd.s32 %r1, %r1, 2;\n"
      ".loc 2 7 5, function_name $L__info_string0, inlined_at 1 40 3\n"
      ".loc 3 9 1, function_name $L__info_string1, inlined_at 2 7 5\nadd.s32 %r1, %r1, 3;\n"
      ".loc 1 41 3\nadd.s32 %r1, %r1, 4;\n"
      ".loc 2 7 5, function_name $L__info_string0, inlined_at 1 41 3\n"
      ".loc 3 9 1, function_name $L__info_string1, inlined_at 2 7 5\nadd.s32 %r1, %r1, 5;";
  const auto module = ParseModule(
      KernelText(body) + ".file 1 \"/a/b/kernel.cu\"\n.file 2 \"/a/part.cuh\"\n" +
      ".section .debug_str\n{\n$L__info_string0:\n.b8 95,90,0\n$L__info_string1:\n.b8 95,0\n}\n");
  REQUIRE(module.ok());
  std::vector<std::string> sources;
  for (const Instruction& i : module->kernels.begin()->second.code) {
    if (i.opcode != "add") continue;
    sources.push_back(i.source < 0 ? "" : module->sources.at(static_cast<size_t>(i.source)));
  }
  CHECK(sources == std::vector<std::string>{"", "kernel.cu:40", "?:9 < part.cuh:7 < kernel.cu:40",
                                            "kernel.cu:41", "?:9 < part.cuh:7 < kernel.cu:41"});
}

}  // namespace
}  // namespace heddle::ptx
