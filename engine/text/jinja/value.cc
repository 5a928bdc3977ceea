#include "engine/text/jinja/value.h"

#include "base/check.h"
#include "base/message.h"
#include "engine/text/jinja/dict.h"

namespace heddle::engine::text::jinja {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

std::string_view SequenceTypeName(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::kList:
      return "list";
    case SequenceKind::kTuple:
      return "tuple";
    case SequenceKind::kRange:
      return "range";
    case SequenceKind::kKeys:
      return "dict_keys";
    case SequenceKind::kValues:
      return "dict_values";
    case SequenceKind::kItems:
      return "dict_items";
    case SequenceKind::kGenerator:
      return "generator";
    case SequenceKind::kGroup:
      return "_GroupTuple";
  }
  return "sequence";
}

std::string_view KindTypeName(Kind kind, uint8_t tag) {
  switch (kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kWideInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return tag != 0 ? "Markup" : "str";
    case Kind::kSequence:
      return SequenceTypeName(static_cast<SequenceKind>(tag));
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

}  // namespace

Value Value::Float(double d) {
  Value v(Kind::kFloat);
  v.payload_.real = d;
  return v;
}

Value Value::String(std::string_view text, bool markup) {
  HEDDLE_CHECK(text.size() <= kMaxTextBytes, "a template's text is at most 1 GiB");
  Value v(Kind::kString);
  v.tag_ = markup ? 1 : 0;
  v.size_ = static_cast<uint32_t>(text.size());
  v.payload_.text = text.data();
  return v;
}

Value Value::Of(const Sequence* s, SequenceKind kind) {
  Value v(Kind::kSequence);
  v.tag_ = static_cast<uint8_t>(kind);
  v.payload_.sequence = s;
  return v;
}

Value Value::UndefinedVariable(std::string_view name) {
  Value v = String(name);
  v.kind_ = Kind::kUndefined;
  v.tag_ = static_cast<uint8_t>(Absence::kVariable);
  return v;
}

Value Value::UndefinedAttribute(const Value& object, std::string_view name) {
  Value v = UndefinedVariable(name);
  v.tag_ = static_cast<uint8_t>(Absence::kAttribute);
  v.owner_ = static_cast<uint8_t>(object.kind_);
  v.owner_tag_ = object.tag_;
  return v;
}

Value Value::UndefinedElement(const Value& object, int64_t index) {
  Value v(Kind::kUndefined, index);
  v.tag_ = static_cast<uint8_t>(Absence::kElement);
  v.owner_ = static_cast<uint8_t>(object.kind_);
  v.owner_tag_ = object.tag_;
  return v;
}

Value Value::UndefinedHint(std::string_view message) {
  Value v = UndefinedVariable(message);
  v.tag_ = static_cast<uint8_t>(Absence::kHint);
  return v;
}

double Value::AsDouble() const {
  if (kind_ == Kind::kFloat) return payload_.real;
  if (kind_ == Kind::kWideInt) return static_cast<double>(wide());
  return static_cast<double>(payload_.integer);
}

bool Value::Truthy() const {
  switch (kind_) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kWideInt:
      return payload_.integer != 0;
    case Kind::kFloat:
      return payload_.real != 0.0;
    case Kind::kString:
      return size_ != 0;
    case Kind::kSequence:
      return sequence_kind() == SequenceKind::kGenerator || sequence().size != 0;
    case Kind::kDict:
      return !dict().entries.empty();
    default:
      return true;
  }
}

std::string_view Value::TypeName() const { return KindTypeName(kind_, tag_); }

std::string Value::OwnerDescription() const {
  Kind owner = static_cast<Kind>(owner_);
  if (owner == Kind::kNone) return "None";
  return base::StrCat(KindTypeName(owner, owner_tag_), " object");
}

std::string Value::UndefinedMessage() const {
  switch (static_cast<Absence>(tag_)) {
    case Absence::kVariable:
      return base::StrCat("'", text(), "' is undefined");
    case Absence::kAttribute:
      return base::StrCat("'", OwnerDescription(), "' has no attribute '", text(), "'");
    case Absence::kElement:
      return base::StrCat(OwnerDescription(), " has no element ", payload_.integer);
    case Absence::kHint:
      break;
  }
  return std::string(text());
}

absl::Status TemplateError(std::string_view message) {
  return absl::InvalidArgumentError(absl::string_view(message.data(), message.size()));
}

absl::Status UndefinedError(const Value& undefined) {
  return TemplateError(undefined.UndefinedMessage());
}

}  // namespace heddle::engine::text::jinja
