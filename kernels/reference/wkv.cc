#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/wkv_pages.h"

namespace heddle::kernels::reference {
namespace {

double Logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// One head of a row: what S takes in.
struct HeadRow {
  std::vector<float> parts[WkvState::kParts];  // w, k, v, kk, kk * a
};

HeadRow MixHead(const WkvArgs& args, int64_t t, int64_t at) {
  const auto dim = static_cast<size_t>(args.head_dim);
  HeadRow row;
  for (std::vector<float>& part : row.parts) part.resize(dim);
  double squares = 0;
  for (size_t i = 0; i < dim; ++i) {
    const int64_t c = at + static_cast<int64_t>(i);
    const double k = args.k.row<float>(t)[c];
    squares += std::pow(k * args.key_scale[c], 2);
  }
  const double length = std::max(std::sqrt(squares), 1e-12);
  for (size_t i = 0; i < dim; ++i) {
    const int64_t c = at + static_cast<int64_t>(i);
    const double k = args.k.row<float>(t)[c];
    const double a = Logistic(args.a.row<float>(t)[c]);
    double v = args.v.row<float>(t)[c];
    if (args.m.data != nullptr) {
      v += Logistic(args.m.row<float>(t)[c]) * (args.first_value.row<float>(t)[c] - v);
    }
    const double unit = k * args.key_scale[c] / length;
    row.parts[0][i] =
        static_cast<float>(std::exp(-std::exp(-0.5) * Logistic(args.w.row<float>(t)[c])));
    row.parts[1][i] = static_cast<float>(k * (1 + (a - 1) * args.key_mix[c]));
    row.parts[2][i] = static_cast<float>(v);
    row.parts[3][i] = static_cast<float>(unit);
    row.parts[4][i] = static_cast<float>(unit * a);
  }
  return row;
}

// Takes a row in, and writes its output unless r is nullptr.
void Step(const float* const (&parts)[WkvState::kParts], const float* r, int64_t dim, float* s,
          float* out) {
  for (int64_t c = 0; c < dim; ++c) {
    double seen = 0;
    for (int64_t j = 0; j < dim; ++j) seen += double{parts[3][j]} * s[j * dim + c];
    double sum = 0;
    for (int64_t j = 0; j < dim; ++j) {
      const double next = double{parts[0][j]} * s[j * dim + c] - parts[4][j] * seen +
                          double{parts[1][j]} * parts[2][c];
      s[j * dim + c] = static_cast<float>(next);
      if (r != nullptr) sum += r[j] * next;
    }
    if (r != nullptr) out[c] = static_cast<float>(sum);
  }
}

void FinishHead(const WkvArgs& args, const HeadRow& row, int64_t t, int64_t at) {
  const int64_t dim = args.head_dim;
  float* const o = args.out.row<float>(t) + at;
  const float* const r = args.r.row<float>(t) + at;
  double mean = 0, squares = 0, bonus = 0;
  for (int64_t i = 0; i < dim; ++i) mean += o[i] / static_cast<double>(dim);
  for (int64_t i = 0; i < dim; ++i) {
    squares += (o[i] - mean) * (o[i] - mean) / static_cast<double>(dim);
    bonus += double{r[i]} * row.parts[1][static_cast<size_t>(i)] * args.bonus[at + i];
  }
  for (int64_t i = 0; i < dim; ++i) {
    const double normed =
        args.norm == nullptr
            ? double{o[i]}
            : (o[i] - mean) / std::sqrt(squares + args.norm_eps) * args.norm[at + i] +
                  args.norm_bias[at + i];
    const double added = normed + bonus * row.parts[2][static_cast<size_t>(i)];
    const double gate = args.gate.data == nullptr ? 1.0 : args.gate.row<float>(t)[at + i];
    o[i] = static_cast<float>(added * gate);
  }
}

void RunHead(const HostBatch& batch, const WkvArgs& args, const WkvPages& pages,
             const RecurrenceSlice& slice, int32_t head) {
  const RowPlaces places(batch, args.page_tokens);
  const int64_t dim = args.head_dim;
  const int64_t at = head * dim;
  std::vector<HeadRow> rows;
  rows.reserve(static_cast<size_t>(slice.n));
  for (int32_t i = 0; i < slice.n; ++i) rows.push_back(MixHead(args, slice.first_row + i, at));
  std::vector<float> s(static_cast<size_t>(dim * dim));
  WalkSlice(
      places, pages, slice, head, s.data(),
      [&](float* state, int64_t page, int32_t offset) {
        const float* parts[WkvState::kParts];
        for (int64_t i = 0; i < WkvState::kParts; ++i) parts[i] = pages.row(page, offset, i) + at;
        Step(parts, nullptr, dim, state, nullptr);
      },
      [&](float* state, int64_t first, int32_t n) {
        for (int64_t t = first; t < first + n; ++t) {
          const HeadRow& row = rows[static_cast<size_t>(t - slice.first_row)];
          const float* parts[WkvState::kParts];
          for (int64_t i = 0; i < WkvState::kParts; ++i) parts[i] = row.parts[i].data();
          Step(parts, args.r.row<float>(t) + at, dim, state, args.out.row<float>(t) + at);
        }
      });
  for (int32_t i = 0; i < slice.n && !slice.ends_behind(); ++i) {
    const int64_t t = slice.first_row + i;
    for (int64_t part = 0; part < WkvState::kParts; ++part) {
      std::copy_n(rows[static_cast<size_t>(i)].parts[part].data(), dim,
                  pages.row(places.Page(t), places.Offset(t), part) + at);
    }
  }
  for (int32_t i = 0; i < slice.n; ++i) {
    FinishHead(args, rows[static_cast<size_t>(i)], slice.first_row + i, at);
  }
}

}  // namespace

void TokenShift(const HostBatch& batch, const TokenShiftArgs& args) {
  for (int32_t seq = 0; seq < batch.n_seqs(); ++seq) {
    const RecurrenceSlice slice = SliceOf(batch, args.page_tokens, seq);
    for (int32_t i = 0; i < slice.n; ++i) {
      const int64_t t = slice.first_row + i;
      const float* x = args.x.row<float>(t);
      const float* before = i > 0 ? args.x.row<float>(t - 1) : ShiftBefore(args, slice);
      for (int64_t c = 0; c < args.n_mixes * args.x.cols; ++c) {
        const int64_t at = c % args.x.cols;
        const double other = before == nullptr ? 0.0 : before[at];
        args.out.row<float>(t)[c] =
            static_cast<float>(x[at] + args.mix[c] * (other - double{x[at]}));
      }
    }
    ForKeptRows(batch, slice, args.page_tokens, WkvState::kShiftRows,
                [&](int64_t t, int64_t page, int32_t offset, int64_t) {
                  std::copy_n(args.x.row<float>(t), args.x.cols, ShiftRow(args, page, offset));
                });
  }
}

void TimeMix(const HostBatch& batch, const WkvArgs& args) {
  const WkvPages pages(args);
  for (int32_t seq = 0; seq < batch.n_seqs(); ++seq) {
    const RecurrenceSlice slice = SliceOf(batch, args.page_tokens, seq);
    for (int32_t head = 0; head < args.n_heads; ++head) RunHead(batch, args, pages, slice, head);
    SetRowBorders(RowPlaces(batch, args.page_tokens), slice, pages);
    for (int64_t t = slice.first_row; args.m.data == nullptr && t < slice.first_row + slice.n;
         ++t) {
      std::copy_n(args.v.row<float>(t), pages.width(), args.first_value.row<float>(t));
    }
  }
}

void SquashElements(Squash kind, Tensor x) {
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t i = 0; i < x.cols; ++i) {
      float& value = x.row<float>(t)[i];
      value =
          static_cast<float>(kind == Squash::kTanh ? std::tanh(double{value}) : Logistic(value));
    }
  }
}

}  // namespace heddle::kernels::reference
