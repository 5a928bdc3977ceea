#include "kernels/cpu/sent_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/check.h"

namespace heddle::kernels::cpu {
namespace {

// Parts of at most so many bytes go in one round: a round trip more takes longer than their bytes.
constexpr int64_t kMostBytesInOneRound = 64 * 1024;
constexpr int32_t kLeastRanksOfTwoRounds = 3;  // two ranks send as many bytes either way

// Approximate, to decide how many threads to wake.
constexpr double kNsPerAddedElement = 0.3;
constexpr double kNsPerRoundedElement = 0.5;
constexpr int64_t kPieceElements = 4096;

// As F32ToBF16, but in place of a call for each.
void RoundToBf16(const float* from, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    to[i] = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : rounded);
  }
}

void WidenBf16(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(uint32_t{from[i]} << 16);
}

// The values as the wire has them: they themselves, or in `scratch`.
const char* ToWire(DType wire, const float* values, int64_t n, ThreadPool& pool, Scratch* scratch) {
  if (values == nullptr || wire == DType::kF32) return reinterpret_cast<const char*>(values);
  auto* rounded = static_cast<uint16_t*>(scratch->Get(RowBytes(wire, n)));
  const int64_t pieces = (n + kPieceElements - 1) / kPieceElements;
  pool.ForRange(pieces, kNsPerRoundedElement * static_cast<double>(kPieceElements),
                [&](int64_t first, int64_t last, int32_t) {
                  const int64_t begin = first * kPieceElements;
                  const int64_t end = std::min(n, last * kPieceElements);
                  RoundToBf16(values + begin, end - begin, rounded + begin);
                });
  return reinterpret_cast<const char*>(rounded);
}

DType WireOf(const Communicator& communicator) {
  const auto* sender = dynamic_cast<const SendingCommunicator*>(&communicator);
  return sender == nullptr ? DType::kF32 : sender->wire_type();
}

}  // namespace

// target = sum of the parts + bias, or that more, for each row. REQUIRES: parts have the wire's
// format, and as many dense rows as the target, or are nullptr, which keep their place in the tree.
void SentRows::SumRows(std::span<const void* const> parts, const float* bias, bool adds,
                       Tensor target, const Finish& finish) {
  const int64_t cols = target.cols;
  const int64_t row_bytes = RowBytes(communicator_.wire_type(), cols);
  const bool is_rounded = communicator_.wire_type() == DType::kBF16;
  const auto has_part = [](const void* part) { return part != nullptr; };
  const auto num_parts =
      std::any_of(parts.begin(), parts.end(), has_part) ? static_cast<int32_t>(parts.size()) : 0;
  // A row of zeros, and for each thread a row of each part.
  const int64_t rows_read = 1 + (is_rounded ? int64_t{pool_.num_threads()} * num_parts : 0);
  auto* zeros = static_cast<float*>(read_.Get(rows_read * cols * int64_t{sizeof(float)}));
  std::fill_n(zeros, cols, 0.0f);
  const double cost = kNsPerAddedElement * static_cast<double>(cols * std::max(num_parts, 1));
  pool_.ForRange(target.rows, cost, [&](int64_t first, int64_t last, int32_t thread) {
    for (int64_t t = first; t < last; ++t) {
      std::array<const float*, kMaxRanks> rows;
      for (int32_t i = 0; i < num_parts; ++i) {
        const void* part = parts[static_cast<size_t>(i)];
        const float*& row = rows[static_cast<size_t>(i)];
        row = zeros;
        if (part == nullptr) continue;
        const char* at = static_cast<const char*>(part) + t * row_bytes;
        row = reinterpret_cast<const float*>(at);
        if (!is_rounded) continue;
        float* widened = zeros + (1 + int64_t{thread} * num_parts + i) * cols;
        WidenBf16(reinterpret_cast<const uint16_t*>(at), cols, widened);
        row = widened;
      }
      rows_.sum_parts({.parts = rows.data(),
                       .num_parts = num_parts,
                       .bias = bias,
                       .add = adds,
                       .dim = cols,
                       .out = target.row<float>(t)});
      finish(t, thread);
    }
  });
}

void SentRows::AllReduce(const AllReduceArgs& args, bool is_begun, const Finish& finish) {
  const bool adds = args.residual.data != nullptr;
  const Tensor target = adds ? args.residual : args.out;
  HEDDLE_CHECK(args.partial.data == nullptr || args.partial.stride == target.cols,
               "all-reduce: the partial sums are not dense");
  const auto world = static_cast<size_t>(communicator_.world());
  const bool in_two = GoesInTwoRounds(target);
  std::array<const void*, kMaxRanks> all;
  if (is_begun && !in_two) {
    if (!communicator_.EndExchange(all)) return;
    SumRows(std::span(all).first(world), args.bias, adds, target, finish);
    return;
  }
  const DType wire = communicator_.wire_type();
  const int64_t bytes = target.rows * RowBytes(wire, target.cols);
  const char* own = ToWire(wire, static_cast<const float*>(args.partial.data),
                           target.rows * target.cols, pool_, &wire_);
  if (in_two) return AddInTwoRounds(own, args, target, finish);
  if (!communicator_.Exchange(own, bytes, bytes, all)) return;
  SumRows(std::span(all).first(world), args.bias, adds, target, finish);
}

