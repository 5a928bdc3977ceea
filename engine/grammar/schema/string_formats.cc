#include "engine/grammar/schema/string_formats.h"

#include <algorithm>
#include <string>

#include "base/message.h"

namespace heddle::engine::grammar {
namespace {

// Years start at 0001, months have their days, and 29 February needs a leap year of the Gregorian
// calendar.
#define HEDDLE_YEAR "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
#define HEDDLE_LEAP_YEAR \
  "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define HEDDLE_DATE                                                     \
  "(?:" HEDDLE_YEAR                                                     \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"                   \
  "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))" \
  "|" HEDDLE_LEAP_YEAR "-02-29)"
#define HEDDLE_TIME                                              \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?" \
  "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define HEDDLE_LABEL "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
#define HEDDLE_HOST "(?:" HEDDLE_LABEL "\\.){0,4}[a-z](?:[a-z0-9-]{0,30}[a-z0-9])?"
#define HEDDLE_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define HEDDLE_IPV4 HEDDLE_BYTE "(?:\\." HEDDLE_BYTE "){3}"
#define HEDDLE_HEX16 "[0-9a-fA-F]{1,4}"
#define HEDDLE_IPV6                                                                       \
  "(?:(?:" HEDDLE_HEX16 ":){7}" HEDDLE_HEX16 "|::(?:" HEDDLE_HEX16 ":){0,5}" HEDDLE_HEX16 \
  "|" HEDDLE_HEX16 "::(?:" HEDDLE_HEX16 ":){0,4}" HEDDLE_HEX16 "|::|::ffff:" HEDDLE_IPV4 ")"
#define HEDDLE_UUID(version) \
  "[0-9a-f]{8}-[0-9a-f]{4}-" version "[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
#define HEDDLE_PATH "(?:/[A-Za-z0-9._~-]{1,40}){0,8}/?"
#define HEDDLE_QUERY "(?:\\?[A-Za-z0-9._~=&-]{1,80})?(?:#[A-Za-z0-9._~-]{1,40})?"

struct Format {
  std::string_view name;
  std::string_view pattern;
};

constexpr Format kFormats[] = {
    {"date", HEDDLE_DATE},
    {"time", HEDDLE_TIME},
    {"date-time", HEDDLE_DATE "T" HEDDLE_TIME},
    {"duration",
     "P(?:[0-9]{1,4}W|(?:[0-9]{1,4}Y(?:[0-9]{1,2}M(?:[0-9]{1,2}D)?)?|[0-9]{1,2}M(?:[0-9]{1,2}D)?"
     "|[0-9]{1,4}D)(?:T(?:[0-9]{1,2}H(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?|[0-9]{1,2}M(?:[0-9]{1,2}S)?"
     "|[0-9]{1,2}S))?|T(?:[0-9]{1,2}H(?:[0-9]{1,2}M(?:[0-9]{1,2}S)?)?|[0-9]{1,2}M(?:[0-9]{1,2}S)?"
     "|[0-9]{1,2}S))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@(?:" HEDDLE_LABEL
              "\\.){1,4}[a-z]{2,12}"},
    {"hostname", HEDDLE_HOST},
    {"ipv4", HEDDLE_IPV4},
    {"ipv6", HEDDLE_IPV6},
    {"uri", "https?://" HEDDLE_HOST "(?::[1-9][0-9]{1,3})?" HEDDLE_PATH HEDDLE_QUERY},
    {"uri-reference", "(?:(?:https?|ftp)://" HEDDLE_HOST ")?" HEDDLE_PATH HEDDLE_QUERY},
    {"json-pointer", "(?:/(?:[A-Za-z0-9_.-]|~[01]){0,40}){0,8}"},
    {"uuid1", HEDDLE_UUID("1")},
    {"uuid3", HEDDLE_UUID("3")},
    {"uuid4", HEDDLE_UUID("4")},
    {"uuid5", HEDDLE_UUID("5")},
    {"uuid6", HEDDLE_UUID("6")},
    {"uuid7", HEDDLE_UUID("7")},
    {"uuid8", HEDDLE_UUID("8")},
    {"ipv4network", HEDDLE_IPV4 "/32"},
    {"ipv4interface", HEDDLE_IPV4 "/(?:3[0-2]|[12]?[0-9])"},
    {"ipv6network", HEDDLE_IPV6 "/128"},
    {"ipv6interface", HEDDLE_IPV6 "/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9])"},
    {"base64", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    {"base64url", "(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?"},
    {"regex", "\\^?[A-Za-z0-9 _-]{0,60}\\$?"},
};

struct Alias {
  std::string_view name;
  std::string_view same_as;
};
// Each text of the alias's pattern has the format.
constexpr Alias kAliases[] = {{"idn-email", "email"},
                              {"idn-hostname", "hostname"},
                              {"iri", "uri"},
                              {"iri-reference", "uri-reference"},
                              {"url", "uri"},
                              {"ipvanyaddress", "ipv4"},
                              {"ipvanynetwork", "ipv4network"},
                              {"ipvanyinterface", "ipv4interface"},
                              {"ipv4-network", "ipv4network"},
                              {"ipv6-network", "ipv6network"}};

std::string_view Canonical(std::string_view format) {
  for (const Alias& alias : kAliases) {
    if (alias.name == format) return alias.same_as;
  }
  return format;
}

// Patterns of at most `max_length` characters, for formats whose usual pattern matches longer ones.
// Empty if there is none.
std::string ShortPattern(std::string_view format, int32_t max_length) {
  struct Short {
    std::string_view format;
    int32_t longest;       // text of the usual pattern
    int32_t fixed;         // characters beside the two counted parts
    int32_t most_of_host;  // in the first part; the second has what is left
    std::string_view before, between, after;
  };
  static constexpr Short kShort[] = {
      {"uri", 700, 16, 40, "https?://[a-z0-9]{1,", "}\\.[a-z]{2,6}(?:/[A-Za-z0-9._~-]{0,", "})?"},
      {"uri-reference", 700, 1, 1, "(?:[A-Za-z]{1,", "}/)?[A-Za-z0-9._~-]{0,", "}"},
      {"email", 300, 8, 40, "[a-z0-9]{1,", "}@[a-z0-9]{1,", "}\\.[a-z]{2,6}"},
      {"hostname", 200, 1, 30, "[a-z]{1,", "}(?:\\.[a-z]{1,", "})?"},
  };
  for (const Short& row : kShort) {
    if (row.format != format || max_length < 0 || max_length >= row.longest) continue;
    const int32_t counted = max_length - row.fixed;
    if (counted < 2) return {};
    const int32_t first = std::min(row.most_of_host, counted / 2);
    return base::StrCat(row.before, first, row.between, counted - first, row.after);
  }
  return {};
}

}  // namespace

bool IsKnownFormat(std::string_view format) {
  const std::string_view name = Canonical(format);
  return std::any_of(std::begin(kFormats), std::end(kFormats),
                     [name](const Format& known) { return known.name == name; });
}

std::string FormatPattern(std::string_view format, int32_t max_length) {
  const std::string_view name = Canonical(format);
  std::string pattern = ShortPattern(name, max_length);
  if (!pattern.empty()) return pattern;
  for (const Format& known : kFormats) {
    if (known.name == name) return std::string(known.pattern);
  }
  return {};
}

}  // namespace heddle::engine::grammar
