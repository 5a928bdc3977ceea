// The emulated machinery of sm_90a: it must find what it claims to find, and its products must be
// those of the PTX specification.
#include <functional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/cuda/primitives/primitives_hopper.cuh"
#include "kernels/cuda/runtime/stream.h"
#include "tests/emulate/emulator.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kTileBytes = 64 * 128;  // 64 rows of a line

std::vector<std::string> Findings(int threads, int shared_bytes,
                                  const std::function<void()>& body) {
  emulate::TakeFindings();
  emulate::Launch({1, 1, 1}, threads, shared_bytes, body);
  return emulate::TakeFindings();
}

bool Mentions(const std::vector<std::string>& findings, const std::string& text) {
  for (const std::string& finding : findings) {
    if (finding.find(text) != std::string::npos) return true;
  }
  return false;
}

// A matrix of [rows, 64] BF16 small integers in "device memory".
struct Source {
  explicit Source(int64_t rows) {
    for (int64_t i = 0; i < rows * 64; ++i) values.push_back(RoundTo(At(i / 64, i % 64), Type()));
    TiledMatrix matrix = {.data = values.data(), .rows = rows, .cols = 64, .box_rows = 64};
    CHECK(EncodeTensorMap(matrix, &map) == kSuccess);
  }
  using Type = BFloat16;
  static float At(int64_t r, int64_t c) { return static_cast<float>((r * 7 + c * 3) % 11 - 5); }
  std::vector<Type> values;
  TensorMap map;
};

struct Block {
  Shared<BFloat16> tile;
  Shared<int> word;
  BlockBarriers barriers;
  Block() : Block(SharedArena()) {}
  explicit Block(SharedArena arena)
      : tile(arena.Take<BFloat16>(64 * 64)),
        word(arena.Take<int>(4)),
        barriers(arena.Take<uint64_t>(2)) {}
  static constexpr int kBytes = kTileBytes + 32;
  void Init(int count) const {
    if (ThreadX() == 0) {
      BarrierInit(barriers, 0, count);
      BarrierInit(barriers, 1, count);
      BarriersInitialised();
    }
    SyncThreads();
  }
};

TEST_CASE("A barrier in shared memory hands values over, both ways", "[emulate][hopper]") {
  auto body = [](bool waits, bool returns) {
    return [waits, returns] {
      const Block block;
      block.Init(1);
      for (int round = 0; round < 3; ++round) {
        const uint32_t parity = round % 2;
        if (ThreadX() == 0) {
          if (returns) BarrierWait(block.barriers, 1, parity ^ 1);
          block.word.Set(0, round);
          BarrierArrive(block.barriers, 0);
        } else if (ThreadX() == 40) {
          if (waits) BarrierWait(block.barriers, 0, parity);
          const int found = block.word.Get(0);
          if (waits && returns) CHECK(found == round);
          if (returns) BarrierArrive(block.barriers, 1);
        }
      }
    };
  };
  for (auto order : {emulate::Order::kForward, emulate::Order::kBackward}) {
    emulate::SetOrder(order);
    CHECK(Findings(64, Block::kBytes, body(true, true)).empty());
    CHECK(Mentions(Findings(64, Block::kBytes, body(false, true)), "race"));
  }
  emulate::SetOrder(emulate::Order::kForward);
}

TEST_CASE("Several readers must all let go before a value is replaced", "[emulate][hopper]") {
  auto body = [](int arrivals) {
    return [arrivals] {
      const Block block;
      block.Init(arrivals);
      if (ThreadX() == 0) {
        block.word.Set(0, 1);
        NamedBarrierArrive(5, 128);  // 32 x 3 readers and this warp
        BarrierWait(block.barriers, 1, 0);
        block.word.Set(0, 2);
      } else if (ThreadX() < 32) {
        NamedBarrierArrive(5, 128);
      } else {
        NamedBarrierSync(5, 128);
        block.word.Get(0);
        SyncWarp();
        if (Lane() == 0 && WarpIndex() <= arrivals) BarrierArrive(block.barriers, 1);
      }
    };
  };
  CHECK(Findings(128, Block::kBytes, body(3)).empty());
  CHECK(Mentions(Findings(128, Block::kBytes, body(2)), "race"));
}

