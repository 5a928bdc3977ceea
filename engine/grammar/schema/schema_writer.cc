#include "engine/grammar/schema/schema_writer.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/lark/lark.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/json_text.h"
#include "engine/grammar/schema/schema_values.h"
#include "engine/grammar/schema/string_machine.h"

namespace heddle::engine::grammar {
namespace {

std::string Words(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// Objects with fewer properties are not worth a rule of their own, which costs a frame.
constexpr size_t kLeastSharedProperties = 16;

void AddTo(Signature* signature, const Conjunction& schemas) {
  Conjunction sorted = schemas;
  std::sort(sorted.begin(), sorted.end());
  signature->Add(sorted.size());
  for (SchemaRef schema : sorted) signature->Add(reinterpret_cast<uintptr_t>(schema));
}

// All that an object's texts depend on.
Signature SignatureOf(const ObjectConstraints& object) {
  Signature signature;
  signature.Add(object.properties.size());
  for (const ObjectConstraints::Property& property : object.properties) {
    signature.AddText(property.name);
    signature.Add(property.required ? 1 : 0);
    AddTo(&signature, property.schema);
  }
  signature.Add(object.extras.size());
  for (const ObjectConstraints::Extra& extra : object.extras) {
    for (const auto* patterns : {&extra.matching, &extra.others}) {
      signature.Add(patterns->size());
      for (const std::string& pattern : *patterns) signature.AddText(pattern);
    }
    AddTo(&signature, extra.schema);
  }
  AddTo(&signature, object.names);
  signature.Add(static_cast<uint64_t>(object.min_properties));
  signature.Add(static_cast<uint64_t>(object.max_properties));
  return signature;
}

}  // namespace

absl::Status SchemaWriter::At(const ValueConstraints& constraints,
                              const absl::Status& status) const {
  return document_.Error(constraints.where, Words(status));
}

absl::StatusOr<RuleId> SchemaWriter::Run() {
  HEDDLE_RETURN_IF_ERROR(WriteWhitespace());
  special_character_ = grammar_.AddRule("special-character", SpecialStringCharacter(&grammar_));
  const ExprId character =
      grammar_.Choice({grammar_.Chars(PlainStringCharacters()), grammar_.Call(special_character_)});
  string_ = grammar_.AddRule(
      "string", grammar_.Sequence({grammar_.Text(U"\""), grammar_.Repeat(character, 0, kUnbounded),
                                   grammar_.Text(U"\"")}));
  const bool in_form = options_.form.is_set();
  const RuleId root = in_form ? grammar_.DeclareRule("members") : RuleFor({document_.root()});
  if (in_form) HEDDLE_RETURN_IF_ERROR(WriteForm(root));
  while (!unwritten_.empty()) {
    const Unwritten next = std::move(unwritten_.front());
    unwritten_.pop_front();
    HEDDLE_RETURN_IF_ERROR(Spend(budget(), 1 + static_cast<int64_t>(next.schema.size())));
    HEDDLE_RETURN_IF_ERROR(WriteRule(next));
    if (rules_.size() > static_cast<size_t>(kMaxSubschemas)) {
      return absl::ResourceExhaustedError(
          base::StrCat("the schema has more than ", kMaxSubschemas, " combinations of subschemas"));
    }
  }
  return root;
}

absl::Status SchemaWriter::WriteWhitespace() {
  ExprId body = grammar_.Text(U"");
  if (!options_.whitespace_pattern.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine,
                            ParseRegex(options_.whitespace_pattern, RegexMatch::kWhole, budget()));
    body = grammar_.Machine(std::move(machine));
  } else if (options_.whitespace == JsonWhitespace::kFlexible) {
    // The indent is at most twenty levels of two spaces, so that a model cannot write blanks
    // without end.
    const ExprId indent = grammar_.Repeat(grammar_.Text(U" "), 0, 40);
    body = grammar_.Choice({grammar_.Text(U""), grammar_.Text(U" "),
                            grammar_.Sequence({grammar_.Text(U"\n"), indent})});
  } else {
    return absl::OkStatus();
  }
  whitespace_ = grammar_.AddRule("whitespace", body);
  return absl::OkStatus();
}

void SchemaWriter::Whitespace(MachineBuilder* machine, int32_t from, int32_t to) const {
  if (static_cast<int32_t>(whitespace_) < 0) {
    machine->Epsilon(from, to);
  } else {
    machine->Call(from, whitespace_, to);
  }
}

RuleId SchemaWriter::RuleFor(const Conjunction& schema) {
  Conjunction key = schema;
  std::sort(key.begin(), key.end());
  auto [it, is_new] = rules_.try_emplace(key, RuleId{-1});
  if (is_new) {
    it->second = grammar_.DeclareRule(schema.empty() ? "value" : document_.PathOf(schema.front()));
    unwritten_.push_back({schema, it->second});
  }
  return it->second;
}

absl::Status SchemaWriter::WriteRule(const Unwritten& next) {
  note_.clear();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Conjunction> alternatives,
                          Expand(&document_, next.schema));
  std::vector<ExprId> choices;
  for (const Conjunction& plain : alternatives) {
    HEDDLE_ASSIGN_OR_RETURN(const ValueConstraints constraints, Gather(&document_, plain));
    HEDDLE_ASSIGN_OR_RETURN(const ExprId value, ValueOf(constraints));
    choices.push_back(value);
  }
  if (choices.empty()) {
    choices.push_back(grammar_.Chars({}));
    note_ = base::StrCat("at ", base::Quote(document_.PathOf(next.schema.front())),
                         ": the conditions contradict each other");
  }
  const ExprId body = grammar_.Choice(std::move(choices));
  Rule& rule = grammar_.rules[Index(next.rule)];
  rule.body = body;
  rule.note = std::move(note_);
  return absl::OkStatus();
}

