// A model's call, and what decoding it needs to know of the offered tools. Plain data.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle::server {

// Most bytes of a call before its arguments: a name and a few marks.
inline constexpr size_t kMaxCallHeaderBytes = 512;

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object
};

// Names and parameter types of the tools of one request: some formats write values without quotes,
// and only the schema tells whether 5 is a number or a string.
struct ToolSet {
  struct Tool {
    std::string name;
    std::vector<std::pair<std::string, std::string>> types;  // parameter to JSON Schema type
  };
  std::vector<Tool> tools;

  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  // The declared type of a parameter, or empty.
  std::string_view TypeOf(std::string_view tool, std::string_view parameter) const {
    const Tool* found = Find(tool);
    if (found == nullptr) return "";
    for (const auto& [name, type] : found->types) {
      if (name == parameter) return type;
    }
    return "";
  }

 private:
  const Tool* Find(std::string_view name) const {
    for (const Tool& tool : tools) {
      if (tool.name == name) return &tool;
    }
    return nullptr;
  }
};

}  // namespace heddle::server
