#include "config/yaml_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "base/message.h"
#include "base/status.h"
#include "yaml-cpp/yaml.h"

namespace heddle::config {
namespace {

using base::Quote;
using base::StrCat;

constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status At(const std::string& path, const YAML::Mark& mark, const std::string& message) {
  return absl::InvalidArgumentError(StrCat(path, " line ", mark.line + 1, ": ", message));
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        StrCat("cannot open the configuration file ", Quote(path), ": ", std::strerror(errno)));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) {
    return absl::NotFoundError(StrCat("cannot read the configuration file ", Quote(path)));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        StrCat("the configuration file ", Quote(path), " has more than ", kMaxFileBytes, " bytes"));
  }
  return text;
}

absl::StatusOr<YamlSetting> ReadSetting(const std::string& path, const YAML::Node& key,
                                        const YAML::Node& value) {
  if (!key.IsScalar()) return At(path, key.Mark(), "an option's name must be a plain text");
  YamlSetting setting{key.Scalar(), {}, key.Mark().line + 1};
  if (value.IsScalar()) {
    setting.values.push_back(value.Scalar());
  } else if (value.IsSequence()) {
    for (const YAML::Node& item : value) {
      if (!item.IsScalar()) {
        return At(path, key.Mark(), StrCat(setting.key, " must be a list of plain values"));
      }
      setting.values.push_back(item.Scalar());
    }
  } else if (value.IsMap()) {
    return At(path, key.Mark(),
              StrCat(setting.key,
                     " must be one value or a list; options stand side by side in "
                     "this file, not in groups"));
  } else {
    return At(path, key.Mark(), StrCat(setting.key, " has no value"));
  }
  return setting;
}

absl::StatusOr<std::vector<YamlSetting>> ReadDocument(const std::string& path,
                                                      const std::string& text) {
  YAML::Node root = YAML::Load(text);
  std::vector<YamlSetting> settings;
  if (root.IsNull()) return settings;
  if (!root.IsMap()) return At(path, root.Mark(), "expected lines of the form `option: value`");
  std::set<std::string> seen;
  for (const auto& pair : root) {
    HEDDLE_ASSIGN_OR_RETURN(YamlSetting setting, ReadSetting(path, pair.first, pair.second));
    if (!seen.insert(setting.key).second) {
      return At(path, pair.first.Mark(), StrCat(setting.key, " stands there twice"));
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::vector<YamlSetting>> ReadYamlFile(const std::string& path) {
  HEDDLE_ASSIGN_OR_RETURN(std::string text, ReadText(path));
  try {
    return ReadDocument(path, text);
  } catch (const YAML::Exception& error) {
    return At(path, error.mark, error.msg);
  }
}

}  // namespace heddle::config
