#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/recurrence_slices.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

using Doubles = std::vector<double>;

double GateOf(double x) { return x / (1.0 + std::exp(-x)); }

// The rows of one sequence.
class SelectiveRun {
 public:
  SelectiveRun(const HostBatch& batch, const RecurrenceArgs& args, const RecurrencePages& pages,
               const RecurrenceSlice& slice)
      : batch_(batch), args_(args), shape_(args.shape), pages_(pages), slice_(slice) {}

  void Convolve() {
    std::vector<Doubles> mixed;
    for (int64_t t = slice_.first_row; t < End(); ++t) mixed.push_back(Mix(t));
    for (int64_t t = slice_.first_row; t < End(); ++t) {
      const Doubles& row = mixed[static_cast<size_t>(t - slice_.first_row)];
      std::transform(row.begin(), row.end(), args_.out.row<float>(t),
                     [](double x) { return static_cast<float>(x); });
      std::memcpy(pages_.input(Page(t), Offset(t)), args_.in.row<float>(t),
                  static_cast<size_t>(shape_.values()) * sizeof(float));
    }
  }

  void Scan() {
    Doubles state = Begin();
    for (int64_t t = slice_.first_row; t < End(); ++t) {
      const bool begins_page = Offset(t) == 0;
      if (t == slice_.first_row || begins_page) {
        Store(state, Page(t));
        pages_.set_border(Page(t), Offset(t));
      }
      ScanRow(t, &state);
      if (!slice_.ends_behind()) continue;
      Store(state, Page(t));
      pages_.set_border(Page(t), Offset(t) + 1);
    }
  }

 private:
  int64_t End() const { return slice_.first_row + slice_.n; }
  int64_t Page(int64_t t) const {
    return batch_.kv_slot[static_cast<size_t>(t)] / args_.page_tokens;
  }
  int32_t Offset(int64_t t) const {
    return static_cast<int32_t>(batch_.kv_slot[static_cast<size_t>(t)] % args_.page_tokens);
  }

  Doubles Mix(int64_t t) const {
    const int64_t channels = shape_.values();
    Doubles row(static_cast<size_t>(channels));
    for (int64_t c = 0; c < channels; ++c) {
      double sum = args_.conv_bias == nullptr ? 0.0 : args_.conv_bias[c];
      for (int32_t tap = 0; tap < shape_.taps; ++tap) {
        const float* input = ConvolutionInput(args_, pages_, slice_, t, shape_.taps - 1 - tap);
        if (input != nullptr) sum += double{args_.conv[tap * channels + c]} * input[c];
      }
      row[static_cast<size_t>(c)] = GateOf(sum);
    }
    return row;
  }

  // Where S and the decays have an element.
  int64_t Element(int64_t c, int32_t d) const {
    return (c / kChannelBlock * shape_.key_dim + d) * kChannelBlock + c % kChannelBlock;
  }
  size_t StateSize() const {
    return static_cast<size_t>(ChannelBlocks(shape_.values()) * kChannelBlock * shape_.key_dim);
  }

  Doubles Load(int64_t page) const {
    const float* state = pages_.block_state(page, 0);
    return Doubles(state, state + StateSize());
  }
  void Store(const Doubles& state, int64_t page) const {
    std::transform(state.begin(), state.end(), pages_.block_state(page, 0),
                   [](double x) { return static_cast<float>(x); });
  }

  void Add(int64_t c, double step, double value, const float* key, Doubles* state) const {
    for (int32_t d = 0; d < shape_.key_dim; ++d) {
      double& s = (*state)[static_cast<size_t>(Element(c, d))];
      s = std::exp(step * args_.decay[Element(c, d)]) * s + step * value * key[d];
    }
  }

  void Replay(int64_t page, int32_t from, int32_t to, Doubles* state) const {
    HEDDLE_CHECK(from <= to && to - from <= kScanRows, "a snapshot of another position");
    for (int32_t offset = from; offset < to; ++offset) {
      for (int64_t c = 0; c < shape_.values(); ++c) {
        Add(c, pages_.kept_steps(page, offset)[c], pages_.kept_values(page, offset)[c],
            pages_.kept_keys(page, offset), state);
      }
    }
  }

  // S before the slice's first row.
  Doubles Begin() const {
    Doubles state(StateSize(), 0.0);
    const bool continues = slice_.offset > 0;
    const int64_t page = continues ? slice_.page : slice_.page_before;
    if (page < 0) return state;
    state = Load(page);
    Replay(page, pages_.border(page), continues ? slice_.offset : args_.page_tokens, &state);
    return state;
  }

  void ScanRow(int64_t t, Doubles* state) const {
    const float* key = args_.factors.row<float>(t);
    const float* query = key + shape_.key_dim;
    const float* in = args_.in.row<float>(t);
    float* out = args_.out.row<float>(t);
    for (int64_t c = 0; c < shape_.values(); ++c) {
      const double step = in[c] > 20 ? double{in[c]} : std::log1p(std::exp(double{in[c]}));
      const double value = out[c];
      Add(c, step, value, key, state);
      double sum = args_.skip == nullptr ? 0.0 : args_.skip[c] * value;
      for (int32_t d = 0; d < shape_.key_dim; ++d) {
        sum += query[d] * (*state)[static_cast<size_t>(Element(c, d))];
      }
      const double gate = args_.gates ? GateOf(in[shape_.gate_column() + c]) : 1.0;
      out[c] = static_cast<float>(sum * gate);
      pages_.kept_steps(Page(t), Offset(t))[c] = static_cast<float>(step);
      pages_.kept_values(Page(t), Offset(t))[c] = static_cast<float>(value);
    }
    std::memcpy(pages_.kept_keys(Page(t), Offset(t)), key,
                static_cast<size_t>(shape_.key_dim) * sizeof(float));
  }

  const HostBatch& batch_;
  const RecurrenceArgs& args_;
  const RecurrenceShape& shape_;
  const RecurrencePages& pages_;
  const RecurrenceSlice slice_;
};

}  // namespace

void SelectiveScan(const HostBatch& batch, const RecurrenceArgs& args) {
  const RecurrencePages pages(args);
  for (int32_t seq = 0; seq < batch.n_seqs(); ++seq) {
    const RecurrenceSlice slice = SliceOf(batch, args.page_tokens, seq);
    if (slice.n == 0) continue;
    SelectiveRun run(batch, args, pages, slice);
    if (args.factors.data == nullptr) {
      run.Convolve();
    } else {
      run.Scan();
    }
  }
}

}  // namespace heddle::kernels::reference
