#include "engine/grammar/schema/schema_writer.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema/json_text.h"

namespace heddle::engine::grammar {
namespace {

std::string Words(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// Finds the rules that derive any text, as a fixed point.
class DerivingRules {
 public:
  DerivingRules(const Grammar& grammar, Budget* budget)
      : grammar_(grammar), budget_(budget), derives_(grammar.rules.size(), false) {}

  absl::StatusOr<std::vector<bool>> Run() {
    for (bool changed = true; changed;) {
      changed = false;
      HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> exprs, DerivingExprs());
      for (size_t r = 0; r < grammar_.rules.size(); ++r) {
        const bool now = exprs[Index(grammar_.rules[r].body)];
        changed |= now != derives_[r];
        derives_[r] = now;
      }
    }
    return std::move(derives_);
  }

 private:
  // An expression's parts come before it.
  absl::StatusOr<std::vector<bool>> DerivingExprs() {
    std::vector<bool> derives(grammar_.exprs.size(), false);
    const auto of = [&](ExprId id) -> bool { return derives[Index(id)]; };
    for (size_t i = 0; i < grammar_.exprs.size(); ++i) {
      const Expr& expr = grammar_.exprs[i];
      const auto& parts = expr.parts;
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1 + static_cast<int64_t>(parts.size())));
      switch (expr.kind) {
        case ExprKind::kChars:
          derives[i] = !expr.chars.empty();
          break;
        case ExprKind::kSequence:
          derives[i] = std::all_of(parts.begin(), parts.end(), of);
          break;
        case ExprKind::kChoice:
          derives[i] = std::any_of(parts.begin(), parts.end(), of);
          break;
        case ExprKind::kRepeat:
          derives[i] = expr.min == 0 || of(parts[0]);
          break;
        case ExprKind::kRule:
          derives[i] = derives_[Index(expr.rule)];
          break;
        case ExprKind::kMachine: {
          HEDDLE_ASSIGN_OR_RETURN(
              derives[i], MachineDerives(grammar_.machines[static_cast<size_t>(expr.machine)]));
          break;
        }
        default:
          derives[i] = true;
      }
    }
    return derives;
  }

  // Whether the machine can reach an end through characters and rules that derive something.
  absl::StatusOr<bool> MachineDerives(const StateMachine& machine) {
    std::vector<int32_t> work = {0};
    std::vector<bool> seen(machine.states.size(), false);
    seen[0] = true;
    const auto reach = [&](int32_t target) {
      if (seen[static_cast<size_t>(target)]) return;
      seen[static_cast<size_t>(target)] = true;
      work.push_back(target);
    };
    for (size_t i = 0; i < work.size(); ++i) {
      const MachineState& state = machine.states[static_cast<size_t>(work[i])];
      if (state.accepting) return true;
      HEDDLE_RETURN_IF_ERROR(
          Spend(budget_, 1 + static_cast<int64_t>(state.chars.size() + state.calls.size())));
      for (const CharEdge& edge : state.chars) reach(edge.target);
      for (const CallEdge& call : state.calls) {
        if (derives_[static_cast<size_t>(call.rule)]) reach(call.target);
      }
    }
    return false;
  }

  const Grammar& grammar_;
  Budget* const budget_;
  std::vector<bool> derives_;  // [rules]
};

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
  HEDDLE_RETURN_IF_ERROR(CheckDisjoint());
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
  HEDDLE_ASSIGN_OR_RETURN(const SchemaDocument::Alternatives alternatives,
                          document_.Expand(next.schema));
  for (const SchemaDocument::Alternatives::Pair& pair : alternatives.exclusive_pairs) {
    Conjunction both = pair.a;
    for (SchemaRef schema : pair.b) both = With(both, schema);
    disjoint_.push_back({RuleFor(both), pair.one_of});
  }
  std::vector<ExprId> choices;
  for (const Conjunction& plain : alternatives.any) {
    HEDDLE_ASSIGN_OR_RETURN(const ValueConstraints constraints, Gather(&document_, plain));
    HEDDLE_ASSIGN_OR_RETURN(const ExprId value, ValueOf(constraints));
    choices.push_back(value);
  }
  if (choices.empty()) choices.push_back(grammar_.Chars({}));
  const ExprId body = grammar_.Choice(std::move(choices));
  grammar_.rules[Index(next.rule)].body = body;
  return absl::OkStatus();
}

absl::Status SchemaWriter::CheckDisjoint() const {
  if (disjoint_.empty()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> derives, DerivingRules(grammar_, budget()).Run());
  for (const Disjoint& pair : disjoint_) {
    if (!derives[Index(pair.both)]) continue;
    return document_.Error(pair.one_of,
                           "\"oneOf\" whose alternatives are not disjoint is not supported; use "
                           "\"anyOf\", or a required property with a \"const\" of its own in each");
  }
  return absl::OkStatus();
}

