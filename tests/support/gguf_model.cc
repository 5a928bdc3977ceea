#include "tests/support/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "base/check.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/synthetic_weights.h"

namespace heddle::test {
namespace {

using nlohmann::json;

constexpr uint32_t kGgmlF32 = 0;

struct Matrix {
  std::vector<int64_t> shape;
  std::vector<float> values;

  int64_t rows() const { return shape.size() == 1 ? shape[0] : shape[shape.size() - 2]; }
  int64_t row_size() const { return static_cast<int64_t>(values.size()) / rows(); }
};

// Rows in the order that `source_of` says.
Matrix Reorder(const Matrix& from, const std::function<int64_t(int64_t)>& source_of) {
  Matrix to = from;
  const int64_t size = from.row_size();
  for (int64_t row = 0; row < from.rows(); ++row) {
    std::copy_n(from.values.begin() + source_of(row) * size, size, to.values.begin() + row * size);
  }
  return to;
}

// Within each head, row j of the first half and row j of the second become neighbours.
Matrix Permute(const Matrix& from, int64_t n_heads) {
  const int64_t dim = from.rows() / n_heads;
  return Reorder(
      from, [dim](int64_t row) { return row / dim * dim + row % 2 * (dim / 2) + row % dim / 2; });
}

// Within the first `rotary_dim` rows of each head, neighbours become row j of the first half and
// row j of the second.
Matrix Halve(const Matrix& from, int64_t n_heads, int64_t rotary_dim) {
  const int64_t dim = from.rows() / n_heads;
  return Reorder(from, [=](int64_t row) {
    const int64_t at = row % dim;
    if (at >= rotary_dim) return row;
    const int64_t half = rotary_dim / 2;
    return row - at + (at < half ? 2 * at : 2 * (at - half) + 1);
  });
}

// From groups of query heads, a key and a value to all queries, all keys, all values.
Matrix Regroup(const Matrix& from, int64_t n_heads, int64_t n_kv_heads) {
  const int64_t dim = from.rows() / (n_heads + 2 * n_kv_heads);
  const int64_t group = n_heads / n_kv_heads;
  return Reorder(from, [=](int64_t row) {
    const int64_t head = row / dim;
    const bool query = head < n_heads;
    const int64_t kv = query ? head / group : (head - n_heads) % n_kv_heads;
    const int64_t within = query ? head % group : group + (head - n_heads) / n_kv_heads;
    return (kv * (group + 2) + within) * dim + row % dim;
  });
}

Matrix Transpose(const Matrix& from) {
  Matrix to{{from.shape[1], from.shape[0]}, std::vector<float>(from.values.size())};
  for (int64_t r = 0; r < from.shape[0]; ++r) {
    for (int64_t c = 0; c < from.shape[1]; ++c) {
      to.values[c * from.shape[0] + r] = from.values[r * from.shape[1] + c];
    }
  }
  return to;
}

// Columns first, first + step and so on of the innermost dimension.
Matrix Slice(const Matrix& from, int64_t first, int64_t step) {
  Matrix to{from.shape, {}};
  const int64_t cols = from.shape.back();
  to.shape.back() = cols / step;
  for (size_t i = 0; i < from.values.size(); i += static_cast<size_t>(cols)) {
    for (int64_t c = first; c < cols; c += step) to.values.push_back(from.values[i + c]);
  }
  return to;
}

// Part `index` of `count` equal ones of each matrix's rows.
Matrix Part(const Matrix& from, int64_t index, int64_t count) {
  Matrix to{from.shape, {}};
  const int64_t rows = from.rows() / count;
  to.shape[to.shape.size() - 2] = rows;
  const int64_t cols = from.shape.back();
  const auto size = static_cast<int64_t>(from.values.size());
  for (int64_t at = 0; at < size; at += from.rows() * cols) {
    const auto begin = from.values.begin() + at + index * rows * cols;
    to.values.insert(to.values.end(), begin, begin + rows * cols);
  }
  return to;
}

// Such columns of each [rows, cols] of three dimensions as rows.
Matrix Columns(const Matrix& from, int64_t first, int64_t step) {
  const Matrix slice = Slice(from, first, step);
  Matrix to{{slice.shape[0], slice.shape[2], slice.shape[1]}, {}};
  const int64_t size = slice.shape[1] * slice.shape[2];
  for (int64_t e = 0; e < slice.shape[0]; ++e) {
    const auto begin = slice.values.begin() + e * size;
    const Matrix turned = Transpose({{slice.shape[1], slice.shape[2]}, {begin, begin + size}});
    to.values.insert(to.values.end(), turned.values.begin(), turned.values.end());
  }
  return to;
}

// The rows of kv_b, per head keys [nope] and then values [v]: the keys' transposed, or the values'.
Matrix HeadPart(const Matrix& from, bool keys, int64_t n_heads, int64_t nope, int64_t v) {
  const int64_t rank = from.shape[1];
  const int64_t rows = keys ? nope : v;
  Matrix to{{n_heads, keys ? rank : v, keys ? nope : rank}, {}};
  for (int64_t h = 0; h < n_heads; ++h) {
    const auto begin = from.values.begin() + (h * (nope + v) + (keys ? 0 : nope)) * rank;
    Matrix part{{rows, rank}, {begin, begin + rows * rank}};
    if (keys) part = Transpose(part);
    to.values.insert(to.values.end(), part.values.begin(), part.values.end());
  }
  return to;
}

// The sections [first, last) of each of n_heads heads, whose sections have these widths: section by
// section.
Matrix Sections(const Matrix& from, int64_t n_heads, const std::vector<int64_t>& widths,
                int64_t first, int64_t last) {
  Matrix to{from.shape, {}};
  const int64_t head_rows = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  int64_t before = 0;  // rows of a head
  for (int64_t s = 0; s < last; ++s) {
    const int64_t width = widths[static_cast<size_t>(s)];
    for (int64_t h = 0; h < n_heads && s >= first; ++h) {
      const auto begin = from.values.begin() + (h * head_rows + before) * from.row_size();
      to.values.insert(to.values.end(), begin, begin + width * from.row_size());
    }
    before += width;
  }
  to.shape[0] = static_cast<int64_t>(to.values.size()) / from.row_size();
  return to;
}

// Behind `skipped` rows, heads of `width` rows in `n_groups` groups: the first of each group, then
// the second of each.
Matrix Tiles(const Matrix& from, int64_t n_groups, int64_t width, int64_t skipped) {
  const int64_t rows = from.shape[0];
  const int64_t size = static_cast<int64_t>(from.values.size()) / rows;
  const int64_t group = (rows - skipped) / width / n_groups;
  Matrix to = from;
  for (int64_t row = skipped; row < rows; ++row) {
    const int64_t head = (row - skipped) / width;
    const int64_t source = head % n_groups * group + head / n_groups;
    const int64_t source_row = skipped + source * width + (row - skipped) % width;
    std::copy_n(from.values.begin() + source_row * size, size, to.values.begin() + row * size);
  }
  return to;
}

Matrix TilesThen(Matrix matrix, const json& operation) {
  const std::string then = operation.size() > 4 ? operation.at(4).get<std::string>() : "";
  if (then == "columns") matrix = Transpose(matrix);
  matrix = Tiles(matrix, operation.at(1), operation.at(2), operation.at(3));
  if (then == "columns") matrix = Transpose(matrix);
  if (then == "squeeze") matrix.shape.erase(matrix.shape.begin() + 1);
  for (float& value : matrix.values) {
    if (then == "minus_exp") value = -std::exp(value);
  }
  return matrix;
}

// Multiplies the first rows by a factor, then the next ones by another; 0 rows are all that are
// left.
Matrix Scale(Matrix matrix, const json& factors) {
  auto at = matrix.values.begin();
  for (const json& entry : factors) {
    const auto rows = entry.at(0).get<int64_t>();
    const auto end = rows == 0 ? matrix.values.end() : at + rows * matrix.row_size();
    for (; at != end; ++at) *at *= entry.at(1).get<float>();
  }
  return matrix;
}

// Part `index` of `count` of the columns of each [rows, cols] of three dimensions, as rows.
Matrix TurnedPart(const Matrix& from, int64_t index, int64_t count) {
  return Part(Columns(from, 0, 1), index, count);
}

Matrix Apply(Matrix matrix, const json& operation) {
  if (operation.empty()) return matrix;
  const std::string name = operation.at(0);
  if (name == "turned_part") return TurnedPart(matrix, operation.at(1), operation.at(2));
  if (name == "permute") return Permute(matrix, operation.at(1));
  if (name == "halve") return Halve(matrix, operation.at(1), operation.at(2));
  if (name == "regroup") return Regroup(matrix, operation.at(1), operation.at(2));
  if (name == "head_keys" || name == "head_values") {
    return HeadPart(matrix, name == "head_keys", operation.at(1), operation.at(2), operation.at(3));
  }
  if (name == "part") return Part(matrix, operation.at(1), operation.at(2));
  if (name == "slice") return Slice(matrix, operation.at(1), operation.at(2));
  if (name == "columns") return Columns(matrix, operation.at(1), operation.at(2));
  if (name == "transpose") return Transpose(matrix);
  if (name == "tiles") return TilesThen(matrix, operation);
  if (name == "column") {
    matrix.shape.push_back(1);
    const bool is_log = operation.at(1) == "minus_exp";
    for (float& value : matrix.values) value = is_log ? -std::exp(value) : value;
    return matrix;
  }
  if (name == "rows") {
    const int64_t rows = operation.at(1);
    matrix.shape = {rows, static_cast<int64_t>(matrix.values.size()) / rows};
    return matrix;
  }
  if (name == "scale") return Scale(std::move(matrix), operation.at(1));
  if (name == "sections") {
    return Sections(matrix, operation.at(1), operation.at(2), operation.at(3), operation.at(4));
  }
  if (name == "squeeze") {
    matrix.shape.erase(matrix.shape.begin() + 1);
    return matrix;
  }
  if (name == "behind") {
    const auto rows = operation.at(1).get<int64_t>();
    matrix.values.erase(matrix.values.begin(), matrix.values.begin() + rows * matrix.row_size());
    matrix.shape[0] -= rows;
    return matrix;
  }
  if (name == "minus_exp") {
    for (float& value : matrix.values) value = -std::exp(value);
    return matrix;
  }
  HEDDLE_CHECK(name == "add_one", "unknown operation " + name);
  for (float& value : matrix.values) value += 1.0f;
  return matrix;
}

Matrix Load(const Golden& folder, const std::string& name) {
  auto tensor = std::ranges::find(folder.tensors, name, &SyntheticTensor::name);
  HEDDLE_CHECK(tensor != folder.tensors.end(), "no tensor " + name);
  const int64_t count =
      std::accumulate(tensor->shape.begin(), tensor->shape.end(), int64_t{1}, std::multiplies<>());
  return {tensor->shape, SyntheticValues(name, count, tensor->scale, tensor->offset, folder.bits)};
}

// One tensor of the folder, or several (experts) stacked. Like the converter, without a dimension
// of one in front.
Matrix Stack(const GgufModel& model, const json& names) {
  const std::string first = names.at(0);
  if (const size_t slash = first.find('/'); slash != std::string::npos) {
    return Load(model.modules.at(first.substr(0, slash)), first.substr(slash + 1));
  }
  const Golden& folder = model.folder;
  Matrix stack = Load(folder, first);
  if (stack.shape.size() == 2 && stack.shape[0] == 1) stack.shape.erase(stack.shape.begin());
  if (names.size() == 1) return stack;
  stack.shape.insert(stack.shape.begin(), static_cast<int64_t>(names.size()));
  for (size_t i = 1; i < names.size(); ++i) {
    const Matrix part = Load(folder, names.at(i));
    stack.values.insert(stack.values.end(), part.values.begin(), part.values.end());
  }
  return stack;
}

void AddTensor(const std::string& name, const Matrix& matrix, GgufWriter* writer) {
  writer->Tensor(name, kGgmlF32, matrix.shape, std::as_bytes(std::span(matrix.values)));
}

void AddValue(const std::string& key, const json& value, GgufWriter* writer) {
  if (value.is_boolean()) {
    writer->Bool(key, value);
  } else if (value.is_number_integer()) {
    writer->U32(key, value);
  } else if (value.is_array() && value.at(0).is_string()) {
    const auto list = value.get<std::vector<std::string>>();
    writer->Strings(key, list);
  } else if (value.is_array() && (value.at(0).is_number_float() || value.at(0).is_null())) {
    std::vector<float> list;
    for (const json& number : value) {
      list.push_back(number.is_null() ? -std::numeric_limits<float>::infinity()
                                      : number.get<float>());
    }
    writer->Floats(key, list);
  } else if (value.is_array()) {
    const auto list = value.get<std::vector<int32_t>>();
    writer->Ints(key, list);
  } else if (value.is_string()) {
    writer->String(key, value.get<std::string>());
  } else {
    writer->F32(key, value);
  }
}

}  // namespace

std::vector<std::string> GgufModelNames() {
  std::vector<std::string> names;
  for (const json& entry : LoadGoldenJson("gguf_models.json")) names.push_back(entry.at("name"));
  return names;
}

GgufModel LoadGgufModel(const std::string& name) {
  for (const json& entry : LoadGoldenJson("gguf_models.json")) {
    if (entry.at("name") != name) continue;
    GgufModel model;
    model.folder.name = name;
    model.folder.config = std::make_shared<const json>(entry.at("config"));
    model.folder.dtype = "F32";
    for (const json& tensor : entry.at("tensors")) {
      model.folder.tensors.push_back({tensor.at(0), tensor.at(1), tensor.at(2), tensor.at(3)});
    }
    model.file = std::make_shared<const json>(entry);
    return model;
  }
  HEDDLE_CHECK(false, "no GGUF model " + name);
}

GgufModel LoadGgufGolden(const std::string& name) {
  return {.folder = LoadGolden(name),
          .modules = {},
          .file = std::make_shared<const json>(LoadGoldenJson(name + ".json"))};
}

std::filesystem::path WriteGguf(const GgufModel& model, const std::filesystem::path& path) {
  const json& file = *model.file;
  GgufWriter writer;
  writer.String("general.architecture", file.at("architecture").get<std::string>());
  for (const json& entry : file.at("metadata")) AddValue(entry.at(0), entry.at(1), &writer);
  for (const json& entry : file.at("file")) {
    AddTensor(entry.at(0), Apply(Stack(model, entry.at(2)), entry.at(1)), &writer);
  }
  if (const auto divisors = file.value("rope_freqs", std::vector<float>()); !divisors.empty()) {
    AddTensor("rope_freqs.weight", {{static_cast<int64_t>(divisors.size())}, divisors}, &writer);
  }
  for (const char* const which : {"short", "long"}) {
    const auto factors = file.value(std::string(which) + "_factors", std::vector<float>());
    if (factors.empty()) continue;
    AddTensor("rope_factors_" + std::string(which) + ".weight",
              {{static_cast<int64_t>(factors.size())}, factors}, &writer);
  }
  WriteFile(path, writer.Bytes());
  return path;
}

}  // namespace heddle::test
