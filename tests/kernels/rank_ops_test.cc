// The ops across ranks on every device that can join a group: sums against sums in F64, the same
// bits on all ranks, with parts missing, in one round and in two.
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "kernels/communicator.h"
#include "kernels/device.h"
#include "kernels/late_sums.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels {
namespace {

using test::Matrix;
using test::Random;

using MakeDevice = std::function<std::unique_ptr<Device>()>;

std::vector<std::pair<std::string, MakeDevice>> Makers() {
  std::vector<std::pair<std::string, MakeDevice>> makers;
  makers.emplace_back("reference", CreateReferenceDevice);
  for (const std::string isa : {"portable", "avx2", "avx512_bw", "avx512"}) {
    if (!CreateCpuDevice({.num_threads = 1, .isa = isa}).ok()) continue;
    makers.emplace_back(
        isa, [isa] { return std::move(CreateCpuDevice({.num_threads = 2, .isa = isa}).value()); });
  }
  return makers;
}

// Runs body(rank, ops) on a device per rank, all in one group.
void OnRanks(int32_t world, const MakeDevice& make,
             const std::function<void(int32_t rank, Ops& ops)>& body) {
  std::vector<std::unique_ptr<Communicator>> communicators = MakeLocalCommunicators(world);
  std::vector<std::unique_ptr<Device>> devices;
  for (auto& communicator : communicators) {
    devices.push_back(make());
    REQUIRE(devices.back()->JoinGroup(std::move(communicator)).ok());
  }
  std::atomic<int32_t> failed{0};
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      if (!devices[static_cast<size_t>(r)]->Run([&](Ops& ops) { body(r, ops); }).ok()) ++failed;
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(failed == 0);
}

struct Sum {
  std::string name;
  MakeDevice make;
  int32_t world;
  int64_t rows;
  int64_t dim;
  bool adds;  // to a residual
  bool has_bias;
  int32_t without;  // a rank that has no part; -1: none
};

// Largest error of the sums relative to the sum of the magnitudes; all ranks must have the same.
double ErrorOf(const Sum& sum) {
  Random random(3);
  std::vector<Matrix> parts;
  std::vector<Matrix> targets;
  const Matrix stream = Matrix::RandomOf(random, sum.rows, sum.dim, /*pad=*/3);
  const std::vector<float> bias = random.Normals(sum.dim);
  for (int32_t r = 0; r < sum.world; ++r) {
    parts.push_back(Matrix::RandomOf(random, sum.rows, sum.dim));
    targets.push_back(stream);
  }
  OnRanks(sum.world, sum.make, [&](int32_t r, Ops& ops) {
    const auto rank = static_cast<size_t>(r);
    AllReduceArgs args;
    if (r != sum.without) args.partial = parts[rank].tensor();
    args.bias = sum.has_bias ? bias.data() : nullptr;
    (sum.adds ? args.residual : args.out) = targets[rank].tensor();
    ops.AllReduce(args);
  });
  double error = 0;
  for (int64_t t = 0; t < sum.rows; ++t) {
    for (int64_t i = 0; i < sum.dim; ++i) {
      double expected = sum.adds ? stream(t, i) : 0.0;
      double magnitude = std::abs(expected) + 1e-30;
      if (sum.has_bias) expected += bias[static_cast<size_t>(i)];
      for (int32_t r = 0; r < sum.world; ++r) {
        if (r == sum.without) continue;
        expected += double{parts[static_cast<size_t>(r)](t, i)};
        magnitude += std::abs(double{parts[static_cast<size_t>(r)](t, i)});
      }
      error = std::max(error, std::abs(targets[0](t, i) - expected) / (magnitude + 1));
    }
  }
  for (const Matrix& target : targets) {
    CHECK(test::SameBits(target, targets[0]));
    CHECK(target.GapsIntact());
  }
  return error;
}

TEST_CASE("Ranks sum their parts to the same bits", "[kernel]") {
  for (const auto& [name, make] : Makers()) {
    for (const int32_t world : {1, 2, 3, 5, 8}) {
      for (const auto& [rows, dim] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {1, 2048}, {3, 17}, {7, 100}, {65, 1030}}) {
        for (const int variant : {0, 1, 2, 3}) {
          const Sum sum{name,
                        make,
                        world,
                        rows,
                        dim,
                        (variant & 1) != 0,
                        (variant & 2) != 0,
                        variant == 3 ? world - 1 : -1};
          INFO(name << ", " << world << " ranks, [" << rows << ", " << dim << "], variant "
                    << variant);
          // Each of the `world` + 1 additions rounds by half a unit in the last place at most.
          CHECK(ErrorOf(sum) <= (world + 2) * 0x1p-24);
        }
      }
    }
  }
}