bool SentRows::GoesInTwoRounds(Tensor target) const {
  const int64_t bytes = target.rows * RowBytes(communicator_.wire_type(), target.cols);
  const int32_t world = communicator_.world();
  return world >= kLeastRanksOfTwoRounds && bytes > kMostBytesInOneRound && target.rows >= world;
}

void SentRows::BeginAllReduce(const AllReduceArgs& args) {
  const Tensor target = args.residual.data != nullptr ? args.residual : args.out;
  if (GoesInTwoRounds(target)) return;
  const DType wire = communicator_.wire_type();
  const int64_t bytes = target.rows * RowBytes(wire, target.cols);
  const char* own = ToWire(wire, static_cast<const float*>(args.partial.data),
                           target.rows * target.cols, pool_, &begun_wire_[n_begun_++ % 2]);
  static_cast<void>(communicator_.BeginExchange(own, bytes, bytes));
}

void SentRows::AddInTwoRounds(const char* own, const AllReduceArgs& args, Tensor target,
                              const Finish& finish) {
  const DType wire = communicator_.wire_type();
  const int64_t row_bytes = RowBytes(wire, target.cols);
  const auto world = static_cast<size_t>(communicator_.world());
  const auto rank = static_cast<size_t>(communicator_.rank());
  const auto first_of = [&](size_t r) {
    return target.rows * static_cast<int64_t>(r) / static_cast<int64_t>(world);
  };
  std::array<const void*, kMaxRanks> to, all;
  std::array<int64_t, kMaxRanks> bytes;
  int64_t most_bytes = 0;
  for (size_t r = 0; r < world; ++r) {
    const int64_t share = (first_of(r + 1) - first_of(r)) * row_bytes;
    most_bytes = std::max(most_bytes, share);
    to[r] = own == nullptr ? nullptr : own + first_of(r) * row_bytes;
    bytes[r] = own == nullptr ? 0 : share;
  }
  const auto of_ranks = [&](auto& array) { return std::span(array).first(world); };
  if (!communicator_.ExchangeEach(of_ranks(to), of_ranks(bytes), most_bytes, of_ranks(all))) return;

  const int64_t n = first_of(rank + 1) - first_of(rank);
  const int64_t elements = n * target.cols;
  auto* sums = static_cast<float*>(sums_.Get(elements * int64_t{sizeof(float)}));
  SumRows(of_ranks(all), args.bias, /*adds=*/false, {sums, n, target.cols, target.cols},
          [](int64_t, int32_t) {});
  const char* sent = ToWire(wire, sums, elements, pool_, &sent_sums_);
  if (!communicator_.Exchange(sent, n * row_bytes, most_bytes, of_ranks(all))) return;
  for (size_t r = 0; r < world; ++r) {
    const int64_t first = first_of(r);
    Tensor rows = target;
    rows.data = target.row<float>(first);
    rows.rows = first_of(r + 1) - first;
    SumRows({&all[r], 1}, nullptr, args.residual.data != nullptr, rows,
            [&](int64_t t, int32_t thread) { finish(first + t, thread); });
  }
}

void PostRows(Communicator& stages, Tensor rows, int32_t to, ThreadPool& pool, Scratch* wire) {
  const DType type = WireOf(stages);
  const int64_t n = rows.rows * rows.cols;
  const char* sent = ToWire(type, static_cast<const float*>(rows.data), n, pool, wire);
  static_cast<void>(stages.Post(sent, rows.rows * RowBytes(type, rows.cols), to));
}

void TakeRows(Communicator& stages, Tensor rows, int32_t from, ThreadPool& pool, Scratch* wire) {
  const DType type = WireOf(stages);
  const int64_t bytes = rows.rows * RowBytes(type, rows.cols);
  if (type == DType::kF32) {
    static_cast<void>(stages.Recv(rows.data, bytes, from));
    return;
  }
  const auto* received = static_cast<const uint16_t*>(wire->Get(bytes));
  if (!stages.Recv(wire->Get(bytes), bytes, from)) return;
  pool.ForRange(rows.rows, kNsPerRoundedElement * static_cast<double>(rows.cols),
                [&](int64_t first, int64_t last, int32_t) {
                  WidenBf16(received + first * rows.cols, (last - first) * rows.cols,
                            rows.row<float>(first));
                });
}

}  // namespace heddle::kernels::cpu
