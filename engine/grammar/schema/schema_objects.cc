// Objects: listed properties in their order, then other keys, with counts if the schema counts.
#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/schema/json_text.h"
#include "engine/grammar/schema/schema_values.h"
#include "engine/grammar/schema/schema_writer.h"
#include "engine/grammar/schema/string_machine.h"
#include "engine/grammar/thompson.h"

namespace heddle::engine::grammar {
namespace {

// Keys of a pattern are written like listed ones, in an order, if there are so few.
constexpr size_t kMaxListedKeys = 64;

// All texts but the properties' names: the complement of a trie.
absl::StatusOr<StateMachine> NoneOf(const std::vector<ObjectConstraints::Property>& properties,
                                    Budget* budget) {
  MachineBuilder machine(budget);
  for (const ObjectConstraints::Property& property : properties) {
    const int32_t end = machine.NewState();
    if (property.name.empty()) {
      machine.Epsilon(machine.start(), end);
    } else {
      machine.Text(machine.start(), property.name, end);
    }
    machine.Accept(end);
  }
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine built, machine.Build());
  StateMachine others = Complement(built, budget);
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
  return others;
}

// Adds a path from `from` to `to` that reads `text`, which may be empty.
void Literal(MachineBuilder* machine, int32_t from, std::string_view text, int32_t to) {
  text.empty() ? machine->Epsilon(from, to) : machine->Text(from, text, to);
}

// Whether decoders of calls take the value for a string whatever it looks like.
bool IsPlainString(const Conjunction& schema) {
  if (schema.size() != 1 || !schema.front()->is_object()) return false;
  const auto type = schema.front()->find("type");
  return type != schema.front()->end() && *type == "string";
}

// The limits on the numbers of members.
struct Counting {
  int32_t min = 0;
  int32_t max = -1;

  int32_t cap() const { return std::max({min, max, int32_t{1}}); }
  bool Full(const Place& place) const { return max >= 0 && place.listed + place.extras >= max; }
  bool Enough(const Place& place) const { return place.listed + place.extras >= min; }
};

// Leaves out bounds that hold anyway.
Counting CountingOf(const ObjectConstraints& object,
                    const std::vector<ObjectConstraints::Property>& listed) {
  Counting counting{object.min_properties, object.max_properties};
  const auto num_listed = static_cast<int32_t>(listed.size());
  const auto num_required = static_cast<int32_t>(
      std::count_if(listed.begin(), listed.end(), [](const auto& p) { return p.required; }));
  if (counting.max >= num_listed && object.extras.empty()) counting.max = -1;
  if (counting.min <= num_required) counting.min = 0;
  return counting;
}

}  // namespace

// The keys that propertyNames allows.
absl::StatusOr<StateMachine> SchemaWriter::KeyMachine(const Conjunction& names) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Conjunction> alternatives, Expand(&document_, names));
  Grammar scratch;
  std::vector<ExprId> choices = {scratch.Chars({})};
  for (const Conjunction& plain : alternatives) {
    HEDDLE_ASSIGN_OR_RETURN(const ValueConstraints c, Gather(&document_, plain));
    if (!c.has_values) {
      if ((c.types & kStringType) == 0) continue;
      HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, StringMachine(c.string, &document_));
      choices.push_back(scratch.Machine(std::move(machine)));
      continue;
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::vector<const Json*> values, ListedValuesOf(&document_, c));
    for (const Json* value : values) {
      if (!value->is_string()) continue;
      choices.push_back(scratch.Text(std::string_view(value->get_ref<const std::string&>())));
    }
  }
  return MachineOf(scratch, scratch.Choice(std::move(choices)), budget());
}

absl::Status SchemaWriter::RestrictKeys(const ValueConstraints& c, StateMachine* keys) {
  for (SchemaRef names : c.object.names) {
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine allowed, KeyMachine({names}));
    HEDDLE_ASSIGN_OR_RETURN(*keys, Intersect(*keys, allowed, kMaxStates, budget()));
  }
  return absl::OkStatus();
}

// The automaton of one object while it is written, state by state.
struct SchemaWriter::ObjectMachine {
  explicit ObjectMachine(Budget* budget) : machine(budget) {}

