#include "engine/grammar/schema/number_machine.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/grammar/regex.h"

namespace heddle::engine::grammar {
namespace {

constexpr int32_t kWholeDigits = 18;
constexpr int32_t kFractionDigits = 16;
constexpr int kMaxExponent = 40;
constexpr int64_t kMaxStep = 100'000;  // of a step's digits as an integer
constexpr size_t kMaxMachine = size_t{1} << 16;

// How the digits read so far compare with those of a bound.
enum class Order : uint8_t { kBelow, kEqual, kAbove };

Order Refine(Order order, char digit, char bound) {
  if (order != Order::kEqual || digit == bound) return order;
  return digit < bound ? Order::kBelow : Order::kAbove;
}

enum class Phase : uint8_t { kStart, kZero, kWhole, kPoint, kFraction };

struct NumberState {
  Phase phase = Phase::kStart;
  int32_t digits = 0;  // of the whole part, then of the fraction
  Order to_min = Order::kEqual;
  Order to_max = Order::kEqual;
  int64_t remainder = 0;
  auto operator<=>(const NumberState&) const = default;
};

// The numbers of a range without sign, whose bounds have none either.
class Magnitudes {
 public:
  Magnitudes(NumberBound min, std::optional<NumberBound> max, bool integer)
      : min_(std::move(min)), max_(std::move(max)), integer_(integer) {
    const size_t bound = max_ ? max_->value.whole.size()
                              : std::max<size_t>(kWholeDigits, min_.value.whole.size() + 1);
    max_whole_ = static_cast<int32_t>(bound);
    size_t fraction = std::max<size_t>(kFractionDigits, min_.value.fraction.size() + 1);
    if (max_) fraction = std::max(fraction, max_->value.fraction.size() + 1);
    max_fraction_ = integer_ ? 0 : static_cast<int32_t>(fraction);
  }

  // Restricts the numbers to multiples of step / 10^scale.
  void SetStep(int64_t step, int32_t scale) {
    step_ = step;
    scale_ = scale;
    max_fraction_ = std::min(max_fraction_, scale);
  }

  absl::StatusOr<StateMachine> Build(Budget* budget) {
    StateMachine machine;
    Visit({});
    for (size_t i = 0; i < order_.size(); ++i) {
      HEDDLE_RETURN_IF_ERROR(Spend(budget, 10));
      if (order_.size() > kMaxMachine) {
        return absl::InvalidArgumentError("multipleOf is too fine for these bounds");
      }
      const NumberState state = order_[i];
      MachineState out;
      out.accepting = Accepts(state);
      if (state.phase == Phase::kZero || state.phase == Phase::kWhole) {
        const NumberState point = AtPoint(state);
        if (max_fraction_ > 0 && Viable(point)) out.chars.push_back({U'.', U'.', Visit(point)});
      }
      for (char digit = '0'; digit <= '9'; ++digit) {
        NumberState next = state;
        if (!Read(digit, &next)) continue;
        const auto c = static_cast<char32_t>(digit);
        out.chars.push_back({c, c, Visit(next)});
      }
      machine.states.push_back(std::move(out));
    }
    StateMachine least = Minimize(machine, budget);
    HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
    return least;
  }

 private:
  int32_t Visit(const NumberState& state) {
    auto [it, is_new] = ids_.try_emplace(state, static_cast<int32_t>(order_.size()));
    if (is_new) order_.push_back(state);
    return it->second;
  }

  static char DigitOf(const std::string& digits, int32_t at) {
    return at < static_cast<int32_t>(digits.size()) ? digits[static_cast<size_t>(at)] : '0';
  }

  bool Read(char digit, NumberState* state) const {
    const bool whole = state->phase == Phase::kStart || state->phase == Phase::kWhole;
    if (state->phase == Phase::kZero) return false;
    if (state->digits >= (whole ? max_whole_ : max_fraction_)) return false;
    const int32_t at = state->digits++;
    auto digits_of = [whole](const Decimal& d) -> const std::string& {
      return whole ? d.whole : d.fraction;
    };
    state->to_min = Refine(state->to_min, digit, DigitOf(digits_of(min_.value), at));
    if (max_) state->to_max = Refine(state->to_max, digit, DigitOf(digits_of(max_->value), at));
    if (step_ > 0) state->remainder = (state->remainder * 10 + (digit - '0')) % step_;
    if (state->phase == Phase::kStart) {
      state->phase = digit == '0' ? Phase::kZero : Phase::kWhole;
    } else if (!whole) {
      state->phase = Phase::kFraction;
      return Viable(*state);
    }
    return true;
  }