// What ranks have behind four sums, each added to the stream and normed; `is_late`: each ends when
// the next has begun.
std::vector<Matrix> Streams(const MakeDevice& make, int32_t world, int64_t rows, bool is_late) {
  constexpr int64_t kDim = 1030;
  constexpr size_t kSums = 4;
  Random random(11);
  std::vector<std::vector<Matrix>> parts(static_cast<size_t>(world));
  for (auto& own : parts) {
    for (size_t i = 0; i < kSums; ++i) own.push_back(Matrix::RandomOf(random, rows, kDim));
  }
  const std::vector<float> weight = random.Normals(kDim);
  const Matrix stream = Matrix::RandomOf(random, rows, kDim);
  std::vector<Matrix> streams(static_cast<size_t>(world), stream);
  std::vector<Matrix> normed(static_cast<size_t>(world), stream);
  OnRanks(world, make, [&](int32_t r, Ops& ops) {
    const auto rank = static_cast<size_t>(r);
    auto* late = is_late ? dynamic_cast<LateSums*>(&ops) : nullptr;
    const Tensor x = streams[rank].tensor();
    const NormArgs norm{
        .x = x, .weight = weight.data(), .eps = 1e-5f, .out = normed[rank].tensor()};
    const auto sum_of = [&](size_t i) {
      AllReduceArgs sum{.residual = x, .norm = norm};
      if (i != 2 || r != world - 1) sum.partial = parts[rank][i].tensor();
      return sum;
    };
    for (size_t i = 0; i < kSums; ++i) {
      if (late) late->BeginAllReduce(sum_of(i));
      if (late && i > 0) late->EndAllReduce(sum_of(i - 1));
      if (!late) ops.AllReduce(sum_of(i));
    }
    if (late) late->EndAllReduce(sum_of(kSums - 1));
  });
  streams.insert(streams.end(), normed.begin(), normed.end());
  return streams;
}

TEST_CASE("Sums that begin before others end have the bits of those at once", "[kernel]") {
  for (const auto& [name, make] : Makers()) {
    if (name == "reference") continue;  // begins no sums
    for (const int32_t world : {1, 2, 3, 5}) {
      for (const int64_t rows : {int64_t{1}, int64_t{9}, int64_t{80}}) {  // the last in two rounds
        INFO(name << ", " << world << " ranks, " << rows << " rows");
        const std::vector<Matrix> expected = Streams(make, world, rows, /*is_late=*/false);
        const std::vector<Matrix> found = Streams(make, world, rows, /*is_late=*/true);
        for (size_t i = 0; i < found.size(); ++i) CHECK(test::SameBits(found[i], expected[i]));
      }
    }
  }
}

TEST_CASE("Parts are added as a tree over the ranks", "[kernel]") {
  // In F32, 1 + 2^24 is 2^24: the order of the sums shows.
  const float values[] = {1.0f, 0x1p24f, 1.0f, 1.0f, -0x1p24f};
  const float tree = ((1.0f + 0x1p24f) + (1.0f + 1.0f)) + -0x1p24f;
  REQUIRE(tree == 2.0f);
  for (const auto& [name, make] : Makers()) {
    for (const int64_t rows : {int64_t{1}, int64_t{700}}) {  // in one round, in two
      INFO(name << ", " << rows << " rows");
      std::vector<Matrix> outs;
      for (int r = 0; r < 5; ++r) outs.emplace_back(rows, 128);
      OnRanks(5, make, [&](int32_t r, Ops& ops) {
        std::vector<float> part(static_cast<size_t>(rows * 128), values[r]);
        ops.AllReduce({.partial = {part.data(), rows, 128, 128},
                       .out = outs[static_cast<size_t>(r)].tensor()});
        // The part may be read until the next meeting has ended.
        ops.GatherColumns({.part = {}, .borders = std::vector<int32_t>(6, 0), .whole = {}});
      });
      for (const Matrix& out : outs) {
        CHECK(out(0, 0) == tree);
        CHECK(out(rows - 1, 127) == tree);
      }
    }
  }
}

TEST_CASE("Ranks without a part keep their places in the tree", "[kernel]") {
  // 2^24 + 1 is 2^24 in F32, and 2^24 + 2 is not: without its place, rank 3 would meet rank 2
  // first.
  const float values[] = {0x1p24f, 0.0f, 1.0f, 1.0f};
  for (const auto& [name, make] : Makers()) {
    INFO(name);
    std::vector<Matrix> outs;
    for (int r = 0; r < 4; ++r) outs.emplace_back(1, 16);
    OnRanks(4, make, [&](int32_t r, Ops& ops) {
      std::vector<float> part(16, values[r]);
      AllReduceArgs args{.out = outs[static_cast<size_t>(r)].tensor()};
      if (r != 1) args.partial = {part.data(), 1, 16, 16};
      ops.AllReduce(args);
      ops.GatherColumns({.part = {}, .borders = std::vector<int32_t>(5, 0), .whole = {}});
    });
    for (const Matrix& out : outs) CHECK(out(0, 0) == 0x1p24f + 2.0f);
  }
}

