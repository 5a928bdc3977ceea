#include "engine/grammar/schema/schema_document.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema/json_schema.h"

namespace heddle::engine::grammar {
namespace {

constexpr size_t kMaxAlternatives = 256;  // of one conjunction, products of anyOfs included

// Keywords that do not affect validity.
constexpr std::string_view kDescriptions[] = {"$schema",
                                              "$id",
                                              "$comment",
                                              "$anchor",
                                              "$defs",
                                              "$vocabulary",
                                              "definitions",
                                              "title",
                                              "description",
                                              "default",
                                              "examples",
                                              "example",
                                              "deprecated",
                                              "readOnly",
                                              "writeOnly",
                                              "contentMediaType",
                                              "contentEncoding",
                                              "contentSchema",
                                              "discriminator",
                                              "externalDocs",
                                              "id",
                                              "strict",
                                              "name"};

constexpr std::string_view kHonoured[] = {"$ref",
                                          "allOf",
                                          "anyOf",
                                          "oneOf",
                                          "type",
                                          "enum",
                                          "const",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum",
                                          "multipleOf",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "items",
                                          "prefixItems",
                                          "additionalItems",
                                          "minItems",
                                          "maxItems",
                                          "uniqueItems",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "patternProperties",
                                          "propertyNames",
                                          "minProperties",
                                          "maxProperties",
                                          "unevaluatedProperties",
                                          "unevaluatedItems"};

template <size_t n>
bool IsOneOf(std::string_view word, const std::string_view (&words)[n]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// Undoes the escapes of one step of a JSON pointer, and the URI's percent encoding.
std::string Unescape(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '%' && i + 2 < token.size() && std::isxdigit(token[i + 1]) != 0 &&
        std::isxdigit(token[i + 2]) != 0) {
      out.push_back(static_cast<char>(std::stoi(std::string(token.substr(i + 1, 2)), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(token[i]);
    }
  }
  for (auto [from, to] : {std::pair{"~1", '/'}, std::pair{"~0", '~'}}) {
    for (size_t at = 0; (at = out.find(from, at)) != std::string::npos; ++at) {
      out.replace(at, 2, 1, to);
    }
  }
  return out;
}

std::string Escape(std::string_view name) {
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

// Paths are for people: long names or many of them would take more memory than the document.
constexpr size_t kMaxNameBytes = 80;
constexpr size_t kMaxPathBytes = 1024;

std::string PathBelow(const std::string& parent, std::string_view keyword, std::string_view name) {
  if (parent.size() > kMaxPathBytes) return parent;
  std::string path = base::StrCat(parent, "/", keyword);
  if (name.data() == nullptr) return path;
  return base::StrCat(path, "/", Escape(name.substr(0, kMaxNameBytes)),
                      name.size() > kMaxNameBytes ? "..." : "");
}

// The schema with `$anchor`: name, searched in the whole document. Also null if the budget is over.
const Json* FindAnchor(const Json& value, std::string_view name, std::string* path,
                       Budget* budget) {
  if (!value.is_structured()) return nullptr;
  if (!Spend(budget, 1 + static_cast<int64_t>(value.size())).ok()) return nullptr;
  if (value.is_object()) {
    auto anchor = value.find("$anchor");
    if (anchor != value.end() && *anchor == name) return &value;
  }
  size_t index = 0;
  for (auto it = value.begin(); it != value.end(); ++it, ++index) {
    const size_t length = path->size();
    *path += base::StrCat("/", value.is_object() ? Escape(it.key()) : std::to_string(index));
    if (const Json* found = FindAnchor(*it, name, path, budget)) return found;
    path->resize(length);
  }
  return nullptr;
}

}  // namespace

Conjunction With(Conjunction conjunction, SchemaRef more) {
  if (std::find(conjunction.begin(), conjunction.end(), more) == conjunction.end()) {
    conjunction.push_back(more);
  }
  return conjunction;
}

namespace {

Conjunction WithLast(Conjunction conjunction, SchemaRef last) {
  conjunction.push_back(last);
  return conjunction;
}

}  // namespace

absl::Status SchemaDocument::Error(SchemaRef schema, std::string_view message) const {
  return absl::InvalidArgumentError(
      base::StrCat("at ", base::Quote(PathOf(schema)), ": ", message));
}

SchemaRef SchemaDocument::Child(SchemaRef parent, std::string_view keyword, const Json& child) {
  if (!paths_.contains(&child)) paths_.emplace(&child, PathBelow(PathOf(parent), keyword, {}));
  return &child;
}

SchemaRef SchemaDocument::Child(SchemaRef parent, std::string_view keyword, std::string_view name,
                                const Json& child) {
  if (!paths_.contains(&child)) paths_.emplace(&child, PathBelow(PathOf(parent), keyword, name));
  return &child;
}

absl::Status SchemaDocument::CheckKeywords(SchemaRef schema) const {
  if (schema->is_boolean()) return absl::OkStatus();
  if (!schema->is_object()) return Error(schema, "a schema must be an object or a boolean");
  for (auto it = schema->begin(); it != schema->end(); ++it) {
    const std::string& keyword = it.key();
    if (IsOneOf(keyword, kHonoured) || IsOneOf(keyword, kDescriptions)) continue;
    if (keyword.rfind("x-", 0) == 0) continue;
    return Error(schema, base::StrCat(base::Quote(keyword), " is not supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SchemaRef> SchemaDocument::Resolve(SchemaRef schema, const std::string& reference) {
  auto unknown = [&] {
    return Error(schema, base::StrCat("\"$ref\": ", base::Quote(reference),
                                      " is nothing of this document; only references within it "
                                      "are supported"));
  };
  HEDDLE_RETURN_IF_ERROR(Spend(budget_, static_cast<int64_t>(reference.size())));
  if (reference.empty() || reference[0] != '#') return unknown();
  if (reference == "#") return root_;
  if (reference[1] != '/') {
    std::string path = "#";
    const Json* found = FindAnchor(*root_, Unescape(reference.substr(1)), &path, budget_);
    if (found == nullptr) return unknown();
    paths_.try_emplace(found, path);
    return found;
  }
  const Json* at = root_;
  std::string_view rest = std::string_view(reference).substr(1);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string token = Unescape(rest.substr(1, end - 1));
    rest.remove_prefix(end);
    if (at->is_object() && at->contains(token)) {
      at = &at->at(token);
    } else if (at->is_array() && !token.empty() && token.size() < 7 &&
               token.find_first_not_of("0123456789") == std::string::npos &&
               std::stoul(token) < at->size()) {
      at = &at->at(std::stoul(token));
    } else {
      return unknown();
    }
  }
  paths_.try_emplace(at, reference.substr(0, kMaxPathBytes));
  return at;
}

absl::StatusOr<std::vector<SchemaRef>> SchemaDocument::Members(SchemaRef schema,
                                                               std::string_view keyword) {
  std::vector<SchemaRef> members;
  auto it = schema->find(std::string(keyword));
  if (it == schema->end()) return members;
  if (!it->is_array() || it->empty()) {
    return Error(schema, base::StrCat(base::Quote(keyword), " must be a list of schemas"));
  }
  size_t index = 0;
  for (const Json& member : *it) {
    members.push_back(Child(schema, keyword, std::to_string(index++), member));
  }
  return members;
}

absl::StatusOr<SchemaDocument::Alternatives> SchemaDocument::Expand(
    const Conjunction& conjunction) {
  Alternatives alternatives;
  const Conjunction reversed(conjunction.rbegin(), conjunction.rend());
  HEDDLE_RETURN_IF_ERROR(ExpandInto(reversed, {}, 0, &alternatives));
  return alternatives;
}

// `plain` is resolved already; the last of `rest` is next.
absl::Status SchemaDocument::ExpandInto(Conjunction rest, Conjunction plain, int depth,
                                        Alternatives* out) {
  if (depth > kMaxSchemaDepth) {
    return Error(root_, "references or alternatives lead to each other without end, or too deep");
  }
  while (!rest.empty()) {
    const SchemaRef schema = rest.back();
    rest.pop_back();
    HEDDLE_RETURN_IF_ERROR(
        Spend(budget_, 1 + static_cast<int64_t>(schema->size() + rest.size() + plain.size())));
    HEDDLE_RETURN_IF_ERROR(CheckKeywords(schema));
    if (schema->is_boolean()) {
      if (!schema->get<bool>()) return absl::OkStatus();
      continue;
    }
    if (std::find(plain.begin(), plain.end(), schema) != plain.end()) continue;
    plain.push_back(schema);
    if (auto ref = schema->find("$ref"); ref != schema->end()) {
      if (!ref->is_string()) return Error(schema, "\"$ref\" must be a string");
      HEDDLE_ASSIGN_OR_RETURN(const SchemaRef target, Resolve(schema, ref->get<std::string>()));
      rest.push_back(target);
    }
    HEDDLE_ASSIGN_OR_RETURN(std::vector<SchemaRef> all, Members(schema, "allOf"));
    // The first member is resolved first, because it determines the order of properties.
    rest.insert(rest.end(), all.rbegin(), all.rend());
    HEDDLE_ASSIGN_OR_RETURN(std::vector<SchemaRef> any, Members(schema, "anyOf"));
    HEDDLE_ASSIGN_OR_RETURN(std::vector<SchemaRef> one, Members(schema, "oneOf"));
    if (any.empty() && one.empty()) continue;
    if (!any.empty() && !one.empty()) {
      return Error(schema, "\"anyOf\" and \"oneOf\" side by side are not supported");
    }
    const size_t num_pairs = one.size() * (one.size() - std::min<size_t>(one.size(), 1)) / 2;
    if (out->exclusive_pairs.size() + num_pairs > static_cast<size_t>(kMaxSubschemas)) {
      return Error(schema, base::StrCat("more than ", kMaxSubschemas, " pairs of \"oneOf\""));
    }
    HEDDLE_RETURN_IF_ERROR(Spend(budget_, static_cast<int64_t>(num_pairs * (plain.size() + 1))));
    for (size_t i = 0; i < one.size(); ++i) {
      for (size_t k = i + 1; k < one.size(); ++k) {
        // The other conditions take part: they may be what keeps the alternatives disjoint.
        Conjunction context = plain;
        std::erase(context, schema);
        out->exclusive_pairs.push_back({With(context, one[i]), With(context, one[k]), schema});
      }
    }
    any.insert(any.end(), one.begin(), one.end());
    for (SchemaRef branch : any) {
      HEDDLE_RETURN_IF_ERROR(ExpandInto(WithLast(rest, branch), plain, depth + 1, out));
      if (out->any.size() > kMaxAlternatives) {
        return Error(schema,
                     base::StrCat("more than ", kMaxAlternatives, " combinations of alternatives"));
      }
    }
    return absl::OkStatus();
  }
  out->any.push_back(std::move(plain));
  return absl::OkStatus();
}

}  // namespace heddle::engine::grammar
