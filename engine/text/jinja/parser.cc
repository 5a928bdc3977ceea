#include "engine/text/jinja/parser.h"

#include <algorithm>

#include "base/message.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/text/jinja/parser_internal.h"
#include "engine/text/jinja/unicode.h"

namespace heddle::engine::text::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a text";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return base::StrCat("'", token.text, "'");
  }
}

std::string Join(std::span<const std::string_view> names) {
  std::string out;
  for (std::string_view name : names) out.append(out.empty() ? "" : "' or '").append(name);
  return out;
}

}  // namespace

Parser::Parser(std::vector<Token> tokens, const TemplateLimits& limits)
    : tokens_(std::move(tokens)), limits_(limits) {}

Token Parser::Take() {
  Token token = tokens_[position_];
  if (position_ + 1 < tokens_.size()) ++position_;
  return token;
}

bool Parser::SkipName(std::string_view name) {
  if (!Current().IsName(name)) return false;
  ++position_;
  return true;
}

bool Parser::SkipOperator(std::string_view op) {
  if (!Current().IsOperator(op)) return false;
  ++position_;
  return true;
}

absl::Status Parser::Unexpected(std::string_view wanted) const {
  return Fail(base::StrCat("expected ", wanted, ", got ", Describe(Current())));
}

absl::Status Parser::Expect(TokenKind kind, std::string_view what) {
  if (Current().kind != kind) return Unexpected(what);
  Take();
  return absl::OkStatus();
}

absl::Status Parser::ExpectName(std::string_view name) {
  if (SkipName(name)) return absl::OkStatus();
  return Unexpected(base::StrCat("'", name, "'"));
}

absl::Status Parser::ExpectOperator(std::string_view op) {
  if (SkipOperator(op)) return absl::OkStatus();
  return Unexpected(base::StrCat("'", op, "'"));
}

absl::StatusOr<std::string> Parser::TakeName() {
  if (Current().kind != TokenKind::kName) return Unexpected("a name");
  return Take().text;
}

absl::Status Parser::CheckNesting() const {
  if (depth_ <= limits_.max_nesting) return absl::OkStatus();
  return Fail(base::StrCat("the template nests deeper than ", limits_.max_nesting, " levels"));
}

SymbolId Parser::Intern(std::string_view name) {
  auto [it, inserted] =
      symbol_ids_.try_emplace(std::string(name), static_cast<SymbolId>(template_.symbols.size()));
  if (inserted) template_.symbols.emplace_back(name);
  return it->second;
}

absl::StatusOr<Template> Parser::Run() {
  HEDDLE_ASSIGN_OR_RETURN(template_.body, ParseBody({}));
  template_.num_named = template_.symbols.size();
  template_.known = {Intern("loop"), Intern("caller"), Intern("varargs"), Intern("kwargs")};
  return std::move(template_);
}

// Parses up to a tag whose name is one of `end_names`, which becomes the current token, or to the
// end of the template.
absl::StatusOr<Block> Parser::ParseBody(std::span<const std::string_view> end_names) {
  Nested nested(&depth_);
  HEDDLE_RETURN_IF_ERROR(CheckNesting());
  Block body;
  while (Current().kind != TokenKind::kEnd) {
    Token token = Take();
    if (token.kind == TokenKind::kData) {
      auto text = std::make_unique<TextStmt>(token.line);
      text->text = std::move(token.text);
      body.push_back(std::move(text));
    } else if (token.kind == TokenKind::kVariableBegin) {
      auto output = std::make_unique<OutputStmt>(token.line);
      HEDDLE_ASSIGN_OR_RETURN(output->value, ParseTuple(/*allow_conditional=*/true));
      HEDDLE_RETURN_IF_ERROR(Expect(TokenKind::kVariableEnd, "'}}'"));
      body.push_back(std::move(output));
    } else {
      bool ends = Current().kind == TokenKind::kName &&
                  std::find(end_names.begin(), end_names.end(), Current().text) != end_names.end();
      if (ends) return body;
      HEDDLE_RETURN_IF_ERROR(ParseStatement(&body));
      HEDDLE_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
    }
  }
  if (!end_names.empty()) {
    return Unexpected(base::StrCat("the tag '", Join(end_names), "'"));
  }
  return body;
}

absl::StatusOr<Block> Parser::ParseTagBody(std::initializer_list<std::string_view> end_names) {
  SkipOperator(":");
  HEDDLE_RETURN_IF_ERROR(Expect(TokenKind::kBlockEnd, "'%}'"));
  return ParseBody(std::span<const std::string_view>(end_names.begin(), end_names.size()));
}