TEST_CASE("A norm behind the sum gives what Norm gives", "[kernel]") {
  Random random(5);
  for (const auto& [name, make] : Makers()) {
    for (const int64_t rows : {int64_t{2}, int64_t{300}}) {
      INFO(name << ", " << rows << " rows");
      const int64_t dim = 512;
      const std::vector<float> weight = random.Normals(dim);
      std::vector<Matrix> parts, streams, fused, apart;
      const Matrix stream = Matrix::RandomOf(random, rows, dim);
      for (int r = 0; r < 5; ++r) {
        parts.push_back(Matrix::RandomOf(random, rows, dim));
        streams.push_back(stream);
        fused.emplace_back(rows, dim);
        apart.emplace_back(rows, dim);
      }
      OnRanks(5, make, [&](int32_t r, Ops& ops) {
        const auto rank = static_cast<size_t>(r);
        const Tensor x = streams[rank].tensor();
        NormArgs norm{.x = x, .weight = weight.data(), .out = fused[rank].tensor()};
        ops.AllReduce({.partial = parts[rank].tensor(), .residual = x, .norm = norm});
        norm.out = apart[rank].tensor();
        ops.Norm(norm);
      });
      for (size_t r = 0; r < 5; ++r) {
        CHECK(test::SameBits(fused[r], apart[r]));
        CHECK(test::SameBits(fused[r], fused[0]));
      }
    }
  }
}

TEST_CASE("Columns of all ranks come together in their order", "[kernel]") {
  const std::vector<int32_t> borders = {0, 3, 3, 10, 11};  // rank 1 has none
  for (const auto& [name, make] : Makers()) {
    INFO(name);
    std::vector<Matrix> wholes;
    for (int r = 0; r < 4; ++r) wholes.emplace_back(9, 11, /*pad=*/2);
    OnRanks(4, make, [&](int32_t r, Ops& ops) {
      const auto rank = static_cast<size_t>(r);
      const int64_t cols = borders[rank + 1] - borders[rank];
      Matrix own(9, std::max<int64_t>(cols, 1));
      for (int64_t t = 0; t < 9; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
          *own.at(t, c) = static_cast<float>(100 * t + borders[rank] + c);
        }
      }
      Tensor part{cols > 0 ? own.at(0, 0) : nullptr, 9, cols, cols};
      // Only ranks 0 and 2 want the whole.
      ops.GatherColumns({.part = part,
                         .borders = borders,
                         .whole = r % 2 == 0 ? wholes[rank].tensor() : Tensor{}});
    });
    for (const size_t r : {size_t{0}, size_t{2}}) {
      for (int64_t t = 0; t < 9; ++t) {
        for (int64_t c = 0; c < 11; ++c) {
          CHECK(wholes[r](t, c) == static_cast<float>(100 * t + c));
        }
      }
      CHECK(wholes[r].GapsIntact());
    }
  }
}

TEST_CASE("A part of an embedding gives its own tokens' rows and zeros", "[kernel]") {
  Random random(9);
  const Matrix table = Matrix::RandomOf(random, 20, 33);
  test::TestBatch batch({.sequences = {{.rows = 6, .context = 6}}});
  batch.token_ids = {0, 4, 5, 11, 12, 19};
  std::vector<float> values;
  for (int64_t r = 5; r < 12; ++r) {
    for (int64_t c = 0; c < 33; ++c) values.push_back(table(r, c));
  }
  const WeightSource source{
      .data = values.data(), .dtype = DType::kF32, .rows = 7, .cols = 33, .name = "embedding"};
  for (const auto& [name, make] : Makers()) {
    INFO(name);
    std::unique_ptr<Device> device = make();
    REQUIRE(device->JoinGroup(std::move(MakeLocalCommunicators(1)[0])).ok());
    auto packed = device->Pack({&source, 1});
    REQUIRE(packed.ok());
    REQUIRE(device->Plan(batch.view()).ok());
    Matrix out(6, 33);
    REQUIRE(device->Run([&](Ops& ops) { ops.EmbedShare(**packed, 5, 2.0f, out.tensor()); }).ok());
    for (int64_t t = 0; t < 6; ++t) {
      const int32_t token = batch.token_ids[static_cast<size_t>(t)];
      const bool is_own = token >= 5 && token < 12;
      for (int64_t c = 0; c < 33; ++c) {
        CHECK(out(t, c) == (is_own ? 2.0f * table(token, c) : 0.0f));
      }
    }
  }
}

