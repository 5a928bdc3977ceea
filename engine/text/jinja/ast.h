// The parsed template. It is immutable once the parser has made it, so many threads can render from
// it. Constants in it view texts that their node owns; nodes do not move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/callable.h"
#include "engine/text/jinja/operators.h"
#include "engine/text/jinja/value.h"

namespace heddle::engine::text::jinja {

using SymbolId = uint32_t;  // index into Template::symbols

enum class ExprKind : uint8_t {
  kConst,
  kName,
  kSequence,
  kDict,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kUnary,
  kBinary,
  kAnd,
  kOr,
  kCompare,
  kConcat,
  kConditional,
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  Expr(const Expr&) = delete;
  Expr& operator=(const Expr&) = delete;

  ExprKind kind;
  int line;
  int height = 1;  // height of the tree below; the parser bounds it, so that recursion is
};
using ExprPtr = std::unique_ptr<Expr>;

struct ConstExpr : Expr {
  explicit ConstExpr(int l) : Expr(ExprKind::kConst, l) {}
  Value value;
  std::string storage;
};

struct NameExpr : Expr {
  explicit NameExpr(int l) : Expr(ExprKind::kName, l) {}
  SymbolId symbol = 0;
};

struct SequenceExpr : Expr {
  explicit SequenceExpr(int l) : Expr(ExprKind::kSequence, l) {}
  bool tuple = false;
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  explicit DictExpr(int l) : Expr(ExprKind::kDict, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

struct AttributeExpr : Expr {
  explicit AttributeExpr(int l) : Expr(ExprKind::kAttribute, l) {}
  ExprPtr object;
  std::string name;
  MethodSet methods;
};

struct ItemExpr : Expr {
  explicit ItemExpr(int l) : Expr(ExprKind::kItem, l) {}
  ExprPtr object;
  ExprPtr index;
};

struct SliceExpr : Expr {  // missing bounds are null
  explicit SliceExpr(int l) : Expr(ExprKind::kSlice, l) {}
  ExprPtr object;
  ExprPtr start;
  ExprPtr stop;
  ExprPtr step;
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *args
  ExprPtr star_star;  // **kwargs
};

struct CallExpr : Expr {
  explicit CallExpr(int l) : Expr(ExprKind::kCall, l) {}
  ExprPtr callee;
  CallArguments arguments;
};

struct FilterExpr : Expr {
  explicit FilterExpr(int l) : Expr(ExprKind::kFilter, l) {}
  ExprPtr input;  // null at the innermost filter of a filter block, whose input is the block's text
  std::string name;
  const Builtin* filter = nullptr;  // null: unknown, an error when it is reached
  CallArguments arguments;
};

struct TestExpr : Expr {
  explicit TestExpr(int l) : Expr(ExprKind::kTest, l) {}
  ExprPtr input;
  std::string name;
  const Builtin* test = nullptr;  // as above
  CallArguments arguments;
};

struct UnaryExpr : Expr {
  explicit UnaryExpr(int l) : Expr(ExprKind::kUnary, l) {}
  UnaryOp op = UnaryOp::kNot;
  ExprPtr operand;
};

struct BinaryExpr : Expr {  // kBinary, kAnd, kOr
  BinaryExpr(ExprKind k, int l) : Expr(k, l) {}
  BinaryOp op = BinaryOp::kAdd;
  ExprPtr left;
  ExprPtr right;
};

struct CompareExpr : Expr {  // a < b <= c
  explicit CompareExpr(int l) : Expr(ExprKind::kCompare, l) {}
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};

struct ConcatExpr : Expr {  // a ~ b ~ c
  explicit ConcatExpr(int l) : Expr(ExprKind::kConcat, l) {}
  std::vector<ExprPtr> parts;
};

struct ConditionalExpr : Expr {  // then if test else otherwise; otherwise may be null
  explicit ConditionalExpr(int l) : Expr(ExprKind::kConditional, l) {}
  ExprPtr test;
  ExprPtr then;
  ExprPtr otherwise;
};

enum class StmtKind : uint8_t {
  kText,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kGeneration,
  kBreak,
  kContinue,
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  Stmt(const Stmt&) = delete;
  Stmt& operator=(const Stmt&) = delete;

  StmtKind kind;
  int line;
};
using Block = std::vector<std::unique_ptr<Stmt>>;

// The target of an assignment: a name, a namespace's attribute, or several of them.
struct Target {
  enum class Kind : uint8_t { kName, kAttribute, kTuple };
  Kind kind = Kind::kName;
  SymbolId symbol = 0;
  std::string attribute;
  std::vector<Target> items;
};

struct TextStmt : Stmt {
  explicit TextStmt(int l) : Stmt(StmtKind::kText, l) {}
  std::string text;
};

struct OutputStmt : Stmt {
  explicit OutputStmt(int l) : Stmt(StmtKind::kOutput, l) {}
  ExprPtr value;
};

struct IfStmt : Stmt {
  explicit IfStmt(int l) : Stmt(StmtKind::kIf, l) {}
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block otherwise;
};

struct ForStmt : Stmt {
  explicit ForStmt(int l) : Stmt(StmtKind::kFor, l) {}
  Target target;
  ExprPtr iterable;
  ExprPtr filter;  // null if there is none
  bool recursive = false;
  Block body;
  Block otherwise;
};

struct SetStmt : Stmt {
  explicit SetStmt(int l) : Stmt(StmtKind::kSet, l) {}
  Target target;
  ExprPtr value;
};

struct SetBlockStmt : Stmt {
  explicit SetBlockStmt(int l) : Stmt(StmtKind::kSetBlock, l) {}
  Target target;
  ExprPtr filter;  // null, or a chain of FilterExpr
  Block body;
};

struct MacroStmt : Stmt {
  explicit MacroStmt(int l) : Stmt(StmtKind::kMacro, l) {}
  struct Parameter {
    SymbolId symbol;
    std::string name;
    ExprPtr otherwise;  // the default; null: undefined if not given
  };
  SymbolId symbol = 0;
  std::string name;  // empty: the body of a call block
  std::vector<Parameter> parameters;
  Block body;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct CallBlockStmt : Stmt {
  explicit CallBlockStmt(int l) : Stmt(StmtKind::kCallBlock, l), body(l) {}
  ExprPtr call;  // a CallExpr
  MacroStmt body;
};

struct FilterBlockStmt : Stmt {
  explicit FilterBlockStmt(int l) : Stmt(StmtKind::kFilterBlock, l) {}
  ExprPtr filter;
  Block body;
};

struct WithStmt : Stmt {
  explicit WithStmt(int l) : Stmt(StmtKind::kWith, l) {}
  std::vector<std::pair<Target, ExprPtr>> bindings;
  Block body;
};

struct GenerationStmt : Stmt {  // marks the assistant's text; renders as its body
  explicit GenerationStmt(int l) : Stmt(StmtKind::kGeneration, l) {}
  Block body;
};

struct ControlStmt : Stmt {  // kBreak, kContinue
  using Stmt::Stmt;
};

// Names that the interpreter itself binds.
struct WellKnownSymbols {
  SymbolId loop;
  SymbolId caller;
  SymbolId varargs;
  SymbolId kwargs;
};

struct Template {
  Block body;
  std::vector<std::string> symbols;  // every variable name that occurs, then the well-known ones
  size_t num_named = 0;              // how many of them occur in the source
  WellKnownSymbols known;
};

}  // namespace heddle::engine::text::jinja
