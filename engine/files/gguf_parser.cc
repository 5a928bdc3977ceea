// Walks a GGUF file once, checks it, and fills a GgufFile with views. Nothing in the file is
// trusted until checked: the cursor never passes the end, and no count reserves more memory than
// the remaining bytes could need.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/message.h"
#include "base/status.h"
#include "engine/files/gguf.h"

namespace heddle::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place");

constexpr uint32_t kMagic = 0x46554747;        // "GGUF"
constexpr uint64_t kMaxKeyBytes = 65535;       // specification, gguf_metadata_kv_t
constexpr uint64_t kMaxTensorNameBytes = 256;  // the specification says 64; converters exceed it
constexpr uint32_t kMaxDimensions = 4;         // GGML_MAX_DIMS
constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

// The fewest bytes that an entry of each table can take.
constexpr uint64_t kMinMetadataBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

// Bytes of a scalar; 0 for strings and arrays.
uint64_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

// A friend of GgufFile (see gguf.h); only its two factories use it.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile* file) : bytes_(bytes), file_(*file) {}

  absl::Status Parse() {
    uint64_t num_tensors = 0;
    uint64_t num_metadata = 0;
    HEDDLE_RETURN_IF_ERROR(ParseHeader(&num_tensors, &num_metadata));
    for (uint64_t i = 0; i < num_metadata; ++i) HEDDLE_RETURN_IF_ERROR(ParseMetadata());
    HEDDLE_RETURN_IF_ERROR(ReadAlignment());
    std::vector<uint64_t> offsets;
    offsets.reserve(num_tensors);
    file_.tensors_.reserve(num_tensors);
    for (uint64_t i = 0; i < num_tensors; ++i) HEDDLE_RETURN_IF_ERROR(ParseTensor(&offsets));
    return PlaceTensors(offsets);
  }

 private:
  // A tensor's byte range, for the check that no two overlap.
  struct Extent {
    uint64_t begin;
    uint64_t end;
    size_t tensor;
  };

  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(base::StrCat(file_.name_, ": ", parts...));
  }

  uint64_t remaining() const { return bytes_.size() - at_; }

  // The next `count` bytes, or an error that says what was being read.
  absl::Status Take(uint64_t count, std::string_view what, std::span<const std::byte>* out) {
    if (count > remaining()) {
      return Error("truncated GGUF: ", what, " needs ", count, " bytes at offset ", at_,
                   ", the file has ", bytes_.size(), " bytes");
    }
    *out = bytes_.subspan(at_, count);
    at_ += count;
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Read(std::string_view what, T* out) {
    std::span<const std::byte> raw;
    HEDDLE_RETURN_IF_ERROR(Take(sizeof(T), what, &raw));
    std::memcpy(out, raw.data(), sizeof(T));
    return absl::OkStatus();
  }

  absl::Status ReadText(std::string_view what, uint64_t max_bytes, std::string_view* out) {
    uint64_t length = 0;
    HEDDLE_RETURN_IF_ERROR(Read(what, &length));
    if (length > max_bytes) {
      return Error(what, " at offset ", at_ - sizeof(length), " claims ", length,
                   " bytes, at most ", max_bytes, " are valid");
    }
    std::span<const std::byte> raw;
    HEDDLE_RETURN_IF_ERROR(Take(length, what, &raw));
    *out = AsText(raw);
    return absl::OkStatus();
  }

  absl::Status ReadType(std::string_view key, GgufType* out) {
    uint32_t id = 0;
    HEDDLE_RETURN_IF_ERROR(Read("a metadata type", &id));
    if (id > static_cast<uint32_t>(GgufType::kF64)) {
      return Error("metadata key ", base::Quote(key), " has value type ", id,
                   ", valid are 0 to 12");
    }
    *out = static_cast<GgufType>(id);
    return absl::OkStatus();
  }

  absl::Status ParseHeader(uint64_t* num_tensors, uint64_t* num_metadata) {
    uint32_t magic = 0;
    HEDDLE_RETURN_IF_ERROR(Read("the header", &magic));
    if (magic != kMagic) {
      return Error("not a GGUF file: it begins with ", base::Quote(AsText(bytes_.first(4))),
                   ", expected \"GGUF\"");
    }
    HEDDLE_RETURN_IF_ERROR(Read("the header", &file_.version_));
    if (file_.version_ != 2 && file_.version_ != 3) {
      bool big_endian = (file_.version_ & 0xffff) == 0 && file_.version_ != 0;
      return Error("GGUF version ", file_.version_, big_endian ? " (a big-endian file?)" : "",
                   " is not supported, expected 2 or 3");
    }
    HEDDLE_RETURN_IF_ERROR(Read("the header", num_tensors));
    HEDDLE_RETURN_IF_ERROR(Read("the header", num_metadata));
    HEDDLE_RETURN_IF_ERROR(CheckCount(*num_tensors, kMinTensorBytes, "tensors"));
    return CheckCount(*num_metadata, kMinMetadataBytes, "metadata entries");
  }

  absl::Status CheckCount(uint64_t count, uint64_t min_bytes, std::string_view what) const {
    if (count <= remaining() / min_bytes) return absl::OkStatus();
    return Error("the header claims ", count, " ", what, ", but only ", remaining(),
                 " bytes follow (at least ", min_bytes, " each)");
  }

  absl::Status ParseMetadata() {
    std::string_view key;
    HEDDLE_RETURN_IF_ERROR(ReadText("a metadata key", kMaxKeyBytes, &key));
    GgufFile::Value value;
    HEDDLE_RETURN_IF_ERROR(ReadType(key, &value.type));
    HEDDLE_RETURN_IF_ERROR(ParseValue(key, &value));
    if (!file_.metadata_.emplace(key, value).second) {
      return Error("metadata key ", base::Quote(key), " occurs twice");
    }
    return absl::OkStatus();
  }

  absl::Status ParseValue(std::string_view key, GgufFile::Value* value) {
    if (value->type == GgufType::kArray) return ParseArray(key, value);
    if (value->type == GgufType::kString) {
      HEDDLE_RETURN_IF_ERROR(Read(key, &value->count));
      return Take(value->count, key, &value->bytes);
    }
    return Take(ScalarBytes(value->type), key, &value->bytes);
  }

  absl::Status ParseArray(std::string_view key, GgufFile::Value* value) {
    HEDDLE_RETURN_IF_ERROR(ReadType(key, &value->element_type));
    HEDDLE_RETURN_IF_ERROR(Read(key, &value->count));
    uint64_t begin = at_;
    HEDDLE_RETURN_IF_ERROR(SkipElements(key, value->element_type, value->count, 1));
    value->bytes = bytes_.subspan(begin, at_ - begin);
    return absl::OkStatus();
  }

  // Moves past `count` elements, all inside the file.
  absl::Status SkipElements(std::string_view key, GgufType type, uint64_t count, int depth) {
    if (depth > kMaxArrayDepth) {
      return Error("metadata key ", base::Quote(key), " nests arrays deeper than ", kMaxArrayDepth);
    }
    uint64_t size = ScalarBytes(type);
    uint64_t min_bytes = size != 0 ? size : (type == GgufType::kString ? 8 : 12);
    if (count > remaining() / min_bytes) {
      return Error("metadata key ", base::Quote(key), " claims ", count, " elements of ",
                   Name(type), ", but only ", remaining(), " bytes follow");
    }
    if (size != 0) {
      at_ += count * size;
      return absl::OkStatus();
    }
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      if (type == GgufType::kString) {
        HEDDLE_RETURN_IF_ERROR(ReadText(key, std::numeric_limits<uint64_t>::max(), &text));
        continue;
      }
      GgufType element{};
      uint64_t length = 0;
      HEDDLE_RETURN_IF_ERROR(ReadType(key, &element));
      HEDDLE_RETURN_IF_ERROR(Read(key, &length));
      HEDDLE_RETURN_IF_ERROR(SkipElements(key, element, length, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    HEDDLE_ASSIGN_OR_RETURN(int64_t alignment, file_.IntOr("general.alignment", kDefaultAlignment));
    bool valid = alignment > 0 && static_cast<uint64_t>(alignment) <= kMaxAlignment &&
                 std::has_single_bit(static_cast<uint64_t>(alignment));
    if (!valid) {
      return Error("metadata key \"general.alignment\" is ", alignment,
                   ", expected a power of two up to ", kMaxAlignment);
    }
    alignment_ = static_cast<uint64_t>(alignment);
    return absl::OkStatus();
  }

  absl::Status ParseTensor(std::vector<uint64_t>* offsets) {
    GgufTensor tensor;
    HEDDLE_RETURN_IF_ERROR(ReadText("a tensor name", kMaxTensorNameBytes, &tensor.name));
    uint32_t num_dims = 0;
    HEDDLE_RETURN_IF_ERROR(Read("a tensor's dimensions", &num_dims));
    if (num_dims > kMaxDimensions) {
      return Error("tensor ", base::Quote(tensor.name), " has ", num_dims, " dimensions, at most ",
                   kMaxDimensions, " are valid");
    }
    for (uint32_t i = 0; i < num_dims; ++i) {
      uint64_t dim = 0;
      HEDDLE_RETURN_IF_ERROR(Read("a tensor's dimensions", &dim));
      if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Error("tensor ", base::Quote(tensor.name), " has dimension ", dim, ": overflow");
      }
      tensor.shape.push_back(static_cast<int64_t>(dim));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    uint32_t type_id = 0;
    HEDDLE_RETURN_IF_ERROR(Read("a tensor's type", &type_id));
    tensor.type = FindGgmlType(type_id);
    if (tensor.type == nullptr) {
      return Error("tensor ", base::Quote(tensor.name), " has type number ", type_id,
                   ", which is not a tensor type of GGUF");
    }
    HEDDLE_RETURN_IF_ERROR(Read("a tensor's offset", &offsets->emplace_back()));
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      return Error("tensor ", base::Quote(tensor.name), " occurs twice");
    }
    file_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  // Bytes of a tensor's data, refusing products that overflow and rows of broken blocks.
  absl::Status TensorBytes(const GgufTensor& tensor, uint64_t* out) const {
    uint64_t row = tensor.shape.empty() ? 1 : static_cast<uint64_t>(tensor.shape.back());
    uint64_t block = static_cast<uint64_t>(tensor.type->block_elements);
    if (row % block != 0) {
      return Error("tensor ", base::Quote(tensor.name), " has rows of ", row,
                   " elements, which are not", " whole blocks of ", block, " (", tensor.type->name,
                   ")");
    }
    uint64_t bytes = 0;
    uint64_t block_bytes = static_cast<uint64_t>(tensor.type->block_bytes);
    bool overflow = __builtin_mul_overflow(row / block, block_bytes, &bytes);
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
      uint64_t dim = static_cast<uint64_t>(tensor.shape[i]);
      overflow = overflow || __builtin_mul_overflow(bytes, dim, &bytes);
    }
    if (overflow) {
      return Error("tensor ", base::Quote(tensor.name), " has shape [",
                   absl::StrJoin(tensor.shape, ", "), "], whose size overflows");
    }
    *out = bytes;
    return absl::OkStatus();
  }

  // Gives each tensor its bytes; offsets count from the aligned end of the tensor table.
  absl::Status PlaceTensors(const std::vector<uint64_t>& offsets) {
    uint64_t data_begin = (at_ + alignment_ - 1) / alignment_ * alignment_;
    uint64_t data_bytes = bytes_.size() > data_begin ? bytes_.size() - data_begin : 0;
    std::vector<Extent> extents;
    extents.reserve(offsets.size());
    for (size_t i = 0; i < offsets.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      uint64_t size = 0;
      HEDDLE_RETURN_IF_ERROR(TensorBytes(tensor, &size));
      if (offsets[i] % alignment_ != 0) {
        return Error("tensor ", base::Quote(tensor.name), " has offset ", offsets[i],
                     ", which is not a multiple of the alignment ", alignment_);
      }
      if (size > data_bytes || offsets[i] > data_bytes - size) {
        return Error("tensor ", base::Quote(tensor.name), " (", size, " bytes at offset ",
                     offsets[i], ") ends past the file's ", data_bytes, " bytes of tensor data");
      }
      if (size == 0) continue;
      tensor.data = bytes_.subspan(data_begin + offsets[i], size);
      extents.push_back({offsets[i], offsets[i] + size, i});
    }
    return CheckDisjoint(std::move(extents));
  }

  absl::Status CheckDisjoint(std::vector<Extent> extents) const {
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < extents.size(); ++i) {
      if (extents[i].begin < extents[i - 1].end) {
        return Error("tensors ", base::Quote(file_.tensors_[extents[i - 1].tensor].name), " and ",
                     base::Quote(file_.tensors_[extents[i].tensor].name), " overlap in the file");
      }
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  uint64_t at_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
};

absl::StatusOr<GgufFile> GgufFile::Open(const std::filesystem::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path));
  HEDDLE_ASSIGN_OR_RETURN(GgufFile file, Parse(mapping.bytes(), path.string()));
  file.mapping_ = std::move(mapping);
  return file;
}

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  HEDDLE_RETURN_IF_ERROR(GgufParser(bytes, &file).Parse());
  return file;
}

}  // namespace heddle::engine
