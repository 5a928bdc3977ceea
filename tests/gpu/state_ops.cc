#include "tests/gpu/state_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/gpu/on_device.h"
#include "tests/gpu/sizes.h"
#include "tests/gpu/timed.h"
#include "tests/kernels/recurrence_case.h"

namespace heddle::gpu {
namespace {

using kernels::Buffer;
using kernels::CreateReferenceDevice;
using kernels::Device;
using kernels::DType;
using kernels::kScanRows;
using kernels::KvCacheView;
using kernels::Ops;
using kernels::RecurrenceArgs;
using kernels::RecurrenceRule;
using kernels::RecurrenceShape;
using kernels::RecurrenceState;
using kernels::test::ArgsOf;
using kernels::test::FillRows;
using kernels::test::kStatePages;
using kernels::test::Matrix;
using kernels::test::Piece;
using kernels::test::RecurrenceCase;
using kernels::test::RecurrentLayer;
using kernels::test::SnapshotPages;
using kernels::test::StepBatch;

std::string NameOf(const RecurrenceShape& shape) {
  if (shape.is_selective()) {
    return absl::StrCat("selective scan ", shape.values(), " x ", shape.key_dim);
  }
  return absl::StrCat(shape.rule == RecurrenceRule::kGatedDelta ? "gated delta " : "mamba-2 ",
                      shape.n_heads, " x ", shape.key_dim, " x ", shape.value_dim);
}

// A layer's weights and pages on a device.
class LayerOnDevice {
 public:
  LayerOnDevice(Device& device, const RecurrenceCase& c, const RecurrentLayer& layer,
                int32_t num_pages, int32_t page_tokens)
      : device_(device), case_(c) {
    SnapshotPages pages(c.shape);
    args_ = ArgsOf(c, layer, pages, page_tokens);
    const auto put = [&](const float*& pointer, const std::vector<float>& from) {
      if (pointer == nullptr) return;
      kept_.push_back(Copy(device, from));
      pointer = static_cast<const float*>(kept_.back()->data());
    };
    put(args_.conv, layer.conv);
    put(args_.conv_bias, layer.conv_bias);
    put(args_.decay, layer.decay);
    put(args_.step_bias, layer.step_bias);
    put(args_.skip, layer.skip);
    put(args_.norm, layer.norm);
    const int64_t page_bytes =
        RecurrenceState(c.shape).floats * static_cast<int64_t>(sizeof(float));
    kept_.push_back(Must(device.Allocate(num_pages * page_bytes)));
    args_.cache.keys = args_.cache.values = kept_.back()->data();
    args_.cache.num_pages = num_pages;
    args_.cache.page_stride = page_bytes;
  }

  // Rows of tensors that Run calls the ops with.
  struct Rows {
    OnDevice in, with_steps, factors, out;
  };
  std::unique_ptr<Rows> Put(Matrix& in, Matrix& with_steps, Matrix& factors) {
    const DType act = device_.activation_dtype();
    Matrix zeros(in.num_rows(), case_.shape.values());
    return std::make_unique<Rows>(
        Rows{OnDevice(device_, act, in), OnDevice(device_, act, with_steps),
             OnDevice(device_, act, factors), OnDevice(device_, act, zeros)});
  }

  void Run(Ops& ops, const Rows& rows) {
    args_.in = rows.in.tensor();
    args_.out = rows.out.tensor();
    args_.factors = {};
    ops.Recurrence(args_);
    if (!case_.shape.is_selective()) return;
    args_.in = rows.with_steps.tensor();
    args_.factors = rows.factors.tensor();
    ops.Recurrence(args_);
  }

