#include "tests/gpu/stream_ops.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/code_format.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/timed.h"
#include "tests/kernels/testing.h"

namespace heddle::gpu {
namespace {

using kernels::Activation;
using kernels::CreateReferenceDevice;
using kernels::Device;
using kernels::DType;
using kernels::Ops;
using kernels::Tensor;
using kernels::test::Matrix;
using kernels::test::Random;

constexpr int32_t kStreams = 4;  // Gemma 3n's

// Tensors of an op: what it changes, rows of activations that it reads, and F32 factors.
struct StreamTensors {
  Tensor changed, read, factors;
};

struct StreamOp {
  const char* name;
  int32_t changed, read;  // widths, in parts of a layer's
  std::function<void(Ops&, const StreamTensors&)> run;
};

std::vector<StreamOp> AllOps() {
  return {{"streams predicted", kStreams, 1,
           [](Ops& ops, const StreamTensors& t) {
             ops.PredictStreams({.streams = t.changed, .count = kStreams, .factors = t.factors});
           }},
          {"streams corrected", kStreams, 1,
           [](Ops& ops, const StreamTensors& t) {
             ops.CorrectStreams({.streams = t.changed,
                                 .count = kStreams,
                                 .factors = t.factors,
                                 .computed = t.read,
                                 .active = 1});
           }},
          {"magnitudes matched", 1, 1,
           [](Ops& ops, const StreamTensors& t) { ops.MatchMagnitude(t.read, t.changed); }},
          {"sparse gates", 2, 1,
           [](Ops& ops, const StreamTensors& t) {
             ops.SparseGate({t.changed, 1.6448536f, Activation::kGeluTanh});
           }},
          {"elements multiplied", 1, 1,
           [](Ops& ops, const StreamTensors& t) { ops.Multiply(t.read, t.changed); }}};
}

struct StreamBuffers {
  StreamBuffers(Device& device, const StreamOp& op, int64_t rows, int64_t width)
      : changed_rows(RepeatedRows(rows, op.changed * width)),
        read_rows(RepeatedRows(rows, op.read * width)),
        factor_rows(RepeatedRows(rows, int64_t{kStreams} * kStreams)),
        changed(device, device.activation_dtype(), changed_rows),
        read(device, device.activation_dtype(), read_rows),
        factors(device, DType::kF32, factor_rows) {}

  void Run(Ops& ops, const StreamOp& op) const {
    op.run(ops, {changed.tensor(), read.tensor(), factors.tensor()});
  }

  Matrix changed_rows, read_rows, factor_rows;
  OnDevice changed, read, factors;
};

double CheckStreamOp(Device& device, const StreamOp& op, int64_t rows, int64_t width) {
  const auto reference = CreateReferenceDevice();
  std::vector<std::vector<float>> results;
  for (Device* on : {&device, reference.get()}) {
    const StreamBuffers buffers(*on, op, rows, width);
    PlanRows(*on, rows);
    Must(on->Run([&](Ops& ops) { buffers.Run(ops, op); }));
    results.push_back(buffers.changed.Read());
  }
  return Worst(results[0], results[1]);
}

}  // namespace

void CheckStreamOps(Device& device, const CheckReport& report) {
  for (const StreamOp& op : AllOps()) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 2048}, {37, 264}, {5, 77}}) {
      const std::string name = absl::StrCat(op.name, ", ", rows, " rows of ", width);
      if (report.begins(name)) report.ends(name, CheckStreamOp(device, op, rows, width));
    }
  }
}

void TimeStreamOps(Device& device, int32_t repeats, const TimingReport& report) {
  for (const StreamOp& op : AllOps()) {
    const bool is_gate = std::string(op.name) == "sparse gates";
    const int64_t width = Sized(is_gate ? 16384 : 2048, 64);
    for (const int64_t rows : {int64_t{64}, int64_t{2048}}) {
      const std::string name = absl::StrCat(op.name, " (Gemma 3n E4B), ", rows, " rows");
      if (!report.begins(name)) continue;
      const StreamBuffers buffers(device, op, Sized(rows, 4), width);
      PlanRows(device, buffers.changed.rows);
      const double us = Time(device, repeats, [&](Ops& ops, int32_t) { buffers.Run(ops, op); });
      // Results of sparse gates take half of what is read; the others are as wide as what changes.
      const int64_t columns = is_gate ? 3 * width : (2 * op.changed + op.read) * width;
      const double bytes = static_cast<double>(buffers.changed.rows * columns) *
                           kernels::Info(device.activation_dtype()).block_bytes;
      report.ends({name, us, bytes, true});
    }
  }
}

}  // namespace heddle::gpu
