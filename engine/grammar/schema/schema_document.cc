#include "engine/grammar/schema/schema_document.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/schema_overlap.h"

namespace heddle::engine::grammar {
namespace {

// Paths are for people: long names or many of them would take more memory than the document.
constexpr size_t kMaxNameBytes = 80;
constexpr size_t kMaxPathBytes = 1024;
// Messages about what is dropped; more of them tell nobody more.
constexpr size_t kMaxDropped = 16;

// Begins a reference that Link made. A client's reference that begins so points at some schema of
// its own document.
constexpr std::string_view kLink = "\x01";

std::string PathBelow(const std::string& parent, std::string_view keyword, std::string_view name) {
  if (parent.size() > kMaxPathBytes) return parent;
  std::string path = base::StrCat(parent, "/", keyword);
  if (name.data() == nullptr) return path;
  return base::StrCat(path, "/", EscapePointer(name.substr(0, kMaxNameBytes)),
                      name.size() > kMaxNameBytes ? "..." : "");
}

}  // namespace

Json ObjectOf(const char* name, Json value) {
  Json object = Json::object();
  object[name] = std::move(value);
  return object;
}

SchemaDocument::SchemaDocument(const Json* root, Budget* budget, std::vector<std::string>* dropped)
    : root_(root),
      budget_(budget),
      dropped_(dropped),
      references_(root, budget),
      facts_(std::make_unique<FactsOfSchemas>(this)) {
  paths_.emplace(root, "#");
}

SchemaDocument::~SchemaDocument() = default;

Conjunction With(Conjunction conjunction, SchemaRef more) {
  if (std::find(conjunction.begin(), conjunction.end(), more) == conjunction.end()) {
    conjunction.push_back(more);
  }
  return conjunction;
}

absl::Status SchemaDocument::Error(SchemaRef schema, std::string_view message) const {
  return absl::InvalidArgumentError(
      base::StrCat("at ", base::Quote(PathOf(schema)), ": ", message));
}

absl::Status SchemaDocument::Unsupported(SchemaRef schema, std::string_view message) {
  absl::Status error = Error(schema, message);
  if (dropped_ == nullptr) return error;
  std::string text(error.message());
  if (dropped_->size() < kMaxDropped &&
      std::find(dropped_->begin(), dropped_->end(), text) == dropped_->end()) {
    dropped_->push_back(std::move(text));
  }
  return absl::OkStatus();
}

SchemaRef SchemaDocument::Child(SchemaRef parent, std::string_view keyword, const Json& child) {
  return Place(parent, keyword, {}, child);
}

SchemaRef SchemaDocument::Child(SchemaRef parent, std::string_view keyword, std::string_view name,
                                const Json& child) {
  return Place(parent, keyword, name, child);
}

SchemaRef SchemaDocument::Place(SchemaRef parent, std::string_view keyword, std::string_view name,
                                const Json& child) {
  if (SchemaRef linked = LinkedTo(child)) return linked;
  if (!paths_.contains(&child)) {
    // A schema that we made has the path of the schema that it was made from.
    std::string path = IsMade(parent) ? PathOf(parent) : PathBelow(PathOf(parent), keyword, name);
    paths_.emplace(&child, std::move(path));
    if (IsMade(parent)) is_made_.emplace(&child, 0);
  }
  return &child;
}

absl::StatusOr<SchemaRef> SchemaDocument::Resolve(SchemaRef schema, std::string_view keyword,
                                                  const Json& reference) {
  if (!reference.is_string()) {
    return Error(schema, base::StrCat(base::Quote(keyword), " must be a string"));
  }
  const auto& text = reference.get_ref<const std::string&>();
  SchemaReferences::Target target =
      references_.Outermost(keyword, text, references_.Find(schema, text));
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget_));
  if (target.schema == nullptr) {
    HEDDLE_RETURN_IF_ERROR(Unsupported(
        schema, base::StrCat(base::Quote(keyword), ": ", base::Quote(text),
                             " is nothing of this document; only references within it are "
                             "supported")));
    return nullptr;
  }
  paths_.try_emplace(target.schema, std::move(target.path));
  return target.schema;
}

const absl::StatusOr<StateMachine>& SchemaDocument::Pattern(const std::string& pattern) {
  auto known = patterns_.find(pattern);
  if (known == patterns_.end()) {
    known = patterns_.emplace(pattern, ParseRegex(pattern, RegexMatch::kSearch, budget_)).first;
  }
  return known->second;
}

SchemaRef SchemaDocument::Make(const Json& content, SchemaRef origin) {
  // Texts of schemas must be UTF-8, which the parser has checked.
  std::string text = content.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (auto known = made_by_text_.find(text); known != made_by_text_.end()) return known->second;
  made_.push_back(content);
  const SchemaRef made = &made_.back();
  is_made_.emplace(made, made_.size());
  paths_.emplace(made, std::string(PathOf(origin)));
  made_by_text_.emplace(std::move(text), made);
  return made;
}

Json SchemaDocument::Link(SchemaRef schema) {
  const auto [it, is_new] = link_of_.try_emplace(schema, links_.size());
  if (is_new) links_.push_back(schema);
  return ObjectOf("$ref", base::StrCat(kLink, it->second));
}

SchemaRef SchemaDocument::LinkedTo(const Json& schema) const {
  if (!schema.is_object() || schema.size() != 1 || schema.begin().key() != "$ref") return nullptr;
  const Json& value = *schema.begin();
  if (!value.is_string()) return nullptr;
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() < 2 || text.size() > 9 || text.rfind(kLink, 0) != 0 ||
      text.find_first_not_of("0123456789", 1) != std::string::npos) {
    return nullptr;
  }
  const size_t index = std::stoul(text.substr(1));
  return index < links_.size() ? links_[index] : nullptr;
}

SchemaRef SchemaDocument::Not(SchemaRef schema, SchemaRef origin) {
  if (schema->is_boolean()) return Make(!schema->get<bool>(), origin);
  if (schema->is_object() && schema->size() == 1 && schema->begin().key() == "not") {
    return Child(schema, "not", *schema->begin());
  }
  return Make(ObjectOf("not", Link(schema)), origin);
}

}  // namespace heddle::engine::grammar