absl::StatusOr<ExprId> SchemaWriter::ValueOf(const ValueConstraints& c) {
  if (c.has_values) return EnumOf(c);
  std::vector<ExprId> choices;
  if ((c.types & kObjectType) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId object, ObjectOf(c));
    choices.push_back(object);
  }
  if ((c.types & kArrayType) != 0) {
    absl::StatusOr<ExprId> array = c.array.unique ? UniqueArrayOf(c) : ArrayOf(c);
    if (!array.ok()) return array.status();
    choices.push_back(*array);
  }
  if ((c.types & kStringType) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId text, StringOf(c));
    choices.push_back(text);
  }
  if ((c.types & (kNumberType | kIntegerType)) != 0) {
    HEDDLE_ASSIGN_OR_RETURN(const ExprId number, NumberOf(c));
    choices.push_back(number);
  }
  if ((c.types & kBooleanType) != 0) {
    choices.push_back(grammar_.Text(U"true"));
    choices.push_back(grammar_.Text(U"false"));
  }
  if ((c.types & kNullType) != 0) choices.push_back(grammar_.Text(U"null"));
  if (choices.empty()) return grammar_.Chars({});
  return grammar_.Choice(std::move(choices));
}

absl::StatusOr<bool> SchemaWriter::Satisfies(const Json& value, const ValueConstraints& c) {
  HEDDLE_RETURN_IF_ERROR(Spend(budget(), 1));
  switch (value.type()) {
    case Json::value_t::null:
      return (c.types & kNullType) != 0;
    case Json::value_t::boolean:
      return (c.types & kBooleanType) != 0;
    case Json::value_t::string: {
      if ((c.types & kStringType) == 0) return false;
      if (c.string.Unbounded()) return true;
      HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, StringMachine(c.string, budget()));
      Grammar scratch;
      const ExprId text = scratch.Text(std::string_view(value.get_ref<const std::string&>()));
      return machine.Accepts(scratch.exprs[Index(text)].text);
    }
    case Json::value_t::object:
    case Json::value_t::array: {
      const bool object = value.is_object();
      if ((c.types & (object ? kObjectType : kArrayType)) == 0) return false;
      const ArrayConstraints& array = c.array;
      const bool plain = object ? c.object.properties.empty() && c.object.min_properties == 0 &&
                                      c.object.max_properties < 0
                                : array.min_items == 0 && array.max_items < 0 && !array.unique &&
                                      array.prefix.empty() && array.items.empty();
      if (plain) return true;
      return document_.Error(c.where,
                             "\"enum\" or \"const\" with a list or an object beside other "
                             "conditions on it is not supported");
    }
    default:
      break;
  }
  HEDDLE_ASSIGN_OR_RETURN(const Decimal number, Decimal::Parse(value.dump()));
  if ((c.types & kNumberType) == 0 && ((c.types & kIntegerType) == 0 || !number.fraction.empty())) {
    return false;
  }
  NumberRange range = c.number;
  range.integer = false;
  if (range.Unbounded()) return true;
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine, NumberMachine(range, budget()));
  std::string text = (number.negative ? "-" : "") + number.whole;
  if (!number.fraction.empty()) text += "." + number.fraction;
  return machine.Accepts(std::u32string(text.begin(), text.end()));
}

absl::StatusOr<ExprId> SchemaWriter::EnumOf(const ValueConstraints& c) {
  std::vector<ExprId> choices;
  for (const Json& value : c.values) {
    const absl::StatusOr<bool> valid = Satisfies(value, c);
    if (!valid.ok()) return At(c, valid.status());
    if (*valid) choices.push_back(grammar_.Text(std::string_view(value.dump())));
  }
  if (choices.empty()) return grammar_.Chars({});
  return grammar_.Choice(std::move(choices));
}

absl::StatusOr<ExprId> SchemaWriter::NumberOf(const ValueConstraints& c) {
  NumberRange range = c.number;
  range.integer = (c.types & kNumberType) == 0;
  absl::StatusOr<StateMachine> machine = NumberMachine(range, budget());
  if (!machine.ok()) return At(c, machine.status());
  return grammar_.Machine(*std::move(machine));
}

absl::StatusOr<ExprId> SchemaWriter::StringOf(const ValueConstraints& c) {
  const StringConstraints& string = c.string;
  if (string.Unbounded()) return grammar_.Call(string_);
  if (string.max_length >= 0 && string.min_length > string.max_length) return grammar_.Chars({});
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
  const absl::StatusOr<StateMachine> machine = StringMachine(string, budget());
  if (!machine.ok()) return At(c, machine.status());
  absl::StatusOr<StateMachine> written = InJsonString(*machine, budget());
  if (!written.ok()) return At(c, written.status());
  return grammar_.Sequence({quote, grammar_.Machine(*std::move(written)), quote});
}