// An expression without texts. The reason is told if the whole schema has none.
ExprId SchemaWriter::Nothing(const ValueConstraints& c, std::string_view why) {
  if (note_.empty()) note_ = base::StrCat("at ", base::Quote(document_.PathOf(c.where)), ": ", why);
  return grammar_.Chars({});
}

// Values of which no two in one array or object may be equal.
ExprId SchemaWriter::Distinct(const ValueConstraints& c, ExprId body) {
  const RuleId rule = grammar_.AddRule(base::StrCat(document_.PathOf(c.where), "/distinct"), body);
  grammar_.rules[Index(rule)].is_distinct = true;
  return grammar_.Call(rule);
}

absl::StatusOr<ExprId> SchemaWriter::ValueOf(const ValueConstraints& c) {
  if (c.has_values) return EnumOf(c);
  std::vector<ExprId> choices;
  if ((c.types & kObjectType) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId object, SharedObjectOf(c));
    choices.push_back(object);
  }
  if ((c.types & kArrayType) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId array, ArrayOf(c));
    choices.push_back(array);
  }
  if ((c.types & kStringType) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId text, StringOf(c));
    choices.push_back(text);
  }
  if ((c.types & (kNumberType | kIntegerType)) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId number, NumberOf(c));
    choices.push_back(number);
  }
  for (const Json& word : {Json(true), Json(false), Json(nullptr)}) {
    const bool is_excluded =
        std::find(c.excluded.begin(), c.excluded.end(), word) != c.excluded.end();
    if ((c.types & TypeOf(word)) == 0 || is_excluded) continue;
    choices.push_back(grammar_.Text(std::string_view(word.dump())));
  }
  if (choices.empty()) return Nothing(c, "the conditions leave no type");
  return grammar_.Choice(std::move(choices));
}