  std::vector<ObjectConstraints::Property> listed;
  std::vector<RuleId> extras;  // members with other keys
  Counting counting;
  const MemberForm* form = nullptr;  // null: JSON
  MachineBuilder machine;
  int32_t close = -1;  // the state before "}"
  std::map<Place, int32_t> states;
  std::vector<Place> order;  // of `states`, as they were found

  int32_t StateOf(Place place) {
    // Numbers beyond the largest one asked about are treated alike.
    place.listed = std::min(place.listed, counting.cap());
    place.extras = std::min(place.extras, counting.cap());
    auto [it, is_new] = states.try_emplace(place, -1);
    if (is_new) {
      it->second = machine.NewState();
      order.push_back(place);
    }
    return it->second;
  }
};

// The keys of a kind that is not listed.
absl::StatusOr<StateMachine> SchemaWriter::KeysOf(const ValueConstraints& c,
                                                  const ObjectConstraints::Extra& extra) {
  HEDDLE_ASSIGN_OR_RETURN(StateMachine keys, NoneOf(c.object.properties, budget()));
  HEDDLE_RETURN_IF_ERROR(RestrictKeys(c, &keys));
  for (const std::string& pattern : extra.matching) {
    const absl::StatusOr<StateMachine>& found = document_.Pattern(pattern);
    HEDDLE_RETURN_IF_ERROR(found.status());
    HEDDLE_ASSIGN_OR_RETURN(keys, Intersect(keys, *found, kMaxStates, budget()));
  }
  for (const std::string& pattern : extra.others) {
    const absl::StatusOr<StateMachine>& found = document_.Pattern(pattern);
    HEDDLE_RETURN_IF_ERROR(found.status());
    HEDDLE_ASSIGN_OR_RETURN(keys,
                            Intersect(keys, Complement(*found, budget()), kMaxStates, budget()));
  }
  return keys;
}

