#include "engine/grammar/schema/schema_references.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/message.h"

namespace heddle::engine::grammar {
namespace {

// Undoes the percent encoding of a URI's fragment.
std::string DecodePercents(std::string_view text) {
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && is_hex(text[i + 1]) && is_hex(text[i + 2])) {
      out.push_back(static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string UnescapePointer(std::string token) {
  for (auto [from, to] : {std::pair{"~1", '/'}, std::pair{"~0", '~'}}) {
    for (size_t at = 0; (at = token.find(from, at)) != std::string::npos; ++at) {
      token.replace(at, 2, 1, to);
    }
  }
  return token;
}

const Json* Follow(const Json* at, std::string_view pointer) {
  while (!pointer.empty()) {
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string token = UnescapePointer(std::string(pointer.substr(1, end - 1)));
    pointer.remove_prefix(end);
    if (at->is_object() && at->contains(token)) {
      at = &at->at(token);
    } else if (at->is_array() && !token.empty() && token.size() < 7 &&
               token.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(token) < at->size()) {
      at = &at->at(std::stoul(token));
    } else {
      return nullptr;
    }
  }
  return at;
}

bool HasScheme(std::string_view uri) {
  const size_t colon = uri.find(':');
  return colon != std::string_view::npos && colon > 0 && colon < uri.find_first_of("/?#");
}

// The identifier that `reference`, which has no fragment, stands for below `base`.
std::string Absolute(std::string_view base, std::string_view reference) {
  if (reference.empty()) return std::string(base);
  if (HasScheme(reference) || base.empty()) return std::string(reference);
  const size_t authority = base.find("://");
  const size_t path = authority == std::string_view::npos ? 0 : base.find('/', authority + 3);
  if (reference[0] == '/')
    return base::StrCat(base.substr(0, std::min(path, base.size())), reference);
  const size_t last = base.rfind('/');
  std::string_view folder =
      last == std::string_view::npos || last < path ? "" : base.substr(0, last + 1);
  while (reference.rfind("./", 0) == 0 || reference.rfind("../", 0) == 0) {
    const bool up = reference[1] == '.';
    reference.remove_prefix(up ? 3 : 2);
    if (up && folder.size() > 1)
      folder = folder.substr(0, folder.rfind('/', folder.size() - 2) + 1);
  }
  return base::StrCat(folder, reference);
}

// Identifiers with their paths are bounded like the document.
constexpr size_t kMaxTargetPathBytes = 1024;

}  // namespace

std::string EscapePointer(std::string_view name) {
  std::string out;
  for (char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

void SchemaReferences::MakeIndex() {
  is_indexed_ = true;
  if (root_->is_object()) {
    const auto schema = root_->find("$schema");
    if (schema != root_->end() && schema->is_string()) {
      const auto& name = schema->get_ref<const std::string&>();
      has_old_ids_ =
          name.find("draft-03") != std::string::npos || name.find("draft-04") != std::string::npos;
    }
  }
  std::string path = "#";
  by_id_.emplace("", Resource{root_, path});
  Index(*root_, "", &path);
}

// Registers what `schema` is called. `*base` becomes its own identifier, if it has one.
void SchemaReferences::IndexNames(const Json& schema, std::string* base, const std::string& path) {
  const auto text = [&schema](const char* keyword) -> std::string_view {
    const auto found = schema.find(keyword);
    if (found == schema.end() || !found->is_string()) return {};
    return found->get_ref<const std::string&>();
  };
  std::string_view id = text(has_old_ids_ ? "id" : "$id");
  const size_t hash = std::min(id.find('#'), id.size());
  const std::string_view fragment = id.substr(std::min(hash + 1, id.size()));
  id = id.substr(0, hash);
  if (!id.empty()) {
    *base = Absolute(*base, id);
    by_id_.try_emplace(*base, Resource{&schema, path});
    if (&schema == root_) root_base_ = *base;
  }
  for (std::string_view anchor : {text("$anchor"), text("$dynamicAnchor"), fragment}) {
    if (anchor.empty()) continue;
    by_anchor_.try_emplace(base::StrCat(*base, "#", anchor), Resource{&schema, path});
  }
}

// Looks at everything that could be a schema; what is none has no identifiers that are texts.
void SchemaReferences::Index(const Json& value, std::string base, std::string* path) {
  if (!value.is_structured()) return;
  if (!Spend(budget_, 1 + static_cast<int64_t>(value.size())).ok()) return;
  if (value.is_object()) {
    IndexNames(value, &base, *path);
    if (base != root_base_) base_of_.emplace(&value, base);
  }
  size_t index = 0;
  for (auto it = value.begin(); it != value.end(); ++it, ++index) {
    const size_t length = path->size();
    if (value.is_object() && (it.key() == "enum" || it.key() == "const")) continue;
    if (length < kMaxTargetPathBytes) {
      *path +=
          base::StrCat("/", value.is_object() ? EscapePointer(it.key()) : std::to_string(index));
    }
    Index(*it, base, path);
    path->resize(length);
  }
}

SchemaReferences::Target SchemaReferences::FindIn(const Resource& resource, const std::string& base,
                                                  std::string_view fragment) {
  if (fragment.empty()) return {resource.root, resource.path};
  const std::string decoded = DecodePercents(fragment);
  if (decoded[0] != '/') {
    const auto anchor = by_anchor_.find(base::StrCat(base, "#", decoded));
    if (anchor == by_anchor_.end()) return {};
    return {anchor->second.root, anchor->second.path};
  }
  return {Follow(resource.root, decoded), base::StrCat(resource.path, fragment)};
}

SchemaReferences::Target SchemaReferences::Find(const Json* from, std::string_view reference) {
  if (!Spend(budget_, static_cast<int64_t>(reference.size())).ok()) return {};
  if (!is_indexed_) MakeIndex();
  if (!StatusOf(budget_).ok()) return {};
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string_view fragment = reference.substr(std::min(hash + 1, reference.size()));
  const auto own = base_of_.find(from);
  const std::string& base = own == base_of_.end() ? root_base_ : own->second;
  const std::string id = Absolute(base, reference.substr(0, hash));
  const auto resource = by_id_.find(id);
  if (resource == by_id_.end()) return {};
  Target target = FindIn(resource->second, id, fragment);
  // Pointers of embedded schemas are often written as if from the document's root.
  if (target.schema == nullptr && hash == 0) {
    target = FindIn(by_id_.find("")->second, root_base_, fragment);
  }
  target.path.resize(std::min(target.path.size(), kMaxTargetPathBytes));
  return target;
}

SchemaReferences::Target SchemaReferences::Outermost(std::string_view keyword,
                                                     std::string_view reference,
                                                     Target target) const {
  const auto has = [](const Json* schema, const char* name, const Json& value) {
    if (schema == nullptr || !schema->is_object()) return false;
    const auto found = schema->find(name);
    return found != schema->end() && *found == value;
  };
  if (keyword == "$recursiveRef") {
    const bool is_dynamic =
        has(target.schema, "$recursiveAnchor", true) && has(root_, "$recursiveAnchor", true);
    return is_dynamic ? Target{root_, "#"} : target;
  }
  if (keyword != "$dynamicRef") return target;
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string name = DecodePercents(reference.substr(std::min(hash + 1, reference.size())));
  if (!has(target.schema, "$dynamicAnchor", name)) return target;
  const auto outer = by_anchor_.find(base::StrCat(root_base_, "#", name));
  const bool is_dynamic =
      outer != by_anchor_.end() && has(outer->second.root, "$dynamicAnchor", name);
  return is_dynamic ? Target{outer->second.root, outer->second.path} : target;
}

}  // namespace heddle::engine::grammar
