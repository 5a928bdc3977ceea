#include "engine/grammar/schema/string_formats.h"

#include <algorithm>
#include <string>

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
    {"ipv6",
     "(?:(?:" HEDDLE_HEX16 ":){7}" HEDDLE_HEX16 "|::(?:" HEDDLE_HEX16 ":){0,5}" HEDDLE_HEX16
     "|" HEDDLE_HEX16 "::(?:" HEDDLE_HEX16 ":){0,4}" HEDDLE_HEX16 "|::|::ffff:" HEDDLE_IPV4 ")"},
    {"uri", "(?:https?|ftp)://" HEDDLE_HOST "(?::[1-9][0-9]{1,3})?" HEDDLE_PATH HEDDLE_QUERY},
    {"uri-reference", "(?:(?:https?|ftp)://" HEDDLE_HOST ")?" HEDDLE_PATH HEDDLE_QUERY},
    {"json-pointer", "(?:/(?:[A-Za-z0-9_.-]|~[01]){0,40}){0,8}"},
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
                              {"url", "uri"}};

constexpr std::string_view kAnnotations[] = {"int32",  "int64",    "uint32", "uint64",
                                             "float",  "double",   "number", "byte",
                                             "binary", "password", "string", "text"};

}  // namespace

std::string_view FormatPattern(std::string_view format) {
  for (const Alias& alias : kAliases) {
    if (alias.name == format) format = alias.same_as;
  }
  for (const Format& known : kFormats) {
    if (known.name == format) return known.pattern;
  }
  return {};
}

bool IsAnnotationFormat(std::string_view format) {
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), format) !=
         std::end(kAnnotations);
}

}  // namespace heddle::engine::grammar