// Adds the properties of a kind that is not listed: as listed ones if there are few keys.
absl::Status SchemaWriter::AddExtra(const ValueConstraints& c,
                                    const ObjectConstraints::Extra& extra, ObjectMachine* object) {
  const ObjectConstraints& all = c.object;
  const bool any_key =
      all.properties.empty() && all.names.empty() && extra.matching.empty() && extra.others.empty();
  StateMachine keys;
  if (!any_key) {
    HEDDLE_ASSIGN_OR_RETURN(keys, KeysOf(c, extra));
    if (const auto names = FewTexts(keys, kMaxListedKeys)) {
      for (const std::string& name : *names) object->listed.push_back({name, false, extra.schema});
      return absl::OkStatus();
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(const RuleId member, ExtraMember(c, extra, any_key ? nullptr : &keys));
  object->extras.push_back(member);
  return absl::OkStatus();
}

// Reads "key": value; `keys` is null if any key will do.
absl::StatusOr<RuleId> SchemaWriter::ExtraMember(const ValueConstraints& c,
                                                 const ObjectConstraints::Extra& extra,
                                                 const StateMachine* keys) {
  MachineBuilder machine(budget());
  const int32_t key_end = machine.NewState();
  if (keys == nullptr) {
    machine.Call(machine.start(), string_, key_end);
  } else {
    HEDDLE_ASSIGN_OR_RETURN(StateMachine written, InJsonString(*keys, budget()));
    const ExprId quote = grammar_.Text(U"\"");
    const RuleId key =
        grammar_.AddRule(base::StrCat(document_.PathOf(c.where), "/key"),
                         grammar_.Sequence({quote, grammar_.Machine(std::move(written)), quote}));
    machine.Call(machine.start(), key, key_end);
  }
  const int32_t colon = machine.NewState();
  const int32_t value = machine.NewState();
  const int32_t end = machine.NewState();
  machine.Text(key_end, ":", colon);
  Whitespace(&machine, colon, value);
  machine.Call(value, RuleFor(extra.schema), end);
  machine.Accept(end);
  HEDDLE_ASSIGN_OR_RETURN(StateMachine built, machine.Build());
  return grammar_.AddRule(base::StrCat(document_.PathOf(c.where), "/member"),
                          grammar_.Machine(std::move(built)));
}

// The listed properties. Those whose names propertyNames forbids can only be left out.
absl::StatusOr<std::vector<ObjectConstraints::Property>> SchemaWriter::ListedProperties(
    const ValueConstraints& c) {
  std::vector<ObjectConstraints::Property> listed = c.object.properties;
  if (c.object.names.empty()) return listed;
  StateMachine keys = AnyTextOfLength(0, -1);
  HEDDLE_RETURN_IF_ERROR(RestrictKeys(c, &keys));
  for (ObjectConstraints::Property& property : listed) {
    Grammar scratch;
    const ExprId text = scratch.Text(std::string_view(property.name));
    static const Json nothing = false;
    if (keys.Accepts(scratch.exprs[Index(text)].text)) continue;
    property.schema = {document_.Child(c.where, "propertyNames", nothing)};
  }
  return listed;
}

// The state where the next member begins, behind the comma if there was a member before.
int32_t SchemaWriter::BeginMember(const Place& place, ObjectMachine* object) const {
  const int32_t at = object->StateOf(place);
  if (place.listed + place.extras == 0) return at;
  const int32_t comma = object->machine.NewState();
  if (object->form != nullptr) {
    Literal(&object->machine, at, object->form->separator, comma);
    return comma;
  }
  object->machine.Text(at, ",", comma);
  const int32_t member = object->machine.NewState();
  Whitespace(&object->machine, comma, member);
  return member;
}

// Writes the next listed property, or skips it if it is optional.
absl::Status SchemaWriter::WriteListed(const Place& place, ObjectMachine* object) {
  MachineBuilder& machine = object->machine;
  const ObjectConstraints::Property& property = object->listed[place.property];
  if (!property.required) {
    machine.Epsilon(object->StateOf(place),
                    object->StateOf({place.property + 1, place.listed, place.extras}));
  }
  if (object->counting.Full(place) || IsNever(property.schema)) return absl::OkStatus();
  const int32_t begin = BeginMember(place, object);
  const int32_t next = object->StateOf({place.property + 1, place.listed + 1, place.extras});
  const int32_t value = machine.NewState();
  if (object->form == nullptr) {
    const int32_t colon = machine.NewState();
    machine.Text(begin, JsonString(property.name) + ":", colon);
    Whitespace(&machine, colon, value);
    machine.Call(value, RuleFor(property.schema), next);
    return absl::OkStatus();
  }
  const MemberForm& form = *object->form;
  Literal(&machine, begin, base::StrCat(form.key_open, property.name, form.key_close), value);
  const int32_t end = machine.NewState();
  if (form.raw_strings && IsPlainString(property.schema)) {
    HEDDLE_ASSIGN_OR_RETURN(const RuleId raw, RawString(property.schema));
    machine.Call(value, raw, end);
  } else {
    machine.Call(value, RuleFor(property.schema), end);
  }
  Literal(&machine, end, form.value_close, next);
  return absl::OkStatus();
}

// A string without quotes, up to the text that ends it.
absl::StatusOr<RuleId> SchemaWriter::RawString(const Conjunction& schema) {
  const std::string name = base::StrCat(document_.PathOf(schema.front()), "/raw");
  HEDDLE_ASSIGN_OR_RETURN(const ValueConstraints c, Gather(&document_, schema));
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<ExprId> grammar, GrammarOf(c, /*is_quoted=*/false));
  if (grammar) return grammar_.AddRule(name, *grammar);
  HEDDLE_ASSIGN_OR_RETURN(StateMachine texts, KeyMachine(schema));
  Grammar scratch;
  const ExprId any = scratch.Repeat(scratch.Chars(CodePointSet::All()), 0, kUnbounded);
  const ExprId mark = scratch.Text(std::string_view(options_.form.value_close));
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine marked,
                          MachineOf(scratch, scratch.Sequence({any, mark, any}), budget()));
  HEDDLE_ASSIGN_OR_RETURN(texts,
                          Intersect(texts, Complement(marked, budget()), kMaxStates, budget()));
  return grammar_.AddRule(name, grammar_.Machine(std::move(texts)));
}

