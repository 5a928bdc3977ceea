#include <algorithm>
#include <array>

#include "base/message.h"
#include "base/status.h"
#include "engine/text/jinja/parser_internal.h"

namespace heddle::engine::text::jinja {
namespace {

struct Operator {
  std::string_view sign;
  BinaryOp op;
};

// Left-associative operators by precedence. `~` is between sums and products.
constexpr Operator kSums[] = {{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSub}};
constexpr Operator kProducts[] = {{"*", BinaryOp::kMul},
                                  {"/", BinaryOp::kDiv},
                                  {"//", BinaryOp::kFloorDiv},
                                  {"%", BinaryOp::kMod}};
constexpr Operator kPowers[] = {{"**", BinaryOp::kPow}};
constexpr std::span<const Operator> kLevels[] = {kSums, kProducts, kPowers};

constexpr std::pair<std::string_view, CompareOp> kComparisons[] = {
    {"==", CompareOp::kEq}, {"!=", CompareOp::kNe}, {"<", CompareOp::kLt},
    {"<=", CompareOp::kLe}, {">", CompareOp::kGt},  {">=", CompareOp::kGe}};

const Operator* FindOperator(std::span<const Operator> operators, std::string_view sign) {
  for (const Operator& candidate : operators) {
    if (candidate.sign == sign) return &candidate;
  }
  return nullptr;
}

int HeightOf(const ExprPtr& expr) { return expr == nullptr ? 0 : expr->height; }

}  // namespace

absl::StatusOr<ExprPtr> Parser::Finish(ExprPtr node, int children_height) const {
  node->height = children_height + 1;
  if (node->height <= limits_.max_tree_height) return node;
  return SyntaxError(node->line, base::StrCat("an expression has more than ",
                                              limits_.max_tree_height, " levels of operators"));
}

absl::StatusOr<ExprPtr> Parser::Finish(ExprPtr node,
                                       std::initializer_list<const Expr*> children) const {
  int height = 0;
  for (const Expr* child : children) {
    if (child != nullptr) height = std::max(height, child->height);
  }
  return Finish(std::move(node), height);
}

bool Parser::AtTupleEnd() const {
  const Token& token = Current();
  return token.kind == TokenKind::kVariableEnd || token.kind == TokenKind::kBlockEnd ||
         token.IsOperator(")") || token.IsName("recursive");
}

absl::StatusOr<ExprPtr> Parser::ParseTuple(bool allow_conditional, bool parenthesised) {
  auto tuple = std::make_unique<SequenceExpr>(Current().line);
  tuple->tuple = true;
  bool has_comma = false;
  int height = 0;
  while (!AtTupleEnd()) {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr item, allow_conditional ? ParseExpression() : ParseOr());
    height = std::max(height, item->height);
    tuple->items.push_back(std::move(item));
    if (!SkipOperator(",")) break;
    has_comma = true;
  }
  if (!has_comma) {
    if (!tuple->items.empty()) return std::move(tuple->items.front());
    if (!parenthesised) return Unexpected("an expression");
  }
  return Finish(std::move(tuple), height);
}

absl::StatusOr<ExprPtr> Parser::ParseExpression() {
  Nested nested(&depth_);
  HEDDLE_RETURN_IF_ERROR(CheckNesting());
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr expr, ParseOr());
  while (Current().IsName("if")) {
    auto node = std::make_unique<ConditionalExpr>(Take().line);
    ++conditions_;
    HEDDLE_ASSIGN_OR_RETURN(node->test, ParseOr());
    if (SkipName("else")) {
      HEDDLE_ASSIGN_OR_RETURN(node->otherwise, ParseExpression());
    }
    --conditions_;
    node->then = std::move(expr);
    int height = std::max({node->test->height, node->then->height, HeightOf(node->otherwise)});
    HEDDLE_ASSIGN_OR_RETURN(expr, Finish(std::move(node), height));
  }
  return expr;
}

absl::StatusOr<ExprPtr> Parser::ParseOr() {
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  while (Current().IsName("or")) {
    auto node = std::make_unique<BinaryExpr>(ExprKind::kOr, Take().line);
    HEDDLE_ASSIGN_OR_RETURN(node->right, ParseAnd());
    node->left = std::move(left);
    int height = std::max(node->left->height, node->right->height);
    HEDDLE_ASSIGN_OR_RETURN(left, Finish(std::move(node), height));
  }
  return left;
}

absl::StatusOr<ExprPtr> Parser::ParseAnd() {
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  while (Current().IsName("and")) {
    auto node = std::make_unique<BinaryExpr>(ExprKind::kAnd, Take().line);
    HEDDLE_ASSIGN_OR_RETURN(node->right, ParseNot());
    node->left = std::move(left);
    int height = std::max(node->left->height, node->right->height);
    HEDDLE_ASSIGN_OR_RETURN(left, Finish(std::move(node), height));
  }
  return left;
}

