#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/recurrence_slices.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

using Row = std::vector<double>;

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

// The rows of one sequence.
class SequenceRun {
 public:
  SequenceRun(const HostBatch& batch, const RecurrenceArgs& args, const RecurrencePages& pages,
              const RecurrenceSlice& slice)
      : batch_(batch), args_(args), shape_(args.shape), pages_(pages), slice_(slice) {}

  void Run() {
    for (int32_t i = 0; i < slice_.n; ++i) mixed_.push_back(Mix(i));
    for (int32_t head = 0; head < shape_.n_heads; ++head) ScanHead(head);
    for (int32_t i = 0; i < slice_.n; ++i) {
      Keep(i);
      Gate(args_.out.row<float>(slice_.first_row + i),
           args_.in.row<float>(slice_.first_row + i) + shape_.gate_column());
    }
  }

 private:
  int64_t Slot(int32_t i) const {
    return batch_.kv_slot[static_cast<size_t>(slice_.first_row + i)];
  }
  int64_t Page(int32_t i) const { return Slot(i) / args_.page_tokens; }
  int32_t Offset(int32_t i) const { return static_cast<int32_t>(Slot(i) % args_.page_tokens); }
  const float* In(int32_t i) const { return args_.in.row<float>(slice_.first_row + i); }

  // q, k and v of row i.
  Row Mix(int32_t i) const {
    Row row(static_cast<size_t>(shape_.channels()));
    for (int64_t c = 0; c < shape_.channels(); ++c) {
      double sum = args_.conv_bias == nullptr ? 0.0 : args_.conv_bias[c];
      for (int32_t tap = 0; tap < shape_.taps; ++tap) {
        const float* input =
            ConvolutionInput(args_, pages_, slice_, slice_.first_row + i, shape_.taps - 1 - tap);
        if (input != nullptr) sum += double{args_.conv[tap * shape_.channels() + c]} * input[c];
      }
      row[static_cast<size_t>(c)] = Silu(sum);
    }
    if (shape_.rule != RecurrenceRule::kGatedDelta) return row;
    for (int32_t h = 0; h < 2 * shape_.n_key_heads; ++h) {
      double* key = row.data() + int64_t{h} * shape_.key_dim;
      double squares = 1e-6;
      for (int32_t d = 0; d < shape_.key_dim; ++d) squares += key[d] * key[d];
      if (h < shape_.n_key_heads) squares *= shape_.key_dim;
      for (int32_t d = 0; d < shape_.key_dim; ++d) key[d] /= std::sqrt(squares);
    }
    return row;
  }

  // g and beta or dt.
  void StepOf(int32_t i, int32_t head, double* decay, double* gain) const {
    const double a = double{In(i)[shape_.step_column() + head]} + args_.step_bias[head];
    const double step = a > 20 ? a : std::log1p(std::exp(a));
    if (shape_.rule == RecurrenceRule::kGatedDelta) {
      *decay = args_.decay[head] * step;
      *gain = Sigmoid(In(i)[shape_.beta_column() + head]);
    } else {
      *gain = std::fmin(std::fmax(step, double{args_.min_step}), double{args_.max_step});
      *decay = args_.decay[head] * *gain;
    }
  }

  size_t Element(int32_t d, int32_t c) const {
    return static_cast<size_t>(d) * static_cast<size_t>(shape_.value_dim) + static_cast<size_t>(c);
  }

  // state = exp(decay) * state + key update^T
  void Add(double decay, const double* key, const double* update, Row* state) const {
    for (int32_t d = 0; d < shape_.key_dim; ++d) {
      for (int32_t c = 0; c < shape_.value_dim; ++c) {
        double& s = (*state)[Element(d, c)];
        s = std::exp(decay) * s + key[d] * update[c];
      }
    }
  }

  // Adds to a page's S what it keeps of the positions [from, to), which are in one part.
  void Replay(int64_t page, int32_t head, int32_t from, int32_t to, Row* state) const {
    const float* decays = pages_.decays(page, head, from);
    const float* updates = pages_.updates(page, head, from);
    const float* keys = pages_.keys(page, shape_.KeyHead(head), from);
    for (int32_t at = 0; at < to - from; ++at) {
      Row key, update;
      for (int32_t d = 0; d < shape_.key_dim; ++d) key.push_back(keys[d * kScanRows + at]);
      for (int32_t c = 0; c < shape_.value_dim; ++c) {
        update.push_back(updates[at * shape_.value_dim + c]);
      }
      Add(double{decays[at]} - (at == 0 ? 0.0 : decays[at - 1]), key.data(), update.data(), state);
    }
  }

  Row StateOf(int64_t page, int32_t head) const {
    const float* state = pages_.state(page, head);
    return Row(state, state + int64_t{shape_.key_dim} * shape_.value_dim);
  }
  void Store(const Row& state, int64_t page, int32_t head) const {
    for (size_t i = 0; i < state.size(); ++i) {
      pages_.state(page, head)[i] = static_cast<float>(state[i]);
    }
  }

  // S before the slice's first row. `border`: where the part of that row begins, whose S is stored.
  Row Begin(int32_t head) const {
    if (slice_.offset == 0) {
      Row state(static_cast<size_t>(shape_.key_dim) * shape_.value_dim, 0.0);
      if (slice_.page_before >= 0) {
        state = StateOf(slice_.page_before, head);
        Replay(slice_.page_before, head, pages_.border(slice_.page_before), args_.page_tokens,
               &state);
      }
      Store(state, slice_.page, head);
      return state;
    }
    Row state = StateOf(slice_.page, head);
    const int32_t border = pages_.border(slice_.page);
    const int32_t begin = slice_.offset - slice_.offset % kScanRows;
    HEDDLE_CHECK(border == begin || border == begin - kScanRows, "a snapshot of another position");
    if (border < begin) Replay(slice_.page, head, border, begin, &state);
    Store(state, slice_.page, head);
    if (slice_.offset > begin) Replay(slice_.page, head, begin, slice_.offset, &state);
    return state;
  }

