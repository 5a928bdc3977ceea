#include "tests/support/gguf_writer.h"

#include <algorithm>

namespace heddle::test {
namespace {

using engine::GgufType;

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void AppendText(std::string_view text, std::string* out) {
  Append<uint64_t>(text.size(), out);
  out->append(text);
}

template <typename T>
std::string Scalar(T value) {
  std::string payload;
  Append(value, &payload);
  return payload;
}

template <typename T>
std::string ArrayOf(GgufType type, std::span<const T> values) {
  std::string payload;
  Append(static_cast<uint32_t>(type), &payload);
  Append<uint64_t>(values.size(), &payload);
  for (const T& value : values) Append(value, &payload);
  return payload;
}

void PadTo(uint64_t alignment, std::string* out) {
  while (out->size() % alignment != 0) out->push_back('\0');
}

}  // namespace

GgufWriter& GgufWriter::Raw(std::string_view key, GgufType type, std::string_view payload) {
  AppendText(key, &metadata_);
  Append(static_cast<uint32_t>(type), &metadata_);
  metadata_.append(payload);
  ++num_metadata_;
  return *this;
}

GgufWriter& GgufWriter::Alignment(uint32_t bytes) {
  alignment = bytes;
  return U32("general.alignment", bytes);
}

GgufWriter& GgufWriter::String(std::string_view key, std::string_view value) {
  std::string payload;
  AppendText(value, &payload);
  return Raw(key, GgufType::kString, payload);
}
GgufWriter& GgufWriter::U32(std::string_view key, uint32_t value) {
  return Raw(key, GgufType::kU32, Scalar(value));
}
GgufWriter& GgufWriter::F32(std::string_view key, float value) {
  return Raw(key, GgufType::kF32, Scalar(value));
}
GgufWriter& GgufWriter::Bool(std::string_view key, bool value) {
  return Raw(key, GgufType::kBool, Scalar<uint8_t>(value ? 1 : 0));
}

GgufWriter& GgufWriter::Strings(std::string_view key, std::span<const std::string> values) {
  std::string payload;
  Append(static_cast<uint32_t>(GgufType::kString), &payload);
  Append<uint64_t>(values.size(), &payload);
  for (const std::string& value : values) AppendText(value, &payload);
  return Raw(key, GgufType::kArray, payload);
}
GgufWriter& GgufWriter::Ints(std::string_view key, std::span<const int32_t> values) {
  return Raw(key, GgufType::kArray, ArrayOf(GgufType::kI32, values));
}
GgufWriter& GgufWriter::Floats(std::string_view key, std::span<const float> values) {
  return Raw(key, GgufType::kArray, ArrayOf(GgufType::kF32, values));
}

GgufWriter& GgufWriter::RawTensor(std::string_view name, uint32_t type,
                                  std::span<const uint64_t> dims, uint64_t offset) {
  AppendText(name, &infos_);
  Append(static_cast<uint32_t>(dims.size()), &infos_);
  for (uint64_t dim : dims) Append(dim, &infos_);
  Append(type, &infos_);
  Append(offset, &infos_);
  ++num_tensors_;
  return *this;
}

GgufWriter& GgufWriter::Tensor(std::string_view name, uint32_t type, std::span<const int64_t> shape,
                               std::span<const std::byte> data) {
  std::vector<uint64_t> dims(shape.rbegin(), shape.rend());
  RawTensor(name, type, dims, data_.size());
  data_.append(reinterpret_cast<const char*>(data.data()), data.size());
  PadTo(alignment, &data_);
  return *this;
}

std::string GgufWriter::Bytes() const {
  std::string bytes;
  Append(magic, &bytes);
  Append(version, &bytes);
  Append(num_tensors_ + static_cast<uint64_t>(extra_tensors), &bytes);
  Append(num_metadata_ + static_cast<uint64_t>(extra_metadata), &bytes);
  bytes += metadata_;
  bytes += infos_;
  if (num_tensors_ > 0) PadTo(alignment, &bytes);
  return bytes + data_;
}

}  // namespace heddle::test
