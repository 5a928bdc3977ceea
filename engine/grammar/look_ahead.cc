#include "engine/grammar/look_ahead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/grammar/thompson.h"

namespace heddle::engine::grammar {
namespace {

constexpr int32_t kMaxRounds = 4;  // of a group with a look-ahead, which is copied for each

bool Has(const Grammar& grammar, ExprId id, ExprKind kind) {
  const Expr& expr = grammar.exprs[Index(id)];
  return expr.kind == kind || std::any_of(expr.parts.begin(), expr.parts.end(),
                                          [&](ExprId part) { return Has(grammar, part, kind); });
}

class LookAheads {
 public:
  LookAheads(Grammar* grammar, Budget* budget) : grammar_(*grammar), budget_(budget) {}

  // The texts of `id` and then of `rest`, which ends where the text ends: each look-ahead in `id`
  // is intersected with all that follows it.
  absl::StatusOr<ExprId> Before(ExprId id, ExprId rest) {
    if (!Has(grammar_, id, ExprKind::kAhead)) return grammar_.Sequence({id, rest});
    const Expr expr = grammar_.exprs[Index(id)];
    switch (expr.kind) {
      case ExprKind::kAhead:
        return Intersected(grammar_.machines[static_cast<size_t>(expr.machine)], rest);
      case ExprKind::kSequence:
        return BeforeSequence(expr, rest);
      case ExprKind::kChoice: {
        HEDDLE_ASSIGN_OR_RETURN(rest, Shared(rest));
        std::vector<ExprId> parts;
        for (const ExprId part : expr.parts) {
          HEDDLE_ASSIGN_OR_RETURN(const ExprId whole, Before(part, rest));
          parts.push_back(whole);
        }
        return grammar_.Choice(std::move(parts));
      }
      default:
        return BeforeRepeat(expr, rest);
    }
  }

 private:
  absl::StatusOr<ExprId> Intersected(const StateMachine& condition, ExprId rest) {
    if (Has(grammar_, rest, ExprKind::kBegin)) {
      return absl::InvalidArgumentError("^ behind a look-ahead is not supported");
    }
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine texts, MachineOf(grammar_, rest, budget_));
    HEDDLE_ASSIGN_OR_RETURN(StateMachine both, Intersect(texts, condition, kMaxStates, budget_));
    return grammar_.Machine(std::move(both));
  }

  // Parts without look-ahead stay together, so that long sequences do not nest.
  absl::StatusOr<ExprId> BeforeSequence(const Expr& sequence, ExprId rest) {
    std::vector<ExprId> plain = {rest};  // from the end
    const auto whole = [&] {
      std::reverse(plain.begin(), plain.end());
      return grammar_.Sequence(std::exchange(plain, {}));
    };
    for (auto part = sequence.parts.rbegin(); part != sequence.parts.rend(); ++part) {
      if (!Has(grammar_, *part, ExprKind::kAhead)) {
        plain.push_back(*part);
        continue;
      }
      HEDDLE_ASSIGN_OR_RETURN(const ExprId behind, Before(*part, whole()));
      plain.push_back(behind);
    }
    return whole();
  }

  // The same texts as one machine, for an expression that is used several times. A ^ in it would
  // lose its meaning; such an expression stays as it is.
  absl::StatusOr<ExprId> Shared(ExprId rest) {
    if (Has(grammar_, rest, ExprKind::kBegin)) return rest;
    HEDDLE_ASSIGN_OR_RETURN(StateMachine machine, MachineOf(grammar_, rest, budget_));
    return grammar_.Machine(std::move(machine));
  }

  // The last round stands before `rest`, and each other one before the next.
  absl::StatusOr<ExprId> BeforeRepeat(const Expr& repeat, ExprId rest) {
    if (repeat.max == kUnbounded || repeat.max > kMaxRounds) {
      return absl::InvalidArgumentError(
          "look-ahead within a group that is repeated is not supported");
    }
    HEDDLE_ASSIGN_OR_RETURN(rest, Shared(rest));
    ExprId whole = rest;
    for (int32_t round = repeat.max; round > 0; --round) {
      HEDDLE_ASSIGN_OR_RETURN(whole, Before(repeat.parts[0], whole));
      if (round > repeat.min) whole = grammar_.Choice({whole, rest});
    }
    return whole;
  }

  Grammar& grammar_;
  Budget* const budget_;
};

}  // namespace

absl::StatusOr<StateMachine> MachineOfWhole(Grammar* grammar, ExprId expr, Budget* budget) {
  if (Has(*grammar, expr, ExprKind::kAhead)) {
    HEDDLE_ASSIGN_OR_RETURN(expr, LookAheads(grammar, budget).Before(expr, grammar->Text(U"")));
  }
  return MachineOf(*grammar, expr, budget);
}

}  // namespace heddle::engine::grammar
