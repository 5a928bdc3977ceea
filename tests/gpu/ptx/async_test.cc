// Numbers come from the layouts of the PTX ISA and of the CUDA programming guide, worked out here
// by hand: a row y of a box that is copied with a 128-byte swizzle has its 16-byte piece x at piece
// x ^ (y % 8), with 64 bytes at x ^ (y / 2 % 4), with 32 bytes at x ^ (y / 4 % 2).
#include "catch2/catch.hpp"
#include "tests/gpu/ptx/async_testing.h"

namespace heddle::ptx {
namespace {

using Catch::Contains;
using test::AsyncRun;
using test::CopyIn;
using test::Failure;
using test::InitBarrier;
using test::Wait;

// Byte i is i mod 251, so that neighbours and rows differ.
std::vector<uint8_t> Bytes(size_t n) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i % 251);
  return bytes;
}

// Stores `words` of shared memory from sm + `from` on to `out`, by the first 32 threads.
std::string StoreShared(int from, int words) {
  return "setp.lt.u32 %p3, %r1, 32;\nmov.u32 %r20, %r1;\n@!%p3 bra STORED;\nSTORE:\n"
         "setp.ge.u32 %p3, %r20, " +
         std::to_string(words) +
         ";\n@%p3 bra STORED;\nshl.b32 %r21, %r20, 2;\nadd.s32 %r22, %r2, %r21;\n"
         "ld.shared.u32 %r23, [%r22+" +
         std::to_string(from) +
         "];\ncvt.u64.u32 %rd20, %r21;\nadd.s64 %rd21, %rd2, %rd20;\n"
         "st.global.u32 [%rd21], %r23;\nadd.s32 %r20, %r20, 32;\nbra STORE;\nSTORED:\n";
}

const char* const kCopyOwn =
    "shl.b32 %r3, %r1, 4;\nadd.s32 %r4, %r2, %r3;\ncvt.u64.u32 %rd6, %r3;\n"
    "add.s64 %rd7, %rd1, %rd6;\nmin.u32 %r5, %r1, 16;\n"
    "cp.async.cg.shared.global [%r4], [%rd7], 16, %r5;\ncp.async.commit_group;\n";

TEST_CASE("cp.async copies as many bytes as it is told and zeroes the others", "[ptx]") {
  for (const bool late : {true, false}) {
    AsyncRun run{.in = Bytes(512)};
    REQUIRE(run.Run(std::string(kCopyOwn) + "cp.async.wait_group 0;\n" + StoreShared(0, 128), late)
                .ok());
    for (size_t i = 0; i < 512; ++i) {
      const size_t lane = i / 16;
      CHECK(run.out[i] == (i % 16 < lane ? run.in[i] : 0));
    }
    CHECK(run.counts.async_bytes == 15 * 16 / 2 + 16 * 16);
  }
}

TEST_CASE("cp.async that copies nothing does not touch its source", "[ptx]") {
  AsyncRun run{.in = Bytes(16)};
  const std::string copy =
      "mov.u64 %rd6, 4096;\nmov.u32 %r3, 0;\n"
      "cp.async.ca.shared.global [%r2], [%rd6], 4, %r3;\ncp.async.wait_all;\n";
  REQUIRE(run.Run(copy + StoreShared(0, 1), true).ok());
  CHECK(run.Out<uint32_t>(0) == 0);
}

TEST_CASE("wait_group leaves as many of the last groups under way", "[ptx]") {
  AsyncRun run{.in = Bytes(1024)};
  const std::string two = std::string(kCopyOwn) +
                          "cp.async.cg.shared.global [%r4+512], [%rd7+512], 16, 16;\n"
                          "cp.async.commit_group;\n";
  REQUIRE(run.Run(two + "cp.async.wait_group 1;\n" + StoreShared(0, 256), true).ok());
  CHECK(run.out[511] == run.in[511]);
  CHECK(run.out[512] == 0xFF);  // the machine's garbage: nothing has arrived
  REQUIRE(run.Run(two + "cp.async.wait_group 0;\n" + StoreShared(0, 256), true).ok());
  CHECK(run.out[512] == run.in[512]);
  REQUIRE(run.Run(two + "cp.async.wait_group 1;\n" + StoreShared(0, 256), false).ok());
  CHECK(run.out[512] == run.in[512]);
}