TEST_CASE("A barrier that nobody fills, and one left half full, are found", "[emulate][hopper]") {
  CHECK(Mentions(Findings(32, Block::kBytes,
                          [] {
                            const Block block;
                            block.Init(2);
                            BarrierWait(block.barriers, 0, 0);
                          }),
                 "32 of 32 threads wait"));
  CHECK(Mentions(Findings(32, 0, [] { NamedBarrierArrive(3, 64); }), "half full"));
}

TEST_CASE("A tile arrives swizzled, and not before its barrier says so", "[emulate][hopper]") {
  const Source source(40);  // the box reaches beyond the matrix
  auto body = [&](bool waits) {
    return [&, waits] {
      const Block block;
      block.Init(1);
      if (ThreadX() != 0) return;
      BarrierArriveExpecting(block.barriers, 0, kTileBytes);
      CopyTile(block.tile, 0, source.map, 0, 0, block.barriers, 0);
      if (waits) BarrierWait(block.barriers, 0, 0);
      for (int r = 0; r < 64 && waits; ++r) {
        for (int c = 0; c < 64; c += 9) {
          const float found = ToFloat(block.tile.Get(SwizzledUnit(r, c / 8) + c % 8));
          CHECK(found == (r < 40 ? Source::At(r, c) : 0.0f));
        }
      }
      if (!waits) {
        block.tile.Get(0);
        BarrierWait(block.barriers, 0, 0);
      }
    };
  };
  CHECK(Findings(32, Block::kBytes, body(true)).empty());
  CHECK(Mentions(Findings(32, Block::kBytes, body(false)), "still filling"));
  CHECK(Mentions(Findings(32, Block::kBytes,
                          [&] {
                            const Block block;
                            block.Init(1);
                            if (ThreadX() != 0) return;
                            CopyTile(block.tile, 0, source.map, 0, 0, block.barriers, 0);
                          }),
                 "nobody waited for"));
}

// The mistake that a warpgroup makes with a tile that all its threads store and then multiply.
enum class Fault { kNone, kNoProxyFence, kNoBarrier, kNoFence, kNoWait, kTooEarly };

std::vector<std::string> MultiplyTile(Fault fault) {
  return Findings(128, Block::kBytes, [fault] {
    const Block block;
    block.Init(1);
    for (int i = ThreadX(); i < 512; i += 128) {
      block.tile.SetAs(SwizzledUnit(i / 8, i % 8), Vec16{});
    }
    if (fault != Fault::kNoProxyFence) FenceProxies();
    if (fault != Fault::kNoBarrier) NamedBarrierSync(1, 128);
    float sums[8][4];
    const uint32_t a[4] = {};
    const uint64_t b = MatrixDescriptor(AddressOf(block.tile, 0), 0, kPatternBytes);
    if (fault != Fault::kNoFence) WarpgroupFence();
    WarpgroupMmaTransposed(sums, a, b, false, BFloat16());
    WarpgroupCommit();
    if (fault == Fault::kTooEarly) {
      FenceProxies();
      NamedBarrierSync(1, 128);
      if (ThreadX() == 0) block.tile.Set(0, BFloat16{0});
    }
    if (fault != Fault::kNoWait) {
      WarpgroupWait<0>();
      CHECK((sums[7][3] == 0.0f || fault != Fault::kNone));
    }
  });
}

TEST_CASE("What a warpgroup must not do with its matrices is found", "[emulate][hopper]") {
  CHECK(MultiplyTile(Fault::kNone).empty());
  CHECK(Mentions(MultiplyTile(Fault::kNoProxyFence), "without a fence between proxies"));
  CHECK(Mentions(MultiplyTile(Fault::kNoBarrier), "no barrier says is there"));
  CHECK(Mentions(MultiplyTile(Fault::kNoFence), "without a fence after"));
  CHECK(Mentions(MultiplyTile(Fault::kNoWait), "never waited for"));
  CHECK(Mentions(MultiplyTile(Fault::kTooEarly), "changed meanwhile"));
}