// Writes the members of the outermost object in the options' form.
absl::Status SchemaWriter::WriteForm(RuleId rule) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<Conjunction> alternatives,
                          Expand(&document_, {document_.root()}));
  std::vector<ExprId> choices = {grammar_.Chars({})};
  for (const Conjunction& plain : alternatives) {
    HEDDLE_ASSIGN_OR_RETURN(const ValueConstraints constraints, Gather(&document_, plain));
    if ((constraints.types & kObjectType) == 0) continue;
    HEDDLE_ASSIGN_OR_RETURN(const ExprId members, ObjectOf(constraints, /*in_form=*/true));
    choices.push_back(members);
  }
  grammar_.rules[Index(rule)].body = grammar_.Choice(std::move(choices));
  return absl::OkStatus();
}

// Writes what follows the listed properties: the end, or a member with another key.
void SchemaWriter::WriteOthers(const Place& place, ObjectMachine* object) {
  MachineBuilder& machine = object->machine;
  if (object->counting.Enough(place)) {
    const int32_t at = object->StateOf(place);
    if (object->form != nullptr || place.listed + place.extras == 0) {
      machine.Epsilon(at, object->close);
    } else {
      Whitespace(&machine, at, object->close);
    }
  }
  if (object->counting.Full(place) || object->extras.empty()) return;
  const int32_t member = BeginMember(place, object);
  const int32_t next = object->StateOf({place.property, place.listed, place.extras + 1});
  for (RuleId extra : object->extras) machine.Call(member, extra, next);
}

absl::StatusOr<ExprId> SchemaWriter::ObjectOf(const ValueConstraints& c, bool in_form) {
  ObjectMachine object(budget());
  if (in_form) object.form = &options_.form;
  absl::StatusOr<std::vector<ObjectConstraints::Property>> listed = ListedProperties(c);
  if (!listed.ok()) return At(c, listed.status());
  object.listed = *std::move(listed);
  for (const ObjectConstraints::Extra& extra : c.object.extras) {
    if (in_form) break;
    const absl::Status added = AddExtra(c, extra, &object);
    if (!added.ok()) return At(c, added);
  }
  object.counting = CountingOf(c.object, object.listed);
  for (const ObjectConstraints::Property& property : object.listed) {
    if (!property.required || !IsNever(property.schema)) continue;
    return Nothing(c, base::StrCat("the property ", base::Quote(property.name),
                                   " is required, and no value of it is valid"));
  }
  if (object.counting.max >= 0 && object.counting.min > object.counting.max) {
    return Nothing(c, base::StrCat("\"minProperties\" ", object.counting.min,
                                   " is above \"maxProperties\" ", object.counting.max));
  }
  const auto num_listed = static_cast<int32_t>(object.listed.size());
  if (object.counting.min > num_listed && object.extras.empty()) {
    return Nothing(c, base::StrCat("\"minProperties\" ", object.counting.min, " is above the ",
                                   num_listed, " properties that may be written"));
  }

  MachineBuilder& machine = object.machine;
  object.close = machine.NewState();
  if (in_form) {
    machine.Epsilon(machine.start(), object.StateOf({}));
    machine.Accept(object.close);
  } else {
    const int32_t opened = machine.NewState();
    machine.Text(machine.start(), "{", opened);
    Whitespace(&machine, opened, object.StateOf({}));
    const int32_t end = machine.NewState();
    machine.Text(object.close, "}", end);
    machine.Accept(end);
  }
  for (size_t i = 0; i < object.order.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(Spend(budget(), 1));
    if (machine.size() > static_cast<size_t>(kMaxStates)) {
      return document_.Error(c.where, "the object has too many properties to count");
    }
    const Place place = object.order[i];
    if (place.property < object.listed.size()) {
      HEDDLE_RETURN_IF_ERROR(WriteListed(place, &object));
    } else {
      WriteOthers(place, &object);
    }
  }
  absl::StatusOr<StateMachine> built = machine.Build();
  if (!built.ok()) return At(c, built.status());
  const ExprId body = grammar_.Machine(*std::move(built));
  const bool may_repeat = !object.extras.empty() && c.object.max_properties != 1;
  return may_repeat ? Distinct(c, body) : body;
}

}  // namespace heddle::engine::grammar
