#include "tests/support/safetensors_writer.h"

#include <fstream>

#include "base/check.h"
#include "nlohmann/json.hpp"

namespace heddle::test {

std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes.append(header).append(data);
  return bytes;
}

std::string SafetensorsBytes(std::span<const TensorToWrite> tensors) {
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const TensorToWrite& tensor : tensors) {
    size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return SafetensorsBytes(header.dump(), data);
}

void WriteFile(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  HEDDLE_CHECK(out.flush().good(), "cannot write " + path.string());
}

}  // namespace heddle::test