// Schemas that differ only in what is not about objects (titles, defaults, items beside a "$ref")
// have one object: a hundred sections of a configuration that each may have all of its settings.
absl::StatusOr<ExprId> SchemaWriter::SharedObjectOf(const ValueConstraints& c) {
  if (c.object.properties.size() < kLeastSharedProperties) return ObjectOf(c);
  const Signature signature = SignatureOf(c.object);
  if (const auto known = objects_.find(signature); known != objects_.end()) {
    return grammar_.Call(known->second);
  }
  HEDDLE_ASSIGN_OR_RETURN(const ExprId body, ObjectOf(c));
  const RuleId rule = grammar_.AddRule(base::StrCat(document_.PathOf(c.where), "/object"), body);
  grammar_.rules[Index(rule)].note = note_;
  objects_.emplace(signature, rule);
  return grammar_.Call(rule);
}

absl::StatusOr<ExprId> SchemaWriter::EnumOf(const ValueConstraints& c) {
  const absl::StatusOr<std::vector<const Json*>> values = ListedValuesOf(&document_, c);
  if (!values.ok()) return At(c, values.status());
  std::vector<ExprId> choices;
  for (const Json* value : *values) {
    choices.push_back(grammar_.Text(std::string_view(value->dump())));
  }
  if (choices.empty())
    return Nothing(c, "none of the listed values satisfies the other conditions");
  return grammar_.Choice(std::move(choices));
}

absl::StatusOr<ExprId> SchemaWriter::NumberOf(const ValueConstraints& c) {
  NumberRange range = c.number;
  range.integer = (c.types & kNumberType) == 0;
  range.fractional = (c.types & kIntegerType) == 0;
  absl::StatusOr<StateMachine> machine = NumberMachine(range, budget());
  if (!machine.ok()) return At(c, machine.status());
  if (machine->IsEmpty()) return Nothing(c, WhyEmpty(range));
  return grammar_.Machine(*std::move(machine));
}

// The texts of a string's own grammar, if it has one: as they are within quotes, or plain.
absl::StatusOr<std::optional<ExprId>> SchemaWriter::GrammarOf(const ValueConstraints& c,
                                                              bool is_quoted) {
  if (c.string.grammars.empty()) return std::nullopt;
  StringConstraints others = c.string;
  others.grammars.clear();
  if (!others.Unbounded()) {
    HEDDLE_RETURN_IF_ERROR(document_.Unsupported(
        c.where, "\"x-lark\" beside other conditions on strings is not supported"));
  }
  absl::StatusOr<Grammar> grammar = ParseLark(c.string.grammars.front(), budget());
  if (grammar.ok() && is_quoted) grammar = WithinJsonString(*std::move(grammar), budget());
  if (!grammar.ok()) return At(c, grammar.status());
  return grammar_.Call(grammar_.Append(*std::move(grammar)));
}

absl::StatusOr<ExprId> SchemaWriter::StringOf(const ValueConstraints& c) {
  const StringConstraints& string = c.string;
  if (string.Unbounded()) return grammar_.Call(string_);
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<ExprId> grammar, GrammarOf(c, /*is_quoted=*/true));
  if (grammar) return grammar_.Sequence({grammar_.Text(U"\""), *grammar, grammar_.Text(U"\"")});
  if (string.max_length >= 0 && string.min_length > string.max_length) {
    return Nothing(c, base::StrCat("\"minLength\" ", string.min_length, " is above \"maxLength\" ",
                                   string.max_length));
  }
  const ExprId quote = grammar_.Text(U"\"");
  if (string.OnlyLengths()) {
    const ExprId character = grammar_.Choice(
        {grammar_.Chars(PlainStringCharacters()), grammar_.Call(special_character_)});
    return grammar_.Sequence(
        {quote,
         grammar_.Repeat(character, string.min_length,
                         string.max_length < 0 ? kUnbounded : string.max_length),
         quote});
  }
  const absl::StatusOr<StateMachine> machine = StringMachine(string, &document_);
  if (!machine.ok()) return At(c, machine.status());
  if (machine->IsEmpty()) return Nothing(c, "no text satisfies the conditions on strings");
  absl::StatusOr<StateMachine> written = InJsonString(*machine, budget());
  if (!written.ok()) return At(c, written.status());
  return grammar_.Sequence({quote, grammar_.Machine(*std::move(written)), quote});
}

}  // namespace heddle::engine::grammar