 private:
  Device& device_;
  const RecurrenceCase case_;
  RecurrenceArgs args_;
  std::vector<std::unique_ptr<Buffer>> kept_;
};

std::vector<float> RunText(Device& device, const RecurrenceCase& c, RecurrentLayer& layer,
                           int32_t tokens, int32_t chunk, int32_t page_tokens) {
  LayerOnDevice on_device(device, c, layer, kStatePages, page_tokens);
  std::vector<float> all;
  for (int32_t begin = 0; begin < tokens; begin += chunk) {
    const std::vector<Piece> pieces = {
        {&layer, {3, 0, 7, 5}, begin, std::min(chunk, tokens - begin)}};
    const StepBatch batch(pieces, page_tokens);
    Matrix in(batch.rows(), c.shape.cols()), factors(batch.rows(), 2 * int64_t{c.shape.key_dim});
    FillRows(
        pieces, [](RecurrentLayer& l) { return &l.in; }, 0, in.num_cols(), &in);
    Matrix with_steps = in;
    if (c.shape.is_selective()) {
      const auto steps = [](RecurrentLayer& l) { return &l.steps; };
      FillRows(pieces, steps, 0, c.shape.values(), &with_steps);
      FillRows(pieces, steps, c.shape.values(), factors.num_cols(), &factors);
    }
    const auto rows = on_device.Put(in, with_steps, factors);
    Must(device.Plan(batch.view()));
    Must(device.Run([&](Ops& ops) { on_device.Run(ops, *rows); }));
    const std::vector<float> part = rows->out.Read();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

double CheckRecurrence(Device& device, const RecurrenceCase& c, int32_t chunk,
                       int32_t page_tokens) {
  constexpr int32_t kTokens = 90;
  RecurrentLayer layer(c, kTokens, 11);
  for (Matrix* matrix : {&layer.in, &layer.steps}) {  // as activations are
    for (int64_t i = 0; i < matrix->num_rows() * matrix->num_cols(); ++i) {
      float& value = *matrix->at(i / matrix->num_cols(), i % matrix->num_cols());
      value = kernels::BF16ToF32(kernels::F32ToBF16(value));
    }
  }
  const auto reference = CreateReferenceDevice();
  const std::vector<float> found = RunText(device, c, layer, kTokens, chunk, page_tokens);
  const std::vector<float> wanted = RunText(*reference, c, layer, kTokens, kTokens, page_tokens);
  // Not one bit of a row may depend on what it is computed with.
  if (found != RunText(device, c, layer, kTokens, kTokens, page_tokens)) return 1e9;
  double worst = 0, largest = 1;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::fabs(double{found[i]} - wanted[i]);
    worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    largest = std::max(largest, std::fabs(double{wanted[i]}));
  }
  // As in tests/kernels/cuda/state_test.cc.
  const double rounded = device.activation_dtype() == DType::kBF16 ? 4 * 0x1p-8 : 0;
  return worst / ((1.2e-7 * 16 * (c.shape.key_dim + kScanRows) + rounded) * largest);
}

// A layer of a model.
struct StateCase {
  const char* model;
  RecurrenceCase recurrence;
  int32_t n_seqs;
  int32_t rows;  // of each

  std::string name() const {
    return absl::StrCat(NameOf(recurrence.shape), " (", model, "), ", n_seqs, " x ", rows,
                        rows == 1 ? " row" : " rows");
  }
  // Bytes of S that a decode reads; or operations of a prompt: products of S with keys and queries,
  // and moving it on.
  double amount() const {
    const RecurrenceShape& shape = recurrence.shape;
    const double state = static_cast<double>(shape.values()) * shape.key_dim;
    if (rows == 1) return n_seqs * state * sizeof(float);
    const int32_t products = shape.rule == RecurrenceRule::kGatedDelta ? 3 : 2;
    return 2.0 * products * n_seqs * rows * state;
  }
};

double TimeState(Device& device, const StateCase& c, int32_t repeats) {
  const RecurrenceShape& shape = c.recurrence.shape;
  const int32_t rows = Sized(c.rows, 20), n_seqs = Sized(c.n_seqs, 3);
  constexpr int32_t kBegin = 7;         // a decode in the middle of a part
  constexpr int32_t kPageTokens = 512;  // as serving has them
  const int32_t begin = rows == 1 ? kBegin : 0;
  const int32_t pages = (begin + rows + kPageTokens - 1) / kPageTokens;
  RecurrentLayer layer(c.recurrence, 1, 3);
  LayerOnDevice on_device(device, c.recurrence, layer, n_seqs * pages, kPageTokens);
  std::vector<Piece> pieces;
  for (int32_t s = 0; s < n_seqs; ++s) {
    Piece piece{&layer, {}, begin, rows};
    for (int32_t i = 0; i < pages; ++i) piece.pages.push_back(s * pages + i);
    pieces.push_back(std::move(piece));
  }
  const StepBatch batch(pieces, kPageTokens);
  Matrix in = RepeatedRows(batch.rows(), shape.cols());
  Matrix factors = RepeatedRows(batch.rows(), 2 * int64_t{shape.key_dim});
  const auto tensors = on_device.Put(in, in, factors);
  Must(device.Plan(batch.view()));
  return Time(device, repeats, [&](Ops& ops, int32_t) { on_device.Run(ops, *tensors); });
}

}  // namespace

void CheckStates(Device& device, const CheckReport& report) {
  for (const RecurrenceCase& c :
       {RecurrenceCase{{RecurrenceRule::kGatedDelta, 4, 2, 128, 128, 4}, false, 128},
        {{RecurrenceRule::kGatedDelta, 3, 1, 5, 7, 3, true}, false, 7},
        {{RecurrenceRule::kMamba2, 4, 1, 128, 64, 4}, true, 256, true},
        {{RecurrenceRule::kMamba2, 2, 1, 256, 20, 4}, true, 0},
        {{RecurrenceRule::kSelective, 1, 1, 16, 200, 4}, true},
        {{RecurrenceRule::kSelective, 1, 1, 40, 35, 3}, true}}) {
    // Chunks, and pages of two parts and more.
    for (const auto& [chunk, page] : {std::pair{1, 32}, {13, 64}, {40, 128}, {90, 32}}) {
      const std::string name =
          absl::StrCat(NameOf(c.shape), ", chunks of ", chunk, ", pages of ", page);
      if (report.begins(name)) report.ends(name, CheckRecurrence(device, c, chunk, page));
    }
  }
}

void TimeStates(Device& device, int32_t repeats, const TimingReport& report) {
  const RecurrenceCase next = {{RecurrenceRule::kGatedDelta, 32, 16, 128, 128, 4}, false, 128};
  const RecurrenceCase granite = {{RecurrenceRule::kMamba2, 128, 1, 128, 64, 4}, true, 8192, true};
  const RecurrenceCase mamba = {{RecurrenceRule::kSelective, 1, 1, 16, 5120, 4}, true};
  for (const StateCase& c : {StateCase{"Qwen3-Next", next, 64, 1},
                             {"Qwen3-Next", next, 1, 1},
                             {"Qwen3-Next", next, 1, 2048},
                             {"Granite 4 small", granite, 64, 1},
                             {"Granite 4 small", granite, 1, 2048},
                             {"Mamba 2.8B", mamba, 64, 1},
                             {"Mamba 2.8B", mamba, 1, 2048}}) {
    if (!report.begins(c.name())) continue;
    const double us = TimeState(device, c, c.rows > 1 ? std::max(1, repeats / 10) : repeats);
    report.ends({c.name(), us, c.amount(), c.rows == 1});
  }
}

}  // namespace heddle::gpu
