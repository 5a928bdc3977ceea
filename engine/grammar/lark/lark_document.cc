#include "engine/grammar/lark/lark_document.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/grammar/source_reader.h"

namespace heddle::engine::grammar {
namespace {

std::string Utf8Of(std::u32string_view text) {
  std::string utf8;
  for (char32_t c : text) base::AppendUtf8(c, &utf8);
  return utf8;
}

bool IsNameStart(char32_t c) {
  return c == U'_' || (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
}
bool IsNameCharacter(char32_t c) { return IsNameStart(c) || (c >= U'0' && c <= U'9'); }

class LarkReader {
 public:
  LarkReader(SourceReader reader, Budget* budget) : reader_(std::move(reader)), budget_(budget) {}

  absl::StatusOr<LarkDocument> Run() {
    for (SkipLines(); !reader_.AtEnd(); SkipLines()) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
      HEDDLE_RETURN_IF_ERROR(reader_.Peek() == U'%' ? ReadStatement() : ReadDefinition(Mode::kNew));
      SkipBlanks();
      if (!reader_.AtEnd() && reader_.Peek() != U'\n' && reader_.Peek() != U'\r') {
        return reader_.Error("expected the end of the line");
      }
    }
    return std::move(document_);
  }

 private:
  enum class Mode : uint8_t { kNew, kOverride, kExtend };

  // Skips blanks, comments and line breaks behind a backslash.
  void SkipBlanks() {
    while (!reader_.AtEnd()) {
      const char32_t c = reader_.Peek();
      if (c == U' ' || c == U'\t') {
        reader_.Take();
      } else if (c == U'#' || (c == U'/' && reader_.Peek(1) == U'/')) {
        while (!reader_.AtEnd() && reader_.Peek() != U'\n') reader_.Take();
      } else if (!reader_.TakeIf(U"\\\n") && !reader_.TakeIf(U"\\\r\n")) {
        return;
      }
    }
  }
  void SkipLines() {
    for (SkipBlanks(); reader_.Peek() == U'\n' || reader_.Peek() == U'\r'; SkipBlanks()) {
      reader_.Take();
    }
  }
  // Skips what may stand between two parts of a definition. `depth`: of brackets that are open,
  // within which lines do not end it. Otherwise it goes on at a line that begins with a bar.
  void SkipWithin(int depth) {
    if (depth > 0) return SkipLines();
    SkipBlanks();
    const size_t position = reader_.position();
    SkipLines();
    if (reader_.Peek() != U'|') reader_.ReturnTo(position);
  }

  absl::StatusOr<std::string> TakeName() {
    if (!IsNameStart(reader_.Peek())) return reader_.Error("expected a name");
    std::string name;
    while (IsNameCharacter(reader_.Peek())) name.push_back(static_cast<char>(reader_.Take()));
    return name;
  }

  absl::Status Expect(char32_t c) {
    SkipBlanks();
    if (reader_.TakeIf(c)) return absl::OkStatus();
    return reader_.Error(base::StrCat("expected ", std::string(1, static_cast<char>(c))));
  }

  absl::Status ReadStatement() {
    reader_.Take();
    HEDDLE_ASSIGN_OR_RETURN(const std::string word, TakeName());
    SkipBlanks();
    if (word == "ignore") {
      HEDDLE_ASSIGN_OR_RETURN(const LarkNodeId ignored, ReadChoice(0));
      document_.ignored.push_back(ignored);
      return absl::OkStatus();
    }
    if (word == "import") return ReadImport();
    if (word == "override") return ReadDefinition(Mode::kOverride);
    if (word == "extend") return ReadDefinition(Mode::kExtend);
    // A version or options of llguidance, none of which changes the texts.
    if (word == "llguidance") return ReadJson().status();
    if (word == "declare") {
      return reader_.Error(
          "%declare is not supported: terminals without a definition have no text");
    }
    return reader_.Error(base::StrCat("%", word, " is not known"));
  }

  absl::Status ReadImport() {
    if (reader_.Peek() == U'.') {
      return reader_.Error("imports from other files are not supported; \"common\" is");
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::string library, TakeName());
    if (library != "common") {
      return reader_.Error(
          base::StrCat("the library ", base::Quote(library), " is not supported; \"common\" is"));
    }
    SkipBlanks();
    if (reader_.TakeIf(U'(')) {
      do {
        SkipLines();
        HEDDLE_ASSIGN_OR_RETURN(const std::string name, TakeName());
        HEDDLE_RETURN_IF_ERROR(Import(name, name));
        SkipLines();
      } while (reader_.TakeIf(U','));
      return Expect(U')');
    }
    if (!reader_.TakeIf(U'.')) return reader_.Error("expected . and the name of a terminal");
    HEDDLE_ASSIGN_OR_RETURN(const std::string name, TakeName());
    SkipBlanks();
    std::string alias = name;
    if (reader_.TakeIf(U"->")) {
      SkipBlanks();
      HEDDLE_ASSIGN_OR_RETURN(alias, TakeName());
    }
    return Import(name, alias);
  }

  // Takes over a definition of the library, and those that it refers to.
  absl::Status Import(const std::string& name, const std::string& alias) {
    if (library_.definitions.empty()) {
      HEDDLE_ASSIGN_OR_RETURN(SourceReader reader,
                              SourceReader::Create(LarkCommonText(), "library"));
      HEDDLE_ASSIGN_OR_RETURN(library_, LarkReader(std::move(reader), budget_).Run());
    }
    const auto found = library_.definitions.find(name);
    if (found == library_.definitions.end()) {
      return reader_.Error(
          base::StrCat("the library \"common\" has no terminal ", base::Quote(name)));
    }
    LarkDefinition definition;
    definition.body = Copy(found->second.body);
    return Define(alias, std::move(definition), Mode::kNew);
  }

  // A library's names are those of its terminals with a prefix that no name of a client has.
  LarkNodeId Copy(LarkNodeId id) {
    LarkNode node = library_.nodes[static_cast<size_t>(id)];
    for (LarkNodeId& part : node.parts) part = Copy(part);
    if (node.kind == LarkKind::kName) {
      const std::string name = node.name;
      node.name = "common." + name;
      if (!document_.definitions.contains(node.name)) {
        document_.definitions.emplace(node.name, LarkDefinition());  // terminals are not recursive
        document_.definitions[node.name].body = Copy(library_.definitions.at(name).body);
      }
    }
    return document_.Add(std::move(node));
  }

  absl::Status Define(const std::string& name, LarkDefinition definition, Mode mode) {
    auto [known, is_new] = document_.definitions.try_emplace(name);
    if (is_new || mode == Mode::kOverride) {
      known->second = std::move(definition);
      return absl::OkStatus();
    }
    if (mode == Mode::kExtend) {
      known->second.body = document_.Add(
          {.kind = LarkKind::kChoice, .parts = {known->second.body, definition.body}});
      return absl::OkStatus();
    }
    return reader_.Error(base::StrCat(base::Quote(name), " is defined twice"));
  }

  absl::Status ReadDefinition(Mode mode) {
    while (reader_.TakeIf(U'?') || reader_.TakeIf(U'!')) {
    }
    HEDDLE_ASSIGN_OR_RETURN(const std::string name, TakeName());
    LarkDefinition definition;
    if (reader_.TakeIf(U'{')) {
      do {
        SkipBlanks();
        HEDDLE_ASSIGN_OR_RETURN(std::string parameter, TakeName());
        definition.parameters.push_back(std::move(parameter));
        SkipBlanks();
      } while (reader_.TakeIf(U','));
      HEDDLE_RETURN_IF_ERROR(Expect(U'}'));
    }
    if (reader_.TakeIf(U'[')) HEDDLE_RETURN_IF_ERROR(ReadAttributes(&definition));
    if (reader_.TakeIf(U'.')) {  // a priority
      reader_.TakeIf(U'-');
      HEDDLE_RETURN_IF_ERROR(reader_.TakeNumber().status());
    }
    HEDDLE_RETURN_IF_ERROR(Expect(U':'));
    HEDDLE_ASSIGN_OR_RETURN(definition.body, ReadChoice(0));
    return Define(name, std::move(definition), mode);
  }

  // llguidance's, behind a name.
  absl::Status ReadAttributes(LarkDefinition* definition) {
    do {
      SkipBlanks();
      HEDDLE_ASSIGN_OR_RETURN(const std::string name, TakeName());
      if (name == "lazy") {
        definition->is_lazy = true;
      } else if (name != "capture") {
        return reader_.Error(base::StrCat("the attribute ", base::Quote(name),
                                          " is not supported; lazy and capture are"));
      }
      SkipBlanks();
    } while (reader_.TakeIf(U','));
    return Expect(U']');
  }

  absl::StatusOr<LarkNodeId> ReadChoice(int depth) {
    if (depth > kMaxNesting) {
      return reader_.Error(base::StrCat("groups are nested more than ", kMaxNesting, " deep"));
    }
    LarkNode choice{.kind = LarkKind::kChoice};
    do {
      HEDDLE_ASSIGN_OR_RETURN(const LarkNodeId part, ReadSequence(depth));
      choice.parts.push_back(part);
    } while (reader_.TakeIf(U'|'));
    return choice.parts.size() == 1 ? choice.parts[0] : document_.Add(std::move(choice));
  }

  absl::StatusOr<LarkNodeId> ReadSequence(int depth) {
    LarkNode sequence{.kind = LarkKind::kSequence};
    while (true) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget_, 1));
      SkipWithin(depth);
      if (reader_.TakeIf(U"->")) {  // the name of a subtree
        SkipBlanks();
        HEDDLE_RETURN_IF_ERROR(TakeName().status());
        SkipWithin(depth);
        break;
      }
      const char32_t c = reader_.Peek();
      if (reader_.AtEnd() || c == U'|' || c == U')' || c == U']' || c == U'\n' || c == U'\r') break;
      HEDDLE_ASSIGN_OR_RETURN(const LarkNodeId atom, ReadAtom(depth));
      HEDDLE_ASSIGN_OR_RETURN(const LarkNodeId part, ReadRepeat(atom, depth));
      sequence.parts.push_back(part);
    }
    return sequence.parts.size() == 1 ? sequence.parts[0] : document_.Add(std::move(sequence));
  }

  absl::StatusOr<LarkNodeId> ReadAtom(int depth) {
    const bool is_optional = reader_.Peek() == U'[';
    if (is_optional || reader_.Peek() == U'(') {
      reader_.Take();
      HEDDLE_ASSIGN_OR_RETURN(const LarkNodeId group, ReadChoice(depth + 1));
      const char32_t close = is_optional ? U']' : U')';
      if (!reader_.TakeIf(close)) {
        return reader_.Error(is_optional ? "expected ]" : "expected )");
      }
      return is_optional ? Repeat(group, 0, 1) : group;
    }
    return ReadValue(depth);
  }

  absl::StatusOr<LarkNodeId> ReadValue(int depth) {
    const char32_t c = reader_.Peek();
    if (c == U'"') return ReadText();
    if (c == U'/') return ReadRegex();
    if (IsNameStart(c)) return ReadNamed(depth);
    if (reader_.TakeIf(U"%json")) {
      SkipLines();
      HEDDLE_ASSIGN_OR_RETURN(std::string schema, ReadJson());
      return document_.Add({.kind = LarkKind::kJson, .name = std::move(schema)});
    }
    if (c == U'<') return reader_.Error("special tokens (<...>) are not supported");
    return reader_.Error("expected a string, an expression, a group or a name");
  }

  absl::StatusOr<LarkNodeId> ReadNamed(int depth) {
    HEDDLE_ASSIGN_OR_RETURN(std::string name, TakeName());
    if (!reader_.TakeIf(U'{')) {
      return document_.Add({.kind = LarkKind::kName, .name = std::move(name)});
    }
    if (depth > kMaxNesting) {
      return reader_.Error(base::StrCat("templates are nested more than ", kMaxNesting, " deep"));
    }
    LarkNode use{.kind = LarkKind::kTemplate, .name = std::move(name)};
    do {
      SkipLines();
      HEDDLE_ASSIGN_OR_RETURN(const LarkNodeId argument, ReadValue(depth + 1));
      use.parts.push_back(argument);
      SkipLines();
    } while (reader_.TakeIf(U','));
    HEDDLE_RETURN_IF_ERROR(Expect(U'}'));
    return document_.Add(std::move(use));
  }

  LarkNodeId Repeat(LarkNodeId part, int32_t min, int32_t max) {
    return document_.Add({.kind = LarkKind::kRepeat, .parts = {part}, .min = min, .max = max});
  }

  absl::StatusOr<LarkNodeId> ReadRepeat(LarkNodeId part, int depth) {
    if (depth > 0) {
      SkipLines();
    } else {
      SkipBlanks();
    }
    if (reader_.TakeIf(U'?')) return Repeat(part, 0, 1);
    if (reader_.TakeIf(U'*')) return Repeat(part, 0, kUnbounded);
    if (reader_.TakeIf(U'+')) return Repeat(part, 1, kUnbounded);
    if (reader_.TakeIf(U'{')) {  // llguidance's
      int32_t min = 0;
      int32_t max = 0;
      HEDDLE_RETURN_IF_ERROR(reader_.TakeBounds(&min, &max));
      return Repeat(part, min, max);
    }
    if (!reader_.TakeIf(U'~')) return part;
    SkipBlanks();
    HEDDLE_ASSIGN_OR_RETURN(const int32_t min, reader_.TakeNumber());
    int32_t max = min;
    SkipBlanks();
    if (reader_.TakeIf(U"..")) {
      SkipBlanks();
      HEDDLE_ASSIGN_OR_RETURN(max, reader_.TakeNumber());
      if (max < min) return reader_.Error("the bounds of a repeat are the wrong way round");
    }
    return Repeat(part, min, max);
  }

  std::string TakeFlags(std::u32string_view known) {
    std::string flags;
    while (!reader_.AtEnd() && known.find(reader_.Peek()) != std::u32string_view::npos) {
      flags.push_back(static_cast<char>(reader_.Take()));
    }
    return flags;
  }

  // A string with Python's escapes; other characters behind a backslash keep it.
  absl::StatusOr<std::u32string> TakeString() {
    if (!reader_.TakeIf(U'"')) return reader_.Error("expected a string");
    std::u32string text;
    while (!reader_.TakeIf(U'"')) {
      if (reader_.AtEnd() || reader_.Peek() == U'\n') return reader_.Error("a string does not end");
      char32_t c = reader_.Take();
      if (c == U'\\' && !reader_.AtEnd()) {
        const char32_t next = reader_.Peek();
        if (std::u32string_view(U"Uuxnftr\\\"").find(next) == std::u32string_view::npos) {
          text.push_back(U'\\');
          c = reader_.Take();
        } else {
          HEDDLE_ASSIGN_OR_RETURN(c, reader_.TakeEscape());
        }
      }
      text.push_back(c);
    }
    return text;
  }

  absl::StatusOr<LarkNodeId> ReadText() {
    LarkNode node{.kind = LarkKind::kText};
    HEDDLE_ASSIGN_OR_RETURN(node.text, TakeString());
    node.flags = TakeFlags(U"i");
    if (reader_.Peek() == U'.' && reader_.Peek(1) == U'.') {
      reader_.TakeIf(U"..");
      HEDDLE_ASSIGN_OR_RETURN(const std::u32string last, TakeString());
      if (node.text.size() != 1 || last.size() != 1 || last < node.text) {
        return reader_.Error("a range needs two characters in order");
      }
      node.kind = LarkKind::kRange;
      node.text += last;
    }
    return document_.Add(std::move(node));
  }

  absl::StatusOr<LarkNodeId> ReadRegex() {
    reader_.Take();
    LarkNode node{.kind = LarkKind::kRegex};
    while (!reader_.TakeIf(U'/')) {
      if (reader_.AtEnd()) return reader_.Error("an expression does not end");
      node.text.push_back(reader_.Take());
      if (node.text.back() == U'\\' && !reader_.AtEnd()) node.text.push_back(reader_.Take());
    }
    node.flags = TakeFlags(U"imsux");
    if (reader_.Peek() == U'l') return reader_.Error("the flag l (locale) is not supported");
    if (node.text.find(U'\n') != std::u32string::npos &&
        node.flags.find('x') == std::string::npos) {
      return reader_.Error("an expression over several lines needs the flag x");
    }
    return document_.Add(std::move(node));
  }

  // The text of a JSON object.
  absl::StatusOr<std::string> ReadJson() {
    if (reader_.Peek() != U'{') return reader_.Error("expected a JSON object");
    std::u32string text;
    int depth = 0;
    bool in_string = false;
    do {
      if (reader_.AtEnd()) return reader_.Error("a JSON object does not end");
      const char32_t c = reader_.Take();
      text.push_back(c);
      if (c == U'"') in_string = !in_string;
      if (in_string && c == U'\\' && !reader_.AtEnd()) text.push_back(reader_.Take());
      if (!in_string && c == U'{') ++depth;
      if (!in_string && c == U'}') --depth;
    } while (depth > 0);
    return Utf8Of(text);
  }

  SourceReader reader_;
  Budget* const budget_;
  LarkDocument document_;
  LarkDocument library_;  // "common", once something of it is imported
};

}  // namespace

LarkNodeId LarkDocument::Add(LarkNode node) {
  nodes.push_back(std::move(node));
  return static_cast<LarkNodeId>(nodes.size()) - 1;
}

absl::StatusOr<LarkDocument> ReadLark(std::string_view text, Budget* budget) {
  HEDDLE_ASSIGN_OR_RETURN(SourceReader reader, SourceReader::Create(text, "Lark grammar"));
  return LarkReader(std::move(reader), budget).Run();
}

}  // namespace heddle::engine::grammar