absl::StatusOr<ExprId> SchemaWriter::ArrayOf(const ValueConstraints& c) {
  const ArrayConstraints& array = c.array;
  const bool bounded = array.max_items >= 0;
  const auto prefix = static_cast<int32_t>(array.prefix.size());
  // Positions with states of their own; behind them, if unbounded, the last one repeats.
  const int32_t distinct =
      bounded ? array.max_items : std::max({prefix, array.min_items, int32_t{1}}) + 1;
  if (bounded && array.min_items > array.max_items) return grammar_.Chars({});
  MachineBuilder machine(budget());
  const int32_t opened = machine.NewState();
  machine.Text(machine.start(), "[", opened);
  int32_t at = machine.NewState();
  Whitespace(&machine, opened, at);
  const int32_t close = machine.NewState();
  const int32_t end = machine.NewState();
  machine.Text(close, "]", end);
  machine.Accept(end);
  if (array.min_items == 0) machine.Epsilon(at, close);
  for (int32_t i = 0; i < distinct; ++i) {
    const Conjunction& schema = i < prefix ? array.prefix[static_cast<size_t>(i)] : array.items;
    int32_t item = at;
    if (i > 0) {
      const int32_t comma = machine.NewState();
      machine.Text(at, ",", comma);
      item = machine.NewState();
      Whitespace(&machine, comma, item);
    }
    const int32_t next = !bounded && i + 1 == distinct ? at : machine.NewState();
    machine.Call(item, RuleFor(schema), next);
    if (next != at && i + 1 >= array.min_items) Whitespace(&machine, next, close);
    at = next;
  }
  absl::StatusOr<StateMachine> built = machine.Build();
  if (!built.ok()) return At(c, built.status());
  return grammar_.Machine(*std::move(built));
}

absl::StatusOr<std::vector<Json>> SchemaWriter::FiniteValues(const Conjunction& schema,
                                                             bool* finite) {
  std::vector<Json> values;
  HEDDLE_ASSIGN_OR_RETURN(const SchemaDocument::Alternatives alternatives,
                          document_.Expand(schema));
  *finite = true;
  for (const Conjunction& plain : alternatives.any) {
    HEDDLE_ASSIGN_OR_RETURN(ValueConstraints c, Gather(&document_, plain));
    if (!c.has_values) {
      if ((c.types & ~(kNullType | kBooleanType)) != 0) *finite = false;
      c.values = {Json(nullptr), Json(true), Json(false)};
    }
    for (const Json& value : c.values) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget(), 1 + static_cast<int64_t>(values.size())));
      HEDDLE_ASSIGN_OR_RETURN(const bool valid, Satisfies(value, c));
      if (valid && std::find(values.begin(), values.end(), value) == values.end()) {
        values.push_back(value);
      }
    }
  }
  return values;
}

// The automaton has a state per set of values that have been written.
absl::StatusOr<ExprId> SchemaWriter::UniqueArrayOf(const ValueConstraints& c) {
  constexpr size_t kMaxValues = 8;
  const ArrayConstraints& array = c.array;
  if (array.max_items == 0 || array.max_items == 1) return ArrayOf(c);
  bool finite = false;
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Json> values, FiniteValues(array.items, &finite));
  if (!finite || values.size() > kMaxValues || !array.prefix.empty()) {
    return document_.Error(
        c.where, base::StrCat("\"uniqueItems\" is supported for items of an \"enum\" of at most ",
                              kMaxValues, " values only"));
  }
  MachineBuilder machine(budget());
  std::vector<int32_t> states;
  for (size_t set = 0; set < size_t{1} << values.size(); ++set)
    states.push_back(machine.NewState());
  const int32_t opened = machine.NewState();
  machine.Text(machine.start(), "[", opened);
  Whitespace(&machine, opened, states[0]);
  const int32_t close = machine.NewState();
  const int32_t end = machine.NewState();
  machine.Text(close, "]", end);
  machine.Accept(end);
  for (size_t set = 0; set < states.size(); ++set) {
    const int32_t count = __builtin_popcountll(set);
    if (count >= array.min_items) {
      if (set == 0) {
        machine.Epsilon(states[set], close);
      } else {
        Whitespace(&machine, states[set], close);
      }
    }
    if (array.max_items >= 0 && count >= array.max_items) continue;
    int32_t item = states[set];
    if (set != 0) {
      const int32_t comma = machine.NewState();
      machine.Text(states[set], ",", comma);
      item = machine.NewState();
      Whitespace(&machine, comma, item);
    }
    for (size_t v = 0; v < values.size(); ++v) {
      if ((set >> v & 1) == 0) machine.Text(item, values[v].dump(), states[set | size_t{1} << v]);
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(StateMachine built, machine.Build());
  return grammar_.Machine(std::move(built));
}

}  // namespace heddle::engine::grammar