TEST_CASE("cp.async faults on what it may not read", "[ptx]") {
  AsyncRun run{.in = Bytes(64)};
  const auto copy = [](const std::string& from, int bytes) {
    return "mov.u32 %r3, " + std::to_string(bytes) + ";\ncp.async.cg.shared.global [%r2], [%rd1+" +
           from + "], 16, %r3;\n";
  };
  CHECK_THAT(Failure(run, copy("4", 16)), Contains("not aligned to 16"));
  CHECK_THAT(Failure(run, copy("0", 17)), Contains("source size of 17"));
  CHECK_THAT(Failure(run, copy("64", 16)), Contains("not allocated"));
  CHECK_THAT(Failure(run, "cp.async.ca.shared.global [%r2+2], [%rd1], 4;\n"),
             Contains("not aligned to 4"));
}

TEST_CASE("A barrier's phase ends when all have arrived, and the next one begins", "[ptx]") {
  AsyncRun run{.threads = 64};
  const std::string arrive = "mbarrier.arrive.shared::cta.b64 _, [%r2];\n";
  // Warp 1 arrives only in the second phase's turn of warp 0: nothing else lets either go on.
  REQUIRE(run.Run(InitBarrier(64) + arrive + Wait(0, "A") + arrive + Wait(1, "B") + arrive +
                      Wait(0, "C") + "st.global.u32 [%rd2], %r1;\n",
                  true)
              .ok());
  CHECK_THAT(Failure(run, InitBarrier(65) + arrive + Wait(0)), Contains("nobody can go on"));
  CHECK_THAT(Failure(run, InitBarrier(64) + arrive + Wait(0, "A") + Wait(1, "B")),
             Contains("nobody can go on"));
}

TEST_CASE("A state of arrival tells the phase that it was of", "[ptx]") {
  AsyncRun run;
  const std::string once =
      "setp.eq.u32 %p4, %r1, 0;\n@%p4 mbarrier.arrive.shared::cta.b64 %rd7, [%r2];\n"
      "@%p4 mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd7;\n"
      "selp.u32 %r3, 1, 0, %p2;\n@%p4 st.global.u32 [%rd2], %r3;\n";
  REQUIRE(run.Run(InitBarrier(1) + once, true).ok());
  CHECK(run.Out<uint32_t>(0) == 1);
  REQUIRE(run.Run(InitBarrier(2) + once, true).ok());
  CHECK(run.Out<uint32_t>(0) == 0);
  REQUIRE(run.Run(InitBarrier(2) + "mov.u32 %r4, 2;\n@%p1 mbarrier.arrive.shared::cta.b64 %rd7, "
                                   "[%r2], %r4;\n@%p1 mbarrier.test_wait.shared::cta.b64 %p2, "
                                   "[%r2], %rd7;\nselp.u32 %r3, 1, 0, %p2;\n"
                                   "@%p1 st.global.u32 [%rd2], %r3;\n",
                  true)
              .ok());
  CHECK(run.Out<uint32_t>(0) == 1);
}

TEST_CASE("A misused barrier is a fault", "[ptx]") {
  AsyncRun run;
  const std::string arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];\n";
  CHECK_THAT(Failure(run, "mbarrier.arrive.shared::cta.b64 _, [%r2];\n"),
             Contains("no mbarrier was initialised"));
  CHECK_THAT(Failure(run, InitBarrier(1) + "st.shared.u32 [%r2], %r1;\n" + arrive),
             Contains("was overwritten"));
  CHECK_THAT(Failure(run, InitBarrier(1) + "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\n"),
             Contains("valid mbarrier"));
  CHECK_THAT(Failure(run, InitBarrier(1) + "@%p1 mbarrier.inval.shared::cta.b64 [%r2];\n" + arrive),
             Contains("no mbarrier was initialised"));
  CHECK_THAT(Failure(run, "mov.u32 %r3, 0;\nmbarrier.init.shared::cta.b64 [%r2], %r3;\n"),
             Contains("count of 0"));
  CHECK_THAT(
      Failure(run, InitBarrier(1) +
                       "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;\n" + arrive),
      Contains("0 arrivals pending"));
  CHECK_THAT(
      Failure(run, InitBarrier(1) + "@%p1 mbarrier.arrive.shared::cta.b64 %rd7, [%r2];\n" + arrive +
                       "@%p1 mbarrier.test_wait.shared::cta.b64 %p2, [%r2], %rd7;\n"),
      Contains("not the state"));
  CHECK_THAT(Failure(run, "mbarrier.init.shared::cta.b64 [%r2+4], 1;\n"),
             Contains("not aligned to 8"));
}