// Small integers are exact in BF16 and F16, and so are their sums in F32. C [64, 8 kTiles] = A B,
// depth 64: A in shared memory or in registers, B [columns, 64] or, transposed, [64, columns].
enum class Operands { kShared, kRegisters, kTransposed };
template <int kTiles, Operands kOperands, typename T>
void CheckProduct() {
  constexpr int kColumns = 8 * kTiles;
  auto a_at = [](int r, int k) { return static_cast<float>((r * 7 + k * 3) % 11 - 5); };
  auto b_at = [](int k, int c) { return static_cast<float>((k * 5 + c * 2) % 13 - 6); };
  std::vector<float> found(64 * kColumns, -1e9f);
  auto findings = Findings(128, kTileBytes + kColumns * 128, [&] {
    SharedArena arena;
    const Shared<T> a_tile = arena.Take<T>(64 * 64), b_tile = arena.Take<T>(kColumns * 64);
    for (int i = ThreadX(); i < 64 * 64; i += 128) {
      a_tile.Set(SwizzledUnit(i / 64, i % 64 / 8) + i % 8, RoundTo(a_at(i / 64, i % 64), T()));
    }
    for (int i = ThreadX(); i < kColumns * 64; i += 128) {
      // Transposed: lines of 64 columns, for each of the depth's 64 rows.
      const bool transposed = kOperands == Operands::kTransposed;
      const int c = transposed ? i % 64 + i / 4096 * 64 : i / 64;
      const int k = transposed ? i / 64 % 64 : i % 64;
      b_tile.Set(SwizzledUnit(i / 64, i % 64 / 8) + i % 8, RoundTo(b_at(k, c), T()));
    }
    FenceProxies();
    NamedBarrierSync(1, 128);
    float sums[kTiles][4] = {};
    const int row = WarpIndex() * 16 + Lane() / 4;
    uint32_t a[4][4];
    for (int d = 0; d < 4; ++d) {
      for (int i = 0; i < 4; ++i) {
        const int k = 16 * d + 2 * (Lane() % 4) + i / 2 * 8;
        a[d][i] = Pack2(a_at(row + i % 2 * 8, k), a_at(row + i % 2 * 8, k + 1), T());
      }
    }
    WarpgroupFence();
    for (int d = 0; d < 4; ++d) {
      const uint64_t b_along_depth = MatrixDescriptor(AddressOf(b_tile, 16 * d), 0, kPatternBytes);
      if constexpr (kOperands == Operands::kShared) {
        WarpgroupMma(sums, MatrixDescriptor(AddressOf(a_tile, 16 * d), 0, kPatternBytes),
                     b_along_depth, d > 0, T());
      } else if constexpr (kOperands == Operands::kRegisters) {
        WarpgroupMma(sums, a[d], b_along_depth, d > 0, T());
      } else {
        WarpgroupMmaTransposed(
            sums, a[d], MatrixDescriptor(AddressOf(b_tile, 16 * d * 64), 64 * 128, kPatternBytes),
            d > 0, T());
      }
    }
    WarpgroupCommit();
    WarpgroupWait<0>();
    for (int n = 0; n < kTiles; ++n) {
      for (int e = 0; e < 4; ++e) {
        found[(row + e / 2 * 8) * kColumns + 8 * n + 2 * (Lane() % 4) + e % 2] = sums[n][e];
      }
    }
  });
  CHECK(findings.empty());
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      float expected = 0;
      for (int k = 0; k < 64; ++k) expected += a_at(r, k) * b_at(k, c);
      CHECK(found[r * kColumns + c] == expected);
    }
  }
}

TEST_CASE("The products of a warpgroup agree with plain loops", "[emulate][hopper]") {
  CheckProduct<16, Operands::kShared, BFloat16>();
  CheckProduct<16, Operands::kShared, Half>();
  CheckProduct<16, Operands::kRegisters, BFloat16>();
  CheckProduct<16, Operands::kRegisters, Half>();
  CheckProduct<8, Operands::kRegisters, BFloat16>();
  CheckProduct<8, Operands::kRegisters, Half>();
  CheckProduct<16, Operands::kTransposed, BFloat16>();
  CheckProduct<16, Operands::kTransposed, Half>();
  CheckProduct<8, Operands::kTransposed, BFloat16>();
  CheckProduct<8, Operands::kTransposed, Half>();
}

}  // namespace
}  // namespace heddle::kernels::cuda
