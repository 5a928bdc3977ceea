// Codes in the order of the Marlin kernel: for each 16 inputs a line of 32-bit words with all
// outputs, 64 of them in each 1024 codes. GPTQ calls the tensors "B" and "s", AWQ "qweight" and
// "scales". Zero points are 8; there is no order of columns.
// Source: Frantar et al. 2024 (MARLIN), and the packing of AutoGPTQ's and AutoAWQ's checkpoints.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/files/quantized/integer_matrix.h"
#include "engine/files/quantized/quantized_tensors.h"

namespace heddle::engine {
namespace {

constexpr int64_t kTile = 16;     // inputs and outputs of a tile
constexpr int64_t kOutputs = 64;  // of four tiles, whose codes are permuted together
constexpr int64_t kCodes = kTile * kOutputs;

// Where the code of input k and output n of four tiles is, as a number of nibbles. A thread of the
// 32 has the nibbles 8 t .. 8 t + 7 of each tile: output t / 4 and that + 8, inputs 2 (t % 4) and
// the next, and those + 8, in the order in which pairs are decoded.
constexpr std::array<uint16_t, kCodes> MakePlaces() {
  std::array<uint16_t, kCodes> places = {};
  constexpr int kDecoded[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int at = 0; at < kCodes; ++at) {
    const int thread = at / 32, tile = at / 8 % 4, element = kDecoded[at % 8];
    const int output = thread / 4 + 8 * (element / 4);
    const int input = 2 * (thread % 4) + element % 2 + 8 * (element / 2 % 2);
    places[static_cast<size_t>(tile * 256 + input * kTile + output)] = static_cast<uint16_t>(at);
  }
  return places;
}
constexpr std::array<uint16_t, kCodes> kPlaces = MakePlaces();

class MarlinMatrix final : public IntegerMatrix {
 public:
  absl::Status Init(const CheckpointTensor& tensor, TensorSet* set) {
    const bool is_awq = tensor.name.ends_with("qweight");
    const std::string module(tensor.name.substr(0, tensor.name.size() - (is_awq ? 7 : 1)));
    HEDDLE_RETURN_IF_ERROR(set->ExpectType(tensor, {"I32", "U32"}));
    name = module + "weight";
    const int64_t words = tensor.shape.size() == 2 ? tensor.shape[1] : 0;
    if (words < 1 || tensor.shape[0] < 1 || words * 8 % kCodes != 0) {
      return set->Error(
          tensor, base::StrCat("has lines of ", words, " words, expected those of whole ", kOutputs,
                               " outputs for each 16 inputs"));
    }
    rows = words * 8 / kTile;
    cols = tensor.shape[0] * kTile;
    bits_ = 4;
    HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                            set->NeedFloats(tensor, module + (is_awq ? "scales" : "s")));
    const int64_t n_groups = NumElements(*scales) / rows;
    HEDDLE_RETURN_IF_ERROR(
        set->ExpectShape(*scales, {std::max<int64_t>(n_groups, 1), rows}, "groups, outputs"));
    group_ = cols % n_groups == 0 ? cols / n_groups : 0;
    for (const char* unused : {"workspace", "g_idx", "qzeros"}) set->Find(module + unused);
    code_bytes = tensor.data;
    scales_ = FloatView(*scales);
    return Finish(tensor, "Marlin", *set);
  }

 private:
  void Codes(int64_t begin, int64_t count, uint8_t* out) const override {
    for (int64_t c = 0; c < cols; ++c) {
      const std::byte* line = code_bytes.data() + c / kTile * (rows * kTile / 2);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t row = begin + r;
        const int64_t within = row % kOutputs / kTile * 256 + c % kTile * kTile + row % kTile;
        const int64_t at = row / kOutputs * kCodes + kPlaces[static_cast<size_t>(within)];
        const auto pair = std::to_integer<uint8_t>(line[at / 2]);
        out[r * cols + c] = at % 2 == 0 ? pair & 15 : pair >> 4;
      }
    }
  }
  // Scales lie as the threads want them: those of 64 outputs transposed as 8 x 8, or, of whole
  // columns, the pairs of 32 outputs that a thread sums.
  float Scale(int64_t row, int64_t group) const override {
    if (group_ != cols) return scales_[group * rows + row / 64 * 64 + row % 8 * 8 + row % 64 / 8];
    const int64_t within = row % 32;
    return scales_[row - within + within % 8 / 2 * 8 + within / 8 * 2 + within % 2];
  }
  int32_t Zero(int64_t, int64_t) const override { return 8; }

  FloatView scales_;
};

}  // namespace

MatrixOr ReadMarlin(const CheckpointTensor& tensor, TensorSet* set) {
  auto matrix = std::make_unique<MarlinMatrix>();
  HEDDLE_RETURN_IF_ERROR(matrix->Init(tensor, set));
  return std::unique_ptr<QuantizedMatrix>(std::move(matrix));
}

}  // namespace heddle::engine