TEST_CASE("A part of an embedding's adapter changes its own tokens' rows alone", "[kernel]") {
  // Tokens [5, 12) in blocks of 3, of rank 1: token t has the factor t, and column c of B is c + 1.
  const std::vector<std::vector<float>> tokens = {{5, 6, 7}, {8, 9, 10}, {11}};
  std::vector<float> b(33), gain(33, 1.0f);
  for (size_t c = 0; c < b.size(); ++c) b[c] = static_cast<float>(c + 1);
  const std::vector<const void*> a_table = {tokens[0].data(), tokens[1].data(), tokens[2].data()};
  const std::vector<const void*> b_table = {b.data()};
  const AdapterFactors factors{.a = a_table.data(),
                               .b = b_table.data(),
                               .gain = gain.data(),
                               .rank = 1,
                               .block_rows = 1,
                               .token_rows = 3,
                               .scale = 0.5f};
  const std::vector<AdapterPart> parts = {{0, 33}};
  const AdapterMatrix adapters{.dtype = DType::kF32,
                               .parts = parts,
                               .factors = &factors,
                               .n_slots = 1,
                               .slot_stride = 1,
                               .max_rank = 1,
                               .num_tokens = 7,
                               .first_token = 5,
                               .has_gains = true};
  test::TestBatch batch({.sequences = {{.rows = 6, .context = 6}}});
  batch.token_ids = {0, 4, 5, 11, 12, 19};
  HostBatch view = batch.view();
  const std::vector<int32_t> slots(6, 0);
  view.adapter_slot = slots;
  for (const auto& [name, make] : Makers()) {
    INFO(name);
    std::unique_ptr<Device> device = make();
    REQUIRE(device->Plan(view).ok());
    Matrix x(6, 33);
    for (int64_t t = 0; t < 6; ++t) {
      for (int64_t c = 0; c < 33; ++c) *x.at(t, c) = 1.0f;
    }
    REQUIRE(device->Run([&](Ops& ops) { ops.AdaptEmbedding(adapters, x.tensor()); }).ok());
    for (int64_t t = 0; t < 6; ++t) {
      const auto token = static_cast<float>(batch.token_ids[static_cast<size_t>(t)]);
      const bool is_own = token >= 5 && token < 12;
      for (int64_t c = 0; c < 33; ++c) {
        const float product = token * static_cast<float>(c + 1);
        CHECK(x(t, c) == (is_own ? 2.0f + 0.5f * product : 1.0f));
      }
    }
  }
}

TEST_CASE("After an abort ops across ranks return", "[kernel]") {
  std::vector<std::unique_ptr<Communicator>> communicators = MakeLocalCommunicators(2);
  auto device = CreateCpuDevice({.num_threads = 1});
  REQUIRE(device.ok());
  communicators[1]->Abort(absl::UnavailableError("gone"));
  REQUIRE((*device)->JoinGroup(std::move(communicators[0])).ok());
  Matrix part(4, 8), out(4, 8);
  CHECK((*device)
            ->Run([&](Ops& ops) {
              ops.AllReduce({.partial = part.tensor(), .out = out.tensor()});
              ops.GatherColumns({.part = part.tensor(),
                                 .borders = std::vector<int32_t>{0, 8, 8},
                                 .whole = out.tensor()});
            })
            .ok());
}

TEST_CASE("Rows pass between stages as they are", "[kernels]") {
  for (const auto& [name, make] : Makers()) {
    INFO(name);
    std::vector<std::unique_ptr<Communicator>> communicators = MakeLocalCommunicators(3);
    std::vector<std::unique_ptr<Device>> devices;
    for (auto& communicator : communicators) {
      devices.push_back(make());
      REQUIRE(devices.back()->JoinStages(std::move(communicator)).ok());
    }
    const int32_t dim = 33;
    std::vector<std::vector<float>> rows(4, std::vector<float>(5 * dim));  // the last comes back
    std::iota(rows[0].begin(), rows[0].end(), 1.0f);
    std::vector<std::thread> threads;
    for (int32_t stage = 0; stage < 3; ++stage) {
      threads.emplace_back([&, stage] {
        const auto at = static_cast<size_t>(stage);
        const Tensor own{rows[at].data(), 5, dim, dim};
        static_cast<void>(devices[at]->Run([&](Ops& ops) {
          if (stage > 0) ops.RecvRows(own, stage - 1);
          ops.SendRows(own, (stage + 1) % 3);
          if (stage == 0) ops.RecvRows({rows[3].data(), 5, dim, dim}, 2);
        }));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& own : rows) CHECK(own == rows[0]);
  }
}

}  // namespace
}  // namespace heddle::kernels
