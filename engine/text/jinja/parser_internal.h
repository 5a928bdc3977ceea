// The parser's state, shared by parser.cc (statements) and parser_expressions.cc.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/limits.h"

namespace heddle::engine::text::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, const TemplateLimits& limits);

  absl::StatusOr<Template> Run();

 private:
  // Counts the nesting during its life.
  class Nested {
   public:
    explicit Nested(int* depth) : depth_(depth) { ++*depth_; }
    ~Nested() { --*depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    int* depth_;
  };

  // Token access.
  const Token& Current() const { return tokens_[position_]; }
  const Token& Next() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  absl::Status Expect(TokenKind kind, std::string_view what);
  absl::Status ExpectName(std::string_view name);
  absl::Status ExpectOperator(std::string_view op);
  absl::StatusOr<std::string> TakeName();
  absl::Status Unexpected(std::string_view wanted) const;
  absl::Status Fail(std::string_view message) const { return SyntaxError(Current().line, message); }
  absl::Status CheckNesting() const;
  SymbolId Intern(std::string_view name);

  // Statements (parser.cc).
  absl::StatusOr<Block> ParseBody(std::span<const std::string_view> end_names);
  absl::StatusOr<Block> ParseTagBody(std::initializer_list<std::string_view> end_names);
  absl::Status ParseStatement(Block* out);
  absl::Status ParseIf(Block* out);
  absl::Status ParseFor(Block* out);
  absl::Status ParseSet(Block* out);
  absl::Status ParseMacro(Block* out);
  absl::Status ParseCallBlock(Block* out);
  absl::Status ParseFilterBlock(Block* out);
  absl::Status ParseWith(Block* out);
  absl::Status ParseGeneration(Block* out);
  absl::Status ParsePrint(Block* out);
  absl::Status ParseLoopControl(StmtKind kind, Block* out);
  absl::Status ParseSignature(MacroStmt* macro);
  absl::Status ParseMacroBody(std::string_view end_name, MacroStmt* macro);
  absl::StatusOr<Target> ParseTarget(bool allow_attribute);
  absl::StatusOr<Target> ParseSingleTarget(bool allow_attribute);

  // Expressions (parser_expressions.cc).
  // A comma makes a tuple; `ends` are names that may follow a trailing comma.
  absl::StatusOr<ExprPtr> ParseTuple(bool allow_conditional, bool parenthesised = false);
  absl::StatusOr<ExprPtr> ParseExpression();
  absl::StatusOr<ExprPtr> ParseOr();
  absl::StatusOr<ExprPtr> ParseAnd();
  absl::StatusOr<ExprPtr> ParseNot();
  absl::StatusOr<ExprPtr> ParseCompare();
  absl::StatusOr<ExprPtr> ParseBinary(int level);
  absl::StatusOr<ExprPtr> ParseConcat();
  absl::StatusOr<ExprPtr> ParseUnary(bool with_filters);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParseNameOrConstant();
  absl::StatusOr<ExprPtr> ParseStrings();
  absl::StatusOr<ExprPtr> ParseList();
  absl::StatusOr<ExprPtr> ParseDict();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseFiltersAndTests(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr input, bool without_bar);
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr input);
  absl::StatusOr<ExprPtr> ParseAttribute(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseSlice(ExprPtr object, ExprPtr start, int line);
  absl::StatusOr<ExprPtr> ParseCall(ExprPtr callee);
  absl::Status ParseArguments(CallArguments* out, int* height);
  absl::Status ParseArgument(CallArguments* out, int* height);
  absl::StatusOr<std::string> ParseDottedName();
  bool AtTupleEnd() const;

  // Sets the node's height from the children's and checks it.
  absl::StatusOr<ExprPtr> Finish(ExprPtr node, int children_height) const;
  absl::StatusOr<ExprPtr> Finish(ExprPtr node, std::initializer_list<const Expr*> children) const;

  std::vector<Token> tokens_;
  size_t position_ = 0;
  TemplateLimits limits_;
  Template template_;
  absl::flat_hash_map<std::string, SymbolId> symbol_ids_;
  int depth_ = 0;
  int loops_ = 0;               // open for loops in the current macro
  int conditions_ = 0;          // open conditions, in which an unknown filter is no error yet
  MacroStmt* macro_ = nullptr;  // the innermost macro being parsed
};

}  // namespace heddle::engine::text::jinja
