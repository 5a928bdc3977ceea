#include "server/batch/form.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "base/status.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

constexpr size_t kMaxParts = 16;
constexpr size_t kMaxHeaderBytes = size_t{4} << 10;
constexpr size_t kMaxBoundaryBytes = 70;  // RFC 2046
constexpr std::string_view kLineEnd = "\r\n";

bool IsSpace(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

bool IsName(std::string_view found, std::string_view name) {
  return std::equal(found.begin(), found.end(), name.begin(), name.end(), [](char a, char b) {
    return absl::ascii_tolower(static_cast<unsigned char>(a)) ==
           absl::ascii_tolower(static_cast<unsigned char>(b));
  });
}

absl::Status NoForm(std::string_view why) {
  return FieldError("", base::StrCat("the body must be multipart/form-data: ", why),
                    "invalid_form");
}

// Takes a quoted string or a token from the front of `text`; empty: neither is there.
std::optional<std::string> TakeValue(std::string_view* text) {
  std::string value;
  if (!text->starts_with('"')) {
    const size_t end = std::min(text->find(';'), text->size());
    value = std::string(Trim(text->substr(0, end)));
    text->remove_prefix(end);
    return value;
  }
  text->remove_prefix(1);
  while (!text->empty() && text->front() != '"') {
    const bool is_escape = text->starts_with("\\\"") || text->starts_with("\\\\");
    if (is_escape) text->remove_prefix(1);
    value.push_back(text->front());
    text->remove_prefix(1);
  }
  if (text->empty()) return std::nullopt;
  text->remove_prefix(1);
  return value;
}

// The parameter `name` of a header's value such as `form-data; name="file"`; empty: it has none.
std::optional<std::string> Parameter(std::string_view header, std::string_view name) {
  size_t next = header.find(';');
  while (next != std::string_view::npos) {
    header.remove_prefix(next + 1);
    header = Trim(header);
    const size_t equals = header.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view found = Trim(header.substr(0, equals));
    header.remove_prefix(equals + 1);
    std::optional<std::string> value = TakeValue(&header);
    if (!value.has_value()) return std::nullopt;
    if (IsName(found, name)) return value;
    next = header.find(';');
  }
  return std::nullopt;
}

// The value of a part's header; empty: it has no such header.
std::string_view HeaderOf(std::string_view headers, std::string_view name) {
  while (!headers.empty()) {
    const size_t end = std::min(headers.find(kLineEnd), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(std::min(headers.size(), end + kLineEnd.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    if (IsName(line.substr(0, colon), name)) return line.substr(colon + 1);
  }
  return "";
}

absl::StatusOr<std::string> BoundaryOf(std::string_view content_type) {
  const std::string_view kind = Trim(content_type.substr(0, content_type.find(';')));
  if (!IsName(kind, "multipart/form-data")) {
    return NoForm(base::StrCat("its Content-Type is ", base::Quote(kind)));
  }
  std::optional<std::string> boundary = Parameter(content_type, "boundary");
  if (!boundary.has_value() || boundary->empty() || boundary->size() > kMaxBoundaryBytes) {
    return NoForm("its Content-Type must name a boundary of 1 to 70 characters");
  }
  return *std::move(boundary);
}

// A part's headers and content, `text`.
absl::StatusOr<FormPart> ReadPart(std::string_view text) {
  const size_t headers_end = text.starts_with(kLineEnd) ? 0 : text.find("\r\n\r\n");
  if (headers_end > kMaxHeaderBytes) {
    return NoForm("a part has no end of its headers, or more than 4 KiB of them");
  }
  const std::string_view disposition = HeaderOf(text.substr(0, headers_end), "Content-Disposition");
  std::optional<std::string> name = Parameter(disposition, "name");
  if (!name.has_value()) return NoForm("a part has no name");
  FormPart part;
  part.name = *std::move(name);
  part.filename = Parameter(disposition, "filename").value_or("");
  part.content = text.substr(headers_end + (headers_end == 0 ? 2 : 4));
  return part;
}

}  // namespace

absl::StatusOr<std::vector<FormPart>> ParseForm(std::string_view content_type,
                                                std::string_view body) {
  HEDDLE_ASSIGN_OR_RETURN(const std::string boundary, BoundaryOf(content_type));
  const std::string delimiter = base::StrCat("\r\n--", boundary);
  const std::string_view first = std::string_view(delimiter).substr(kLineEnd.size());
  if (!body.starts_with(first)) return NoForm("it does not begin with the boundary");
  body.remove_prefix(first.size());
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    if (!body.starts_with(kLineEnd)) return NoForm("a boundary does not end its line");
    body.remove_prefix(kLineEnd.size());
    const size_t end = body.find(delimiter);
    if (end == std::string_view::npos) return NoForm("the last boundary is missing");
    if (parts.size() == kMaxParts) return NoForm("it has more than 16 parts");
    HEDDLE_ASSIGN_OR_RETURN(FormPart part, ReadPart(body.substr(0, end)));
    parts.push_back(std::move(part));
    body.remove_prefix(end + delimiter.size());
  }
  return parts;
}

const FormPart* FindPart(const std::vector<FormPart>& parts, std::string_view name) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [name](const FormPart& part) { return part.name == name; });
  return found == parts.end() ? nullptr : &*found;
}

}  // namespace heddle::server