  // A whole part of fewer digits is smaller, whatever its digits are.
  static Order ByLength(Order order, int32_t digits, const Decimal& bound) {
    const auto length = static_cast<int32_t>(bound.whole.size());
    if (digits == length) return order;
    return digits < length ? Order::kBelow : Order::kAbove;
  }

  NumberState AtPoint(NumberState state) const {
    state.to_min = ByLength(state.to_min, state.digits, min_.value);
    if (max_) state.to_max = ByLength(state.to_max, state.digits, max_->value);
    state.phase = Phase::kPoint;
    state.digits = 0;
    return state;
  }

  // Whether further digits of the fraction can still bring the number into the range.
  bool Viable(const NumberState& state) const {
    return state.to_min != Order::kBelow && (!max_ || state.to_max != Order::kAbove);
  }

  bool Accepts(NumberState state) const {
    if (state.phase == Phase::kStart || state.phase == Phase::kPoint) return false;
    if (state.phase != Phase::kFraction) state = AtPoint(state);
    // The bound's remaining fraction is greater than zeros.
    auto at_end = [&state](Order order, const Decimal& bound) {
      const bool more = static_cast<size_t>(state.digits) < bound.fraction.size();
      return order == Order::kEqual && more ? Order::kBelow : order;
    };
    const Order to_min = at_end(state.to_min, min_.value);
    if (to_min == Order::kBelow || (to_min == Order::kEqual && min_.exclusive)) return false;
    if (max_) {
      const Order to_max = at_end(state.to_max, max_->value);
      if (to_max == Order::kAbove || (to_max == Order::kEqual && max_->exclusive)) return false;
    }
    int64_t remainder = state.remainder;
    for (int32_t i = state.digits; step_ > 0 && i < scale_; ++i) remainder = remainder * 10 % step_;
    return remainder == 0;
  }

  const NumberBound min_;
  const std::optional<NumberBound> max_;
  const bool integer_;
  int32_t max_whole_ = 0;
  int32_t max_fraction_ = 0;
  int64_t step_ = 0;
  int32_t scale_ = 0;
  std::map<NumberState, int32_t> ids_;
  std::vector<NumberState> order_;
};

// The numbers of `machine` except one, in any notation without an exponent.
absl::StatusOr<StateMachine> Without(const StateMachine& machine, const Decimal& number,
                                     Budget* budget) {
  const std::string fraction =
      number.fraction.empty() ? "(?:\\.0*)?" : base::StrCat("\\.", number.fraction, "0*");
  const std::string pattern = base::StrCat(number.negative ? "-" : "", number.whole, fraction);
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine same, ParseRegex(pattern, RegexMatch::kWhole, budget));
  return Intersect(machine, Complement(same, budget), kMaxStates, budget);
}

NumberBound Negated(NumberBound bound) {
  bound.value.negative = !bound.value.negative && !bound.value.IsZero();
  return bound;
}

absl::StatusOr<StateMachine> MagnitudeMachine(const NumberBound& min,
                                              const std::optional<NumberBound>& max,
                                              const NumberRange& range, Budget* budget) {
  Magnitudes magnitudes(min, max, range.integer);
  if (range.multiple_of) {
    const Decimal& step = *range.multiple_of;
    const std::string digits = (step.whole == "0" ? "" : step.whole) + step.fraction;
    if (digits.size() > 9 || std::stoll("0" + digits) > kMaxStep) {
      return absl::InvalidArgumentError(
          base::StrCat("multipleOf may have digits up to ", kMaxStep, ", found ", digits));
    }
    magnitudes.SetStep(std::stoll("0" + digits), static_cast<int32_t>(step.fraction.size()));
  }
  return magnitudes.Build(budget);
}

}  // namespace

