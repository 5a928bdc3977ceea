#include "server/cli/standard_io.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/message.h"
#include "base/status.h"

namespace heddle::server {
namespace {

absl::StatusOr<std::string> ReadAll(std::FILE* file, const std::string& name, size_t max_bytes) {
  std::string text;
  std::array<char, 65536> block;
  while (size_t count = std::fread(block.data(), 1, block.size(), file)) {
    text.append(block.data(), count);
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(base::StrCat(name, " has more than ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(file) != 0) {
    return absl::UnavailableError(base::StrCat("cannot read ", name, ": ", std::strerror(errno)));
  }
  return text;
}

absl::Status WriteError() {
  return absl::UnavailableError(
      base::StrCat("cannot write to standard output: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::string> ReadStandardInput(size_t max_bytes) {
  return ReadAll(stdin, "standard input", max_bytes);
}

absl::StatusOr<bool> ReadLine(size_t max_bytes, std::string* line) {
  line->clear();
  for (int c = std::getc(stdin); c != '\n'; c = std::getc(stdin)) {
    if (c == EOF) {
      if (std::ferror(stdin) != 0) {
        return absl::UnavailableError(
            base::StrCat("cannot read standard input: ", std::strerror(errno)));
      }
      return !line->empty();
    }
    line->push_back(static_cast<char>(c));
    if (line->size() > max_bytes) {
      return absl::InvalidArgumentError(
          base::StrCat("a line of standard input has more than ", max_bytes, " bytes"));
    }
  }
  return true;
}

absl::Status WriteOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return WriteError();
  return absl::OkStatus();
}

absl::Status FlushOut() {
  if (std::fflush(stdout) != 0) return WriteError();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                       &std::fclose);
  if (file == nullptr) {
    return absl::NotFoundError(
        base::StrCat("cannot open ", base::Quote(path), ": ", std::strerror(errno)));
  }
  return ReadAll(file.get(), base::Quote(path), max_bytes);
}

}  // namespace heddle::server