TEST_CASE("A bulk copy is there when its barrier says so, and not before", "[ptx]") {
  const std::string copy = InitBarrier(1) + CopyIn(0, 64, 256);
  AsyncRun run{.in = Bytes(256)};
  for (const bool late : {true, false}) {
    REQUIRE(run.Run(copy + Wait(0) + StoreShared(64, 64), late).ok());
    CHECK(std::equal(run.in.begin(), run.in.end(), run.out.begin()));
    CHECK(run.counts.bulk_bytes == 256);
  }
  REQUIRE(run.Run(copy + StoreShared(64, 64) + Wait(0), true).ok());
  CHECK(run.out[0] == 0xFF);
}

TEST_CASE("More bytes expected than copied keep the phase open", "[ptx]") {
  AsyncRun run{.in = Bytes(256)};
  CHECK_THAT(Failure(run, InitBarrier(1) +
                              "@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 16;\n" +
                              CopyIn(0, 64, 256) + Wait(0)),
             Contains("nobody can go on"));
}

// A matrix of 40 columns and 24 rows of 16 bits within rows of 96 bytes, copied by boxes.
constexpr uint64_t kSizes[2] = {40, 24};
constexpr uint64_t kStrides[1] = {96};
constexpr uint32_t kOnes[2] = {1, 1};

TiledMapArguments Map(const uint32_t* box, MapSwizzle swizzle) {
  return {.data_type = 9,  // BFLOAT16
          .rank = 2,
          .address = 0,
          .sizes = kSizes,
          .strides = kStrides,
          .box = box,
          .element_strides = kOnes,
          .interleave = 0,
          .swizzle = static_cast<int>(swizzle),
          .l2_promotion = 0,
          .fill = 0};
}

std::string CopyBox(int x, int y, int to, int bytes, const std::string& map = "%rd3") {
  return "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], " + std::to_string(bytes) +
         ";\nmov.u32 %r10, " + std::to_string(x) + ";\nmov.u32 %r11, " + std::to_string(y) +
         ";\nadd.s32 %r12, %r2, " + std::to_string(to) +
         ";\n@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
         "[%r12], [" +
         map + ", {%r10, %r11}], [%r2];\n";
}

// The matrix's element at column x and row y, beyond its edges too.
uint16_t At(const std::vector<uint8_t>& in, int x, int y) {
  if (x < 0 || y < 0 || x >= 40 || y >= 24) return 0;
  uint16_t value;
  std::memcpy(&value, in.data() + y * 96 + x * 2, 2);
  return value;
}

TEST_CASE("A tensor copy swizzles by shared memory's addresses and zeroes what is outside",
          "[ptx]") {
  struct Case {
    MapSwizzle swizzle;
    uint32_t inner;  // elements
    int rows_of_128, pieces;
  };
  const Case cases[] = {{MapSwizzle::kNone, 24, 1, 1},
                        {MapSwizzle::k32Bytes, 16, 4, 2},
                        {MapSwizzle::k64Bytes, 32, 2, 4},
                        {MapSwizzle::k128Bytes, 64, 1, 8}};
  const int corners[][2] = {{0, 0}, {8, 3}, {-8, -2}, {16, 16}, {-100, 0}, {0, 30}};
  for (const Case& c : cases) {
    const uint32_t box[2] = {c.inner, 16};
    const int row_bytes = static_cast<int>(c.inner) * 2;
    for (const auto& [x, y] : corners) {
      for (const int to : {1024, 1152}) {
        AsyncRun run{.in = Bytes(24 * 96), .maps = {Map(box, c.swizzle)}};
        INFO("swizzle " << static_cast<int>(c.swizzle) << " at " << x << ", " << y << " to " << to);
        REQUIRE(run.Run(InitBarrier(1) + CopyBox(x, y, to, 16 * row_bytes) + Wait(0) +
                            StoreShared(to, 4 * row_bytes),
                        true)
                    .ok());
        for (int row = 0; row < 16; ++row) {
          // The row of 128 bytes that it lies in, counted from a multiple of 1024 on.
          const int line = to % 1024 / 128 + row / c.rows_of_128;
          for (int i = 0; i < static_cast<int>(c.inner); ++i) {
            const int piece = i / 8 ^ (c.pieces > 1 ? line % c.pieces : 0);
            const int at = row * row_bytes / 2 + piece * 8 + i % 8;
            REQUIRE(run.Out<uint16_t>(static_cast<size_t>(at)) == At(run.in, x + i, y + row));
          }
        }
      }
    }
  }
}