absl::StatusOr<Decimal> Decimal::Parse(std::string_view text) {
  Decimal result;
  if (!text.empty() && text[0] == '-') {
    result.negative = true;
    text.remove_prefix(1);
  }
  const size_t e = text.find_first_of("eE");
  int exponent = 0;
  if (e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    const bool down = !digits.empty() && digits[0] == '-';
    if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
    for (char c : digits) exponent = std::min(exponent * 10 + (c - '0'), 1000);
    if (down) exponent = -exponent;
  }
  if (exponent > kMaxExponent || exponent < -kMaxExponent) {
    return absl::InvalidArgumentError(
        base::StrCat("the number ", text, " is beyond 10^", kMaxExponent, " or below its inverse"));
  }
  text = text.substr(0, e);
  const size_t point = text.find('.');
  std::string whole(text.substr(0, point));
  std::string fraction(point == std::string_view::npos ? "" : text.substr(point + 1));
  for (; exponent > 0; --exponent) {
    whole.push_back(fraction.empty() ? '0' : fraction[0]);
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(0, 1, whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  result.whole = whole.empty() ? "0" : whole;
  fraction.erase(fraction.find_last_not_of('0') + 1);
  result.fraction = fraction;
  if (result.IsZero()) result.negative = false;
  return result;
}

std::string Decimal::ToString() const {
  return base::StrCat(negative ? "-" : "", whole, fraction.empty() ? "" : ".", fraction);
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
  const auto left = std::tie(a.whole, a.fraction);
  const auto right = std::tie(b.whole, b.fraction);
  if (left == right) return 0;
  return left < right ? -sign : sign;
}

absl::StatusOr<StateMachine> NumberMachine(const NumberRange& range, Budget* budget) {
  if (range.fractional) {
    NumberRange all = range;
    all.fractional = false;
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine numbers, NumberMachine(all, budget));
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine fractions,
                            ParseRegex("-?[0-9]+\\.[0-9]*[1-9][0-9]*", RegexMatch::kWhole, budget));
    return Intersect(numbers, fractions, kMaxStates, budget);
  }
  if (range.Unbounded()) {
    return ParseRegex(range.integer
                          ? "-?(0|[1-9][0-9]{0,17})"
                          : "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?",
                      RegexMatch::kWhole, budget);
  }
  const NumberBound zero{Decimal(), false};
  Nfa nfa;
  nfa.states.emplace_back();
  auto append = [&nfa](const StateMachine& machine, bool minus) {
    const auto base = static_cast<int32_t>(nfa.states.size());
    for (NfaState state : ToNfa(machine).states) {
      for (CharEdge& edge : state.chars) edge.target += base;
      nfa.states.push_back(std::move(state));
    }
    if (minus) {
      nfa.states[0].chars.push_back({U'-', U'-', base});
    } else {
      nfa.states[0].epsilons.push_back(base);
    }
  };
  if (!range.max || !range.max->value.negative) {
    const bool from_zero = !range.min || range.min->value.negative;
    HEDDLE_ASSIGN_OR_RETURN(
        const StateMachine positive,
        MagnitudeMachine(from_zero ? zero : *range.min, range.max, range, budget));
    append(positive, false);
  }
  if (!range.min || range.min->value.negative) {
    // From the greatest down; "-0" is left to the other sign.
    NumberBound least{Decimal(), true};
    if (range.max && range.max->value.negative) least = Negated(*range.max);
    std::optional<NumberBound> most;
    if (range.min) most = Negated(*range.min);
    HEDDLE_ASSIGN_OR_RETURN(const StateMachine negative,
                            MagnitudeMachine(least, most, range, budget));
    append(negative, true);
  }
  HEDDLE_ASSIGN_OR_RETURN(const StateMachine machine,
                          Determinize(nfa, static_cast<int32_t>(kMaxMachine), budget));
  StateMachine best = Minimize(machine, budget);
  HEDDLE_RETURN_IF_ERROR(StatusOf(budget));
  for (const Decimal& excluded : range.excluded) {
    HEDDLE_ASSIGN_OR_RETURN(best, Without(best, excluded, budget));
  }
  return best;
}

std::string WhyEmpty(const NumberRange& range) {
  if (range.min && range.max) {
    const int order = Compare(range.min->value, range.max->value);
    const std::string_view low = range.min->exclusive ? "exclusiveMinimum " : "minimum ";
    const std::string_view high = range.max->exclusive ? "exclusiveMaximum " : "maximum ";
    if (order > 0) {
      return base::StrCat(low, range.min->value.ToString(), " is above ", high,
                          range.max->value.ToString());
    }
    if (order == 0 && (range.min->exclusive || range.max->exclusive)) {
      return base::StrCat(low, range.min->value.ToString(), " and ", high,
                          range.max->value.ToString(), " leave no number between them");
    }
  }
  return "no number satisfies the conditions on numbers";
}

}  // namespace heddle::engine::grammar