absl::StatusOr<ExprPtr> Parser::ParseNot() {
  if (!Current().IsName("not")) return ParseCompare();
  Nested nested(&depth_);
  HEDDLE_RETURN_IF_ERROR(CheckNesting());
  auto node = std::make_unique<UnaryExpr>(Take().line);
  HEDDLE_ASSIGN_OR_RETURN(node->operand, ParseNot());
  int height = node->operand->height;
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParseCompare() {
  int line = Current().line;
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr first, ParseBinary(0));
  auto node = std::make_unique<CompareExpr>(line);
  int height = first->height;
  while (true) {
    CompareOp op = CompareOp::kEq;
    const auto* found =
        std::find_if(std::begin(kComparisons), std::end(kComparisons),
                     [this](const auto& c) { return Current().IsOperator(c.first); });
    if (found != std::end(kComparisons)) {
      op = found->second;
    } else if (Current().IsName("in")) {
      op = CompareOp::kIn;
    } else if (Current().IsName("not") && Next().IsName("in")) {
      op = CompareOp::kNotIn;
      Take();
    } else {
      break;
    }
    Take();
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr right, ParseBinary(0));
    height = std::max(height, right->height);
    node->rest.emplace_back(op, std::move(right));
  }
  if (node->rest.empty()) return first;
  node->first = std::move(first);
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParseBinary(int level) {
  if (static_cast<size_t>(level) == std::size(kLevels)) return ParseUnary(/*with_filters=*/true);
  auto operand = [this, level] { return level == 0 ? ParseConcat() : ParseBinary(level + 1); };
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr left, operand());
  while (Current().kind == TokenKind::kOperator) {
    const Operator* found = FindOperator(kLevels[level], Current().text);
    if (found == nullptr) break;
    auto node = std::make_unique<BinaryExpr>(ExprKind::kBinary, Take().line);
    node->op = found->op;
    HEDDLE_ASSIGN_OR_RETURN(node->right, operand());
    node->left = std::move(left);
    int height = std::max(node->left->height, node->right->height);
    HEDDLE_ASSIGN_OR_RETURN(left, Finish(std::move(node), height));
  }
  return left;
}

absl::StatusOr<ExprPtr> Parser::ParseConcat() {
  auto node = std::make_unique<ConcatExpr>(Current().line);
  int height = 0;
  do {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr part, ParseBinary(1));
    height = std::max(height, part->height);
    node->parts.push_back(std::move(part));
  } while (SkipOperator("~"));
  if (node->parts.size() == 1) return std::move(node->parts.front());
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParseUnary(bool with_filters) {
  Nested nested(&depth_);
  HEDDLE_RETURN_IF_ERROR(CheckNesting());
  ExprPtr expr;
  if (Current().IsOperator("-") || Current().IsOperator("+")) {
    bool negate = Current().IsOperator("-");
    auto node = std::make_unique<UnaryExpr>(Take().line);
    node->op = negate ? UnaryOp::kNegate : UnaryOp::kPlus;
    HEDDLE_ASSIGN_OR_RETURN(node->operand, ParseUnary(/*with_filters=*/false));
    int height = node->operand->height;
    HEDDLE_ASSIGN_OR_RETURN(expr, Finish(std::move(node), height));
  } else {
    HEDDLE_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  HEDDLE_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  if (!with_filters) return expr;
  return ParseFiltersAndTests(std::move(expr));
}

absl::StatusOr<ExprPtr> Parser::ParseNameOrConstant() {
  Token token = Take();
  auto constant = [&](Value value) -> ExprPtr {
    auto node = std::make_unique<ConstExpr>(token.line);
    node->value = value;
    return node;
  };
  if (token.text == "true" || token.text == "True") return constant(Value::Bool(true));
  if (token.text == "false" || token.text == "False") return constant(Value::Bool(false));
  if (token.text == "none" || token.text == "None") return constant(Value::None());
  auto node = std::make_unique<NameExpr>(token.line);
  node->symbol = Intern(token.text);
  if (macro_ != nullptr) {
    macro_->uses_varargs |= token.text == "varargs";
    macro_->uses_kwargs |= token.text == "kwargs";
    macro_->uses_caller |= token.text == "caller";
  }
  return node;
}

absl::StatusOr<ExprPtr> Parser::ParseStrings() {
  auto node = std::make_unique<ConstExpr>(Current().line);
  while (Current().kind == TokenKind::kString) node->storage += Take().text;
  node->value = Value::String(node->storage);
  return node;
}

absl::StatusOr<ExprPtr> Parser::ParsePrimary() {
  const Token& token = Current();
  switch (token.kind) {
    case TokenKind::kName:
      return ParseNameOrConstant();
    case TokenKind::kString:
      return ParseStrings();
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      auto node = std::make_unique<ConstExpr>(token.line);
      node->value =
          token.kind == TokenKind::kInteger ? Value::Int(token.integer) : Value::Float(token.real);
      Take();
      return node;
    }
    default:
      break;
  }
  if (SkipOperator("(")) {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr inner,
                            ParseTuple(/*allow_conditional=*/true, /*parenthesised=*/true));
    HEDDLE_RETURN_IF_ERROR(ExpectOperator(")"));
    return inner;
  }
  if (token.IsOperator("[")) return ParseList();
  if (token.IsOperator("{")) return ParseDict();
  return Unexpected("an expression");
}