absl::Status Parser::ParseStatement(Block* out) {
  if (Current().kind != TokenKind::kName) return Unexpected("the name of a tag");
  const std::string& name = Current().text;
  if (name == "if") return ParseIf(out);
  if (name == "for") return ParseFor(out);
  if (name == "set") return ParseSet(out);
  if (name == "macro") return ParseMacro(out);
  if (name == "call") return ParseCallBlock(out);
  if (name == "filter") return ParseFilterBlock(out);
  if (name == "with") return ParseWith(out);
  if (name == "generation") return ParseGeneration(out);
  if (name == "print") return ParsePrint(out);
  if (name == "break") return ParseLoopControl(StmtKind::kBreak, out);
  if (name == "continue") return ParseLoopControl(StmtKind::kContinue, out);
  for (std::string_view other : {"extends", "include", "import", "from", "block", "autoescape"}) {
    if (name == other) {
      return Fail(base::StrCat("the tag '", name, "' is not available in chat templates"));
    }
  }
  return Fail(base::StrCat("Encountered unknown tag '", name, "'."));
}

absl::Status Parser::ParseIf(Block* out) {
  auto node = std::make_unique<IfStmt>(Take().line);
  ++conditions_;
  while (true) {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr test, ParseTuple(/*allow_conditional=*/false));
    HEDDLE_ASSIGN_OR_RETURN(Block body, ParseTagBody({"elif", "else", "endif"}));
    node->branches.emplace_back(std::move(test), std::move(body));
    Token end = Take();
    if (end.IsName("elif")) continue;
    if (end.IsName("else")) {
      HEDDLE_ASSIGN_OR_RETURN(node->otherwise, ParseTagBody({"endif"}));
      Take();
    }
    break;
  }
  --conditions_;
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseFor(Block* out) {
  auto node = std::make_unique<ForStmt>(Take().line);
  HEDDLE_ASSIGN_OR_RETURN(node->target, ParseTarget(/*allow_attribute=*/false));
  HEDDLE_RETURN_IF_ERROR(ExpectName("in"));
  HEDDLE_ASSIGN_OR_RETURN(node->iterable, ParseTuple(/*allow_conditional=*/false));
  if (SkipName("if")) {
    HEDDLE_ASSIGN_OR_RETURN(node->filter, ParseExpression());
  }
  node->recursive = SkipName("recursive");
  ++loops_;
  HEDDLE_ASSIGN_OR_RETURN(node->body, ParseTagBody({"endfor", "else"}));
  --loops_;
  if (Take().text == "else") {
    HEDDLE_ASSIGN_OR_RETURN(node->otherwise, ParseTagBody({"endfor"}));
    Take();
  }
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseSet(Block* out) {
  int line = Take().line;
  HEDDLE_ASSIGN_OR_RETURN(Target target, ParseTarget(/*allow_attribute=*/true));
  if (SkipOperator("=")) {
    auto node = std::make_unique<SetStmt>(line);
    node->target = std::move(target);
    HEDDLE_ASSIGN_OR_RETURN(node->value, ParseTuple(/*allow_conditional=*/true));
    out->push_back(std::move(node));
    return absl::OkStatus();
  }
  auto node = std::make_unique<SetBlockStmt>(line);
  node->target = std::move(target);
  if (Current().IsOperator("|")) {
    HEDDLE_ASSIGN_OR_RETURN(node->filter, ParseFilters(nullptr, /*without_bar=*/false));
  }
  HEDDLE_ASSIGN_OR_RETURN(node->body, ParseTagBody({"endset"}));
  Take();
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseSignature(MacroStmt* macro) {
  HEDDLE_RETURN_IF_ERROR(ExpectOperator("("));
  while (!Current().IsOperator(")")) {
    if (!macro->parameters.empty()) HEDDLE_RETURN_IF_ERROR(ExpectOperator(","));
    HEDDLE_ASSIGN_OR_RETURN(std::string name, TakeName());
    MacroStmt::Parameter parameter{Intern(name), name, nullptr};
    if (SkipOperator("=")) {
      HEDDLE_ASSIGN_OR_RETURN(parameter.otherwise, ParseExpression());
    } else if (!macro->parameters.empty() && macro->parameters.back().otherwise != nullptr) {
      return Fail("non-default argument follows default argument");
    }
    macro->parameters.push_back(std::move(parameter));
  }
  return ExpectOperator(")");
}

absl::Status Parser::ParseMacroBody(std::string_view end_name, MacroStmt* macro) {
  MacroStmt* outer_macro = std::exchange(macro_, macro);
  int outer_loops = std::exchange(loops_, 0);
  HEDDLE_ASSIGN_OR_RETURN(macro->body, ParseTagBody({end_name}));
  Take();
  loops_ = outer_loops;
  macro_ = outer_macro;
  if (outer_macro != nullptr) {
    outer_macro->uses_varargs |= macro->uses_varargs;
    outer_macro->uses_kwargs |= macro->uses_kwargs;
    outer_macro->uses_caller |= macro->uses_caller;
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseMacro(Block* out) {
  auto node = std::make_unique<MacroStmt>(Take().line);
  HEDDLE_ASSIGN_OR_RETURN(node->name, TakeName());
  node->symbol = Intern(node->name);
  HEDDLE_RETURN_IF_ERROR(ParseSignature(node.get()));
  HEDDLE_RETURN_IF_ERROR(ParseMacroBody("endmacro", node.get()));
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseCallBlock(Block* out) {
  auto node = std::make_unique<CallBlockStmt>(Take().line);
  if (Current().IsOperator("(")) HEDDLE_RETURN_IF_ERROR(ParseSignature(&node->body));
  HEDDLE_ASSIGN_OR_RETURN(node->call, ParseExpression());
  if (node->call->kind != ExprKind::kCall) return SyntaxError(node->line, "expected call");
  HEDDLE_RETURN_IF_ERROR(ParseMacroBody("endcall", &node->body));
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseFilterBlock(Block* out) {
  auto node = std::make_unique<FilterBlockStmt>(Take().line);
  HEDDLE_ASSIGN_OR_RETURN(node->filter, ParseFilters(nullptr, /*without_bar=*/true));
  HEDDLE_ASSIGN_OR_RETURN(node->body, ParseTagBody({"endfilter"}));
  Take();
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseWith(Block* out) {
  auto node = std::make_unique<WithStmt>(Take().line);
  while (Current().kind != TokenKind::kBlockEnd) {
    if (!node->bindings.empty()) HEDDLE_RETURN_IF_ERROR(ExpectOperator(","));
    HEDDLE_ASSIGN_OR_RETURN(Target target, ParseSingleTarget(/*allow_attribute=*/false));
    HEDDLE_RETURN_IF_ERROR(ExpectOperator("="));
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    node->bindings.emplace_back(std::move(target), std::move(value));
  }
  HEDDLE_ASSIGN_OR_RETURN(node->body, ParseTagBody({"endwith"}));
  Take();
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParseGeneration(Block* out) {
  auto node = std::make_unique<GenerationStmt>(Take().line);
  int outer_loops = std::exchange(loops_, 0);  // a break cannot leave the marked part
  HEDDLE_ASSIGN_OR_RETURN(node->body, ParseTagBody({"endgeneration"}));
  loops_ = outer_loops;
  Take();
  out->push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status Parser::ParsePrint(Block* out) {
  int line = Take().line;
  bool first = true;
  while (Current().kind != TokenKind::kBlockEnd) {
    if (!first) HEDDLE_RETURN_IF_ERROR(ExpectOperator(","));
    first = false;
    auto output = std::make_unique<OutputStmt>(line);
    HEDDLE_ASSIGN_OR_RETURN(output->value, ParseExpression());
    out->push_back(std::move(output));
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseLoopControl(StmtKind kind, Block* out) {
  Token token = Take();
  if (loops_ == 0) return SyntaxError(token.line, base::StrCat("'", token.text, "' outside loop"));
  out->push_back(std::make_unique<ControlStmt>(kind, token.line));
  return absl::OkStatus();
}

absl::StatusOr<Target> Parser::ParseSingleTarget(bool allow_attribute) {
  Nested nested(&depth_);
  HEDDLE_RETURN_IF_ERROR(CheckNesting());
  if (SkipOperator("(")) {
    HEDDLE_ASSIGN_OR_RETURN(Target inner, ParseTarget(allow_attribute));
    HEDDLE_RETURN_IF_ERROR(ExpectOperator(")"));
    return inner;
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string name, TakeName());
  for (std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) return Fail("can't assign to 'const'");
  }
  Target target;
  target.symbol = Intern(name);
  if (allow_attribute && SkipOperator(".")) {
    target.kind = Target::Kind::kAttribute;
    HEDDLE_ASSIGN_OR_RETURN(target.attribute, TakeName());
  }
  return target;
}

absl::StatusOr<Target> Parser::ParseTarget(bool allow_attribute) {
  HEDDLE_ASSIGN_OR_RETURN(Target first, ParseSingleTarget(allow_attribute));
  if (!Current().IsOperator(",")) return first;
  Target tuple;
  tuple.kind = Target::Kind::kTuple;
  tuple.items.push_back(std::move(first));
  while (SkipOperator(",")) {
    bool ends = Current().IsName("in") || Current().IsOperator("=") || Current().IsOperator(")") ||
                Current().kind == TokenKind::kBlockEnd;
    if (ends) break;
    HEDDLE_ASSIGN_OR_RETURN(Target next, ParseSingleTarget(allow_attribute));
    tuple.items.push_back(std::move(next));
  }
  return tuple;
}

absl::StatusOr<Template> ParseTemplate(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return absl::InvalidArgumentError(base::StrCat("the template has ", source.size(),
                                                   " bytes; at most ", limits.max_source_bytes,
                                                   " are allowed"));
  }
  if (!base::IsValidUtf8(source))
    return absl::InvalidArgumentError("the template is not valid UTF-8");
  HEDDLE_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(NormalizeSource(source)));
  return Parser(std::move(tokens), limits).Run();
}

}  // namespace heddle::engine::text::jinja
