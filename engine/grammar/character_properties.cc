#include "engine/grammar/character_properties.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "engine/text/unicode.h"
#include "engine/text/unicode_properties.h"

namespace heddle::engine::grammar {
namespace {

using Sets = std::map<std::string, CodePointSet, std::less<>>;

// All code points by their general categories, and by the categories' first letters.
Sets FindCategories() {
  std::map<std::string, std::vector<CodePointRange>> ranges;
  char32_t first = 0;
  for (char32_t c = 1; c <= kMaxCodePoint + 1; ++c) {
    const std::string_view category = text::GeneralCategory(first);
    if (c <= kMaxCodePoint && text::GeneralCategory(c) == category) continue;
    ranges[std::string(category)].push_back({first, c - 1});
    ranges[std::string(category.substr(0, 1))].push_back({first, c - 1});
    if (category == "Lu" || category == "Ll" || category == "Lt") {
      ranges["LC"].push_back({first, c - 1});
    }
    first = c;
  }
  Sets categories;
  for (auto& [name, members] : ranges) {
    categories.emplace(name, CodePointSet::OfRanges(std::move(members)));
  }
  return categories;
}

// Unicode's PropertyValueAliases.txt, General_Category.
constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
    {"Cased_Letter", "LC"},
    {"Close_Punctuation", "Pe"},
    {"Combining_Mark", "M"},
    {"Connector_Punctuation", "Pc"},
    {"Control", "Cc"},
    {"Currency_Symbol", "Sc"},
    {"Dash_Punctuation", "Pd"},
    {"Decimal_Number", "Nd"},
    {"Enclosing_Mark", "Me"},
    {"Final_Punctuation", "Pf"},
    {"Format", "Cf"},
    {"Initial_Punctuation", "Pi"},
    {"Letter", "L"},
    {"Letter_Number", "Nl"},
    {"Line_Separator", "Zl"},
    {"Lowercase_Letter", "Ll"},
    {"Mark", "M"},
    {"Math_Symbol", "Sm"},
    {"Modifier_Letter", "Lm"},
    {"Modifier_Symbol", "Sk"},
    {"Nonspacing_Mark", "Mn"},
    {"Number", "N"},
    {"Open_Punctuation", "Ps"},
    {"Other", "C"},
    {"Other_Letter", "Lo"},
    {"Other_Number", "No"},
    {"Other_Punctuation", "Po"},
    {"Other_Symbol", "So"},
    {"Paragraph_Separator", "Zp"},
    {"Private_Use", "Co"},
    {"Punctuation", "P"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Spacing_Mark", "Mc"},
    {"Surrogate", "Cs"},
    {"Symbol", "S"},
    {"Titlecase_Letter", "Lt"},
    {"Unassigned", "Cn"},
    {"Uppercase_Letter", "Lu"},
    {"cntrl", "Cc"},
    {"digit", "Nd"},
    {"punct", "P"},
};

const CodePointSet* FindCategory(std::string_view name) {
  static const Sets categories = FindCategories();
  const auto* const row = std::find_if(std::begin(kLongNames), std::end(kLongNames),
                                       [name](const auto& one) { return one.first == name; });
  const auto found = categories.find(row == std::end(kLongNames) ? name : row->second);
  return found == categories.end() ? nullptr : &found->second;
}

// The same for all spellings that the library takes for one.
std::string WithoutSpelling(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != '_') plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return plain;
}

// The library's properties, as they are asked for.
class LibraryProperties {
 public:
  const CodePointSet* Find(std::string_view name) {
    const std::string key = WithoutSpelling(name);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = sets_.find(key); known != sets_.end()) return &known->second;
    std::vector<CodePointRange> ranges;
    for (const auto& [first, last] : text::RangesOfProperty(key)) ranges.push_back({first, last});
    if (ranges.empty()) return nullptr;
    // Nodes of a map stay in place.
    return &sets_.emplace(key, CodePointSet::OfRanges(std::move(ranges))).first->second;
  }

 private:
  std::mutex mutex_;
  Sets sets_;  // guarded by mutex_
};

}  // namespace

const CodePointSet* FindProperty(std::string_view name) {
  static LibraryProperties properties;
  static const CodePointSet all = CodePointSet::All();
  static const CodePointSet assigned = FindCategory("Cn")->Complement();
  const size_t equals = name.find('=');
  if (equals != std::string_view::npos) {
    const std::string_view key = name.substr(0, equals);
    const std::string_view value = name.substr(equals + 1);
    if (value.find(':') != std::string_view::npos) return nullptr;
    if (key == "General_Category" || key == "gc") return FindCategory(value);
    if (key == "Script" || key == "sc") return properties.Find(base::StrCat("sc:", value));
    if (key == "Script_Extensions" || key == "scx") {
      return properties.Find(base::StrCat("scx:", value));
    }
    return nullptr;
  }
  if (name == "Any") return &all;
  if (name == "Assigned") return &assigned;
  if (const CodePointSet* const category = FindCategory(name)) return category;
  if (name.find(':') != std::string_view::npos) return nullptr;
  // The library takes the name of a script for its extensions; Rust for the script.
  if (const CodePointSet* const script = properties.Find(base::StrCat("sc:", name))) return script;
  return properties.Find(name);
}

}  // namespace heddle::engine::grammar