absl::StatusOr<ExprPtr> Parser::ParseList() {
  auto node = std::make_unique<SequenceExpr>(Take().line);
  int height = 0;
  while (!Current().IsOperator("]")) {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    height = std::max(height, item->height);
    node->items.push_back(std::move(item));
    if (!SkipOperator(",")) break;
  }
  HEDDLE_RETURN_IF_ERROR(ExpectOperator("]"));
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParseDict() {
  auto node = std::make_unique<DictExpr>(Take().line);
  int height = 0;
  while (!Current().IsOperator("}")) {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    HEDDLE_RETURN_IF_ERROR(ExpectOperator(":"));
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    height = std::max({height, key->height, value->height});
    node->items.emplace_back(std::move(key), std::move(value));
    if (!SkipOperator(",")) break;
  }
  HEDDLE_RETURN_IF_ERROR(ExpectOperator("}"));
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParsePostfix(ExprPtr expr) {
  while (true) {
    if (Current().IsOperator(".")) {
      HEDDLE_ASSIGN_OR_RETURN(expr, ParseAttribute(std::move(expr)));
    } else if (Current().IsOperator("[")) {
      HEDDLE_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (Current().IsOperator("(")) {
      HEDDLE_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> Parser::ParseAttribute(ExprPtr object) {
  int line = Take().line;
  int height = object->height;
  if (Current().kind == TokenKind::kInteger) {
    auto node = std::make_unique<ItemExpr>(line);
    auto index = std::make_unique<ConstExpr>(line);
    index->value = Value::Int(Take().integer);
    node->object = std::move(object);
    node->index = std::move(index);
    return Finish(std::move(node), height);
  }
  auto node = std::make_unique<AttributeExpr>(line);
  HEDDLE_ASSIGN_OR_RETURN(node->name, TakeName());
  node->methods = FindMethods(node->name);
  node->object = std::move(object);
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParseSubscript(ExprPtr object) {
  int line = Take().line;
  if (Current().IsOperator(":")) return ParseSlice(std::move(object), nullptr, line);
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr index, ParseExpression());
  if (Current().IsOperator(":")) return ParseSlice(std::move(object), std::move(index), line);
  if (Current().IsOperator(",")) {
    auto tuple = std::make_unique<SequenceExpr>(line);
    tuple->tuple = true;
    int height = index->height;
    tuple->items.push_back(std::move(index));
    while (SkipOperator(",")) {
      HEDDLE_ASSIGN_OR_RETURN(ExprPtr next, ParseExpression());
      height = std::max(height, next->height);
      tuple->items.push_back(std::move(next));
    }
    HEDDLE_ASSIGN_OR_RETURN(index, Finish(std::move(tuple), height));
  }
  HEDDLE_RETURN_IF_ERROR(ExpectOperator("]"));
  auto node = std::make_unique<ItemExpr>(line);
  node->object = std::move(object);
  node->index = std::move(index);
  int height = std::max(node->object->height, node->index->height);
  return Finish(std::move(node), height);
}

absl::StatusOr<ExprPtr> Parser::ParseSlice(ExprPtr object, ExprPtr start, int line) {
  auto node = std::make_unique<SliceExpr>(line);
  node->object = std::move(object);
  node->start = std::move(start);
  HEDDLE_RETURN_IF_ERROR(ExpectOperator(":"));
  if (!Current().IsOperator(":") && !Current().IsOperator("]")) {
    HEDDLE_ASSIGN_OR_RETURN(node->stop, ParseExpression());
  }
  if (SkipOperator(":") && !Current().IsOperator("]")) {
    HEDDLE_ASSIGN_OR_RETURN(node->step, ParseExpression());
  }
  HEDDLE_RETURN_IF_ERROR(ExpectOperator("]"));
  int height = std::max(
      {node->object->height, HeightOf(node->start), HeightOf(node->stop), HeightOf(node->step)});
  return Finish(std::move(node), height);
}

absl::Status Parser::ParseArgument(CallArguments* out, int* height) {
  ExprPtr* slot = nullptr;
  if (Current().IsOperator("*") && out->star == nullptr && out->star_star == nullptr) {
    slot = &out->star;
    Take();
  } else if (Current().IsOperator("**") && out->star_star == nullptr) {
    slot = &out->star_star;
    Take();
  } else if (Current().kind == TokenKind::kName && Next().IsOperator("=") &&
             out->star_star == nullptr) {
    out->named.emplace_back(Take().text, nullptr);
    Take();
    slot = &out->named.back().second;
  } else if (out->named.empty() && out->star == nullptr && out->star_star == nullptr) {
    slot = &out->positional.emplace_back();
  } else {
    return Fail("invalid syntax for function call expression");
  }
  HEDDLE_ASSIGN_OR_RETURN(*slot, ParseExpression());
  *height = std::max(*height, (*slot)->height);
  return absl::OkStatus();
}

absl::Status Parser::ParseArguments(CallArguments* out, int* height) {
  HEDDLE_RETURN_IF_ERROR(ExpectOperator("("));
  while (!Current().IsOperator(")")) {
    HEDDLE_RETURN_IF_ERROR(ParseArgument(out, height));
    if (!SkipOperator(",")) break;
  }
  return ExpectOperator(")");
}

absl::StatusOr<ExprPtr> Parser::ParseCall(ExprPtr callee) {
  auto node = std::make_unique<CallExpr>(Current().line);
  int height = callee->height;
  node->callee = std::move(callee);
  HEDDLE_RETURN_IF_ERROR(ParseArguments(&node->arguments, &height));
  return Finish(std::move(node), height);
}

absl::StatusOr<std::string> Parser::ParseDottedName() {
  HEDDLE_ASSIGN_OR_RETURN(std::string name, TakeName());
  while (SkipOperator(".")) {
    HEDDLE_ASSIGN_OR_RETURN(std::string part, TakeName());
    name.append(base::StrCat(".", part));
  }
  return name;
}

absl::StatusOr<ExprPtr> Parser::ParseFiltersAndTests(ExprPtr expr) {
  while (true) {
    if (Current().IsOperator("|")) {
      HEDDLE_ASSIGN_OR_RETURN(expr, ParseFilters(std::move(expr), /*without_bar=*/false));
    } else if (Current().IsName("is")) {
      HEDDLE_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (Current().IsOperator("(")) {
      HEDDLE_ASSIGN_OR_RETURN(expr, ParseCall(std::move(expr)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> Parser::ParseFilters(ExprPtr input, bool without_bar) {
  while (without_bar || SkipOperator("|")) {
    without_bar = false;
    auto node = std::make_unique<FilterExpr>(Current().line);
    HEDDLE_ASSIGN_OR_RETURN(node->name, ParseDottedName());
    node->filter = FindFilter(node->name);
    if (node->filter == nullptr && conditions_ == 0) {
      return SyntaxError(node->line, base::StrCat("No filter named '", node->name, "'."));
    }
    int height = HeightOf(input);
    node->input = std::move(input);
    if (Current().IsOperator("(")) {
      HEDDLE_RETURN_IF_ERROR(ParseArguments(&node->arguments, &height));
    }
    HEDDLE_ASSIGN_OR_RETURN(input, Finish(std::move(node), height));
  }
  return input;
}

absl::StatusOr<ExprPtr> Parser::ParseTest(ExprPtr input) {
  Take();
  bool negated = SkipName("not");
  auto node = std::make_unique<TestExpr>(Current().line);
  HEDDLE_ASSIGN_OR_RETURN(node->name, ParseDottedName());
  node->test = FindTest(node->name);
  if (node->test == nullptr && conditions_ == 0) {
    return SyntaxError(node->line, base::StrCat("No test named '", node->name, "'."));
  }
  int height = input->height;
  node->input = std::move(input);
  const Token& token = Current();
  bool operand = token.kind == TokenKind::kString || token.kind == TokenKind::kInteger ||
                 token.kind == TokenKind::kFloat || token.IsOperator("[") ||
                 token.IsOperator("{") ||
                 (token.kind == TokenKind::kName && !token.IsName("else") && !token.IsName("or") &&
                  !token.IsName("and"));
  if (token.IsOperator("(")) {
    HEDDLE_RETURN_IF_ERROR(ParseArguments(&node->arguments, &height));
  } else if (token.IsName("is")) {
    return Fail("You cannot chain multiple tests with is");
  } else if (operand && !token.IsName("if") && !token.IsName("recursive")) {
    HEDDLE_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    HEDDLE_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    height = std::max(height, argument->height);
    node->arguments.positional.push_back(std::move(argument));
  }
  HEDDLE_ASSIGN_OR_RETURN(ExprPtr test, Finish(std::move(node), height));
  if (!negated) return test;
  auto negation = std::make_unique<UnaryExpr>(test->line);
  height = test->height;
  negation->operand = std::move(test);
  return Finish(std::move(negation), height);
}

}  // namespace heddle::engine::text::jinja
