// Hyperparameters of a model by key, from config.json or from GGUF metadata, with one kind of error
// message: file, key, value found, what is valid. Private to engine/family.
//
// A key that is absent, or null in JSON, counts as missing. Borrows what it reads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/files/gguf.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

class ConfigSource {
 public:
  virtual ~ConfigSource() = default;

  virtual bool Has(std::string_view key) const = 0;
  virtual absl::StatusOr<int64_t> Int(std::string_view key) const = 0;
  virtual absl::StatusOr<double> Float(std::string_view key) const = 0;  // finite
  virtual absl::StatusOr<bool> Bool(std::string_view key) const = 0;
  virtual absl::StatusOr<std::string> String(std::string_view key) const = 0;

  // Dim reads a required integer in [1, max]; for DimOr it may be absent.
  absl::StatusOr<int32_t> Dim(std::string_view key, int64_t max) const;
  absl::StatusOr<int32_t> DimOr(std::string_view key, int64_t max, int32_t absent) const;
  // Required and optional numbers in (0, max].
  absl::StatusOr<double> Positive(std::string_view key, double max) const;
  absl::StatusOr<double> PositiveOr(std::string_view key, double max, double absent) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool absent) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string_view absent) const;

  // `<file>: "<key>" is <found>, expected <expected>`.
  absl::Status Error(std::string_view key, std::string_view found, std::string_view expected) const;
  // The same as UNIMPLEMENTED: the value is valid elsewhere, but not supported here.
  absl::Status Unsupported(std::string_view key, std::string_view found,
                           std::string_view expected) const;

  const std::string& file() const { return file_; }
  const std::string& prefix() const { return prefix_; }

 protected:
  using Keys = std::set<std::string, std::less<>>;

  // `prefix` stands before each key in the file ("llama."), or in messages ("rope_scaling.").
  ConfigSource(std::string file, std::string prefix)
      : file_(std::move(file)), prefix_(std::move(prefix)) {}

  void Note(std::string_view key) const { asked_->insert(prefix_ + std::string(key)); }
  bool WasAsked(std::string_view key) const { return asked_->contains(prefix_ + std::string(key)); }

  std::string file_;
  std::string prefix_;
  // The keys that somebody asked for, with their prefixes; shared with copies and with the objects
  // inside.
  std::shared_ptr<Keys> asked_ = std::make_shared<Keys>();
};

class JsonSource : public ConfigSource {
 public:
  // REQUIRES: `object` is a JSON object.
  JsonSource(std::string file, const nlohmann::json& object, std::string prefix = "");

  bool Has(std::string_view key) const override;
  absl::StatusOr<int64_t> Int(std::string_view key) const override;
  absl::StatusOr<double> Float(std::string_view key) const override;
  absl::StatusOr<bool> Bool(std::string_view key) const override;
  absl::StatusOr<std::string> String(std::string_view key) const override;

  // The object under `key`; absent if there is none.
  absl::StatusOr<std::optional<JsonSource>> Object(std::string_view key) const;
  // Whether the key is there with the value null.
  bool IsNull(std::string_view key) const;
  // The value under `key`; nullptr if absent or null.
  const nlohmann::json* Find(std::string_view key) const;

  // The keys that are there, not null, and were not asked for: of this object, and of those inside
  // of which any key was.
  struct UnreadKey;
  std::vector<UnreadKey> Unread() const;

  // A value as messages show it, cut to a reasonable length.
  static std::string Show(const nlohmann::json& value);

 private:
  const nlohmann::json* object_;
};

struct JsonSource::UnreadKey {
  JsonSource source;
  std::string key;
  const nlohmann::json* value;
};

class GgufSource : public ConfigSource {
 public:
  // Keys are given without their "<architecture>." prefix.
  GgufSource(const GgufFile& gguf, std::string_view architecture);

  bool Has(std::string_view key) const override;
  absl::StatusOr<int64_t> Int(std::string_view key) const override;
  absl::StatusOr<double> Float(std::string_view key) const override;
  absl::StatusOr<bool> Bool(std::string_view key) const override;
  absl::StatusOr<std::string> String(std::string_view key) const override;

  bool IsArray(std::string_view key) const { return gguf_.IsArray(FullKey(key)); }
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const {
    return gguf_.Ints(FullKey(key));
  }
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const {
    return gguf_.Floats(FullKey(key));
  }

  const GgufFile& gguf() const { return gguf_; }

  // The architecture's keys that were not asked for.
  std::vector<std::string> Unread() const;

 private:
  std::string FullKey(std::string_view key) const;

  const GgufFile& gguf_;
};

}  // namespace heddle::engine