  void ScanHead(int32_t head) {
    Row state = Begin(head);
    for (int32_t i = 0; i < slice_.n; ++i) {
      const int32_t offset = Offset(i);
      const bool begins = offset % kScanRows == 0;
      if (i > 0 && (offset == 0 || (begins && slice_.is_final()))) Store(state, Page(i), head);
      ScanRow(i, head, &state);
    }
  }

  void ScanRow(int32_t i, int32_t head, Row* state) {
    const int32_t offset = Offset(i);
    const double* query =
        mixed_[static_cast<size_t>(i)].data() + int64_t{shape_.KeyHead(head)} * shape_.key_dim;
    const double* key = query + shape_.keys();
    const double* value = mixed_[static_cast<size_t>(i)].data() + 2 * shape_.keys() +
                          int64_t{head} * shape_.value_dim;
    double decay = 0, gain = 0;
    StepOf(i, head, &decay, &gain);
    Row update(value, value + shape_.value_dim);
    for (int32_t c = 0; c < shape_.value_dim; ++c) {
      double seen = 0;
      for (int32_t d = 0; d < shape_.key_dim; ++d) {
        seen += key[d] * (*state)[Element(d, c)];
      }
      const bool is_delta = shape_.rule == RecurrenceRule::kGatedDelta;
      double& u = update[static_cast<size_t>(c)];
      u = gain * (u - (is_delta ? std::exp(decay) * seen : 0.0));
    }
    Add(decay, key, update.data(), state);
    float* out = args_.out.row<float>(slice_.first_row + i) + int64_t{head} * shape_.value_dim;
    for (int32_t c = 0; c < shape_.value_dim; ++c) {
      double sum = args_.skip == nullptr ? 0.0 : args_.skip[head] * value[c];
      for (int32_t d = 0; d < shape_.key_dim; ++d) {
        sum += query[d] * (*state)[Element(d, c)];
      }
      out[c] = static_cast<float>(sum);
    }
    const int32_t at = offset % kScanRows;
    float* decays = pages_.decays(Page(i), head, offset);
    decays[at] = static_cast<float>(decay + (at == 0 ? 0.0 : decays[at - 1]));
    float* updates = pages_.updates(Page(i), head, offset) + at * shape_.value_dim;
    for (int32_t c = 0; c < shape_.value_dim; ++c) {
      updates[c] = static_cast<float>(update[static_cast<size_t>(c)]);
    }
  }

  void Keep(int32_t i) const {
    const int32_t offset = Offset(i);
    std::memcpy(pages_.input(Page(i), offset), In(i),
                static_cast<size_t>(shape_.channels()) * sizeof(float));
    for (int32_t h = 0; h < shape_.n_key_heads; ++h) {
      float* keys = pages_.keys(Page(i), h, offset) + offset % kScanRows;
      for (int32_t d = 0; d < shape_.key_dim; ++d) {
        keys[d * kScanRows] = static_cast<float>(mixed_[static_cast<size_t>(i)][static_cast<size_t>(
            shape_.keys() + h * int64_t{shape_.key_dim} + d)]);
      }
    }
    const int32_t first_here = offset - i > 0 ? offset - i : 0;
    const int32_t at = slice_.is_final() ? offset : first_here;
    pages_.set_border(Page(i), at - at % kScanRows);
  }

  void Gate(float* row, const float* z) const {
    const int64_t width = args_.norm == nullptr ? shape_.values() : args_.norm_width;
    for (int64_t begin = 0; begin < shape_.values(); begin += width) {
      double squares = 0;
      Row x;
      for (int64_t c = begin; c < begin + width; ++c) {
        x.push_back(row[c] * (args_.gates_first ? Silu(z[c]) : 1.0));
        squares += x.back() * x.back();
      }
      const double root = std::sqrt(squares / static_cast<double>(width) + args_.norm_eps);
      for (int64_t c = begin; c < begin + width; ++c) {
        double y = x[static_cast<size_t>(c - begin)];
        if (args_.norm != nullptr) y *= args_.norm[args_.norm_per_value ? c : c - begin] / root;
        row[c] = static_cast<float>(args_.gates_first ? y : y * Silu(z[c]));
      }
    }
  }

  const HostBatch& batch_;
  const RecurrenceArgs& args_;
  const RecurrenceShape& shape_;
  const RecurrencePages& pages_;
  const RecurrenceSlice slice_;
  std::vector<Row> mixed_;
};

}  // namespace

void Recurrence(const HostBatch& batch, const RecurrenceArgs& args) {
  if (args.shape.is_selective()) return SelectiveScan(batch, args);
  const RecurrencePages pages(args);
  for (int32_t seq = 0; seq < batch.n_seqs(); ++seq) {
    const RecurrenceSlice slice = SliceOf(batch, args.page_tokens, seq);
    if (slice.n > 0) SequenceRun(batch, args, pages, slice).Run();
  }
}

void GateElements(Tensor gate, Tensor x) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t c = 0; c < x.cols; ++c) {
      float& value = x.row<float>(t)[c];
      value = static_cast<float>(value * Sigmoid(gate.row<float>(t)[c]));
    }
  }
}

}  // namespace heddle::kernels::reference