TEST_CASE("A misused tensor copy is a fault", "[ptx]") {
  const uint32_t box[2] = {32, 16};
  AsyncRun run{.in = Bytes(24 * 96), .maps = {Map(box, MapSwizzle::k64Bytes)}};
  const std::string init = InitBarrier(1);
  CHECK_THAT(Failure(run, init + CopyBox(0, 0, 1088, 1024)), Contains("not aligned to 128"));
  CHECK_THAT(Failure(run, init + "add.s64 %rd3, %rd3, 32;\n" + CopyBox(0, 0, 1024, 1024)),
             Contains("aligned to 64"));
  CHECK_THAT(Failure(run, init + CopyBox(0, 0, 1024, 1024, "%rd4")), Contains("no tensor map"));
  CHECK_THAT(Failure(run, init + CopyBox(0, 0, (32 << 10) - 128, 1024)), Contains("not the block"));
  CHECK_THAT(Failure(run, init + CopyBox(0, 0, 1024, 1024)), Contains("block ends before"));
  run.in.resize(24 * 96 - 96);
  CHECK_THAT(Failure(run, init + CopyBox(0, 10, 1024, 1024) + Wait(0)),
             Contains("not allocated, at row 13"));
}

TEST_CASE("Stores that no proxy fence orders before a bulk copy are a fault", "[ptx]") {
  AsyncRun run{.in = Bytes(256), .threads = 64};
  // Thread 40's, of warp 1.
  const std::string store = "setp.eq.u32 %p5, %r1, 40;\n@%p5 st.shared.u32 [%r2+128], %r1;\n";
  const std::string fence = "fence.proxy.async.shared::cta;\n";
  const std::string copy = "bar.sync 0;\n" + CopyIn(0, 64, 256) + Wait(0);
  CHECK_THAT(Failure(run, InitBarrier(1) + store + copy), Contains("store of warp 1"));
  CHECK(run.Run(InitBarrier(1) + store + fence + copy, true).ok());
  CHECK_THAT(Failure(run, InitBarrier(1) + store + "@%p1 " + fence + copy),
             Contains("store of warp 1"));
  // One that comes while the copy is under way.
  CHECK_THAT(Failure(run, InitBarrier(1) + CopyIn(0, 64, 256) + "bar.sync 0;\n" + store +
                              "bar.sync 0;\n" + Wait(0)),
             Contains("store of warp 1"));
  const std::string bare =
      "setp.eq.u32 %p1, %r1, 0;\n"
      "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n";
  CHECK_THAT(Failure(run, bare + CopyIn(0, 64, 256)), Contains("no fence.mbarrier_init"));
}

TEST_CASE("cp.async writes by the generic proxy", "[ptx]") {
  AsyncRun run{.in = Bytes(1024)};
  const std::string copy = std::string(kCopyOwn) + "cp.async.wait_group 0;\n";
  const std::string init =
      "add.s32 %r2, %r2, 1024;\n" + InitBarrier(1) + "add.s32 %r2, %r2, -1024;\n";
  const std::string bulk =
      "bar.sync 0;\nadd.s32 %r2, %r2, 1024;\n" + CopyIn(0, -1024, 256) + Wait(0);
  CHECK_THAT(Failure(run, init + copy + bulk), Contains("store of warp 0"));
  CHECK(run.Run(init + copy + "fence.proxy.async;\n" + bulk, true).ok());
}

TEST_CASE("Prefetches look at what they are told to", "[ptx]") {
  const uint32_t box[2] = {32, 16};
  AsyncRun run{.in = Bytes(24 * 96), .maps = {Map(box, MapSwizzle::k64Bytes)}};
  CHECK(run.Run("prefetch.tensormap [%rd3];\nprefetch.global.L2 [%rd1];\n"
                "cp.async.bulk.prefetch.L2.global [%rd1], 256;\n",
                true)
            .ok());
  CHECK_THAT(Failure(run, "prefetch.tensormap [%rd4];\n"), Contains("no tensor map"));
  CHECK_THAT(Failure(run, "cp.async.bulk.prefetch.L2.global [%rd1+8], 256;\n"),
             Contains("aligned to 16"));
  CHECK_THAT(Failure(run, "cp.async.bulk.prefetch.L2.global [%rd1], 2400;\n"),
             Contains("not allocated"));
}

TEST_CASE("Hints have no effect, and have to be in their range", "[ptx]") {
  AsyncRun run;
  CHECK(run.Run("setmaxnreg.dec.sync.aligned.u32 24;\nsetmaxnreg.inc.sync.aligned.u32 256;\n"
                "griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n",
                true)
            .ok());
  CHECK(absl::IsUnimplemented(run.Run("setmaxnreg.dec.sync.aligned.u32 28;\n", true)));
  CHECK(absl::IsUnimplemented(run.Run("setmaxnreg.dec.sync.aligned.u32 16;\n", true)));
  CHECK(absl::IsUnimplemented(run.Run("cp.async.cg.shared.global [%r2], [%rd1], 8;\n", true)));
  CHECK(absl::IsUnimplemented(run.Run("fence.proxy.alias;\n", true)));
}

TEST_CASE("A tensor map is refused where the driver documents that it would be", "[ptx]") {
  alignas(64) uint8_t bytes[kMapBytes];
  const auto error = [&](auto change) {
    uint64_t sizes[2] = {64, 8};
    uint64_t strides[1] = {128};
    uint32_t box[2] = {64, 8}, steps[2] = {1, 1};
    TiledMapArguments map{.data_type = 6,
                          .rank = 2,
                          .address = 4096,
                          .sizes = sizes,
                          .strides = strides,
                          .box = box,
                          .element_strides = steps,
                          .interleave = 0,
                          .swizzle = 3,
                          .l2_promotion = 2,
                          .fill = 0};
    change(map, sizes, strides, box);
    std::string text;
    const bool encoded = EncodeTiledMap(map, bytes, &text);
    CHECK(encoded == text.empty());
    return text;
  };
  using M = TiledMapArguments&;
  using S = uint64_t*;
  using B = uint32_t*;
  CHECK(error([](M, S, S, B) {}).empty());
  CHECK_THAT(error([](M m, S, S, B) { m.address += 8; }), Contains("multiple of 16"));
  CHECK_THAT(error([](M m, S, S, B) { m.rank = 6; }), Contains("rank 6"));
  CHECK_THAT(error([](M m, S, S, B) { m.data_type = 99; }), Contains("data type"));
  CHECK_THAT(error([](M, S, S strides, B) { strides[0] = 136; }), Contains("stride 136"));
  CHECK_THAT(error([](M, S, S strides, B) { strides[0] = uint64_t{1} << 40; }),
             Contains("below 2^40"));
  CHECK_THAT(error([](M, S, S strides, B) { strides[0] = 112; }), Contains("less than"));
  CHECK_THAT(error([](M, S sizes, S, B) { sizes[1] = 0; }), Contains("size 0"));
  CHECK_THAT(error([](M, S, S, B box) { box[1] = 257; }), Contains("box size 257"));
  CHECK_THAT(error([](M, S, S, B box) { box[0] = 12; }), Contains("24 bytes are not multiples"));
  CHECK_THAT(error([](M m, S, S, B) { m.swizzle = 2; }), Contains("wider than the swizzle's 64"));
}

}  // namespace
}  // namespace heddle::ptx
