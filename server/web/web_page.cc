#include "server/web/web_page.h"

#include <openssl/evp.h>

#include <array>

#include "base/check.h"
#include "base/message.h"

extern const char kWebPageText[];

namespace heddle::server {
namespace {

// The text between `open` and `close`; the document is ours and has each once.
std::string_view Between(std::string_view text, std::string_view open, std::string_view close) {
  const size_t begin = text.find(open) + open.size();
  return text.substr(begin, text.find(close, begin) - begin);
}

// A source expression of CSP level 2: 'sha256-' and the digest in base64.
std::string HashSource(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int digest_bytes = 0;
  HEDDLE_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &digest_bytes, EVP_sha256(),
                          nullptr) == 1,
               "SHA-256 failed");
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> base64;
  const int length = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest_bytes));
  return base::StrCat(
      "'sha256-",
      std::string_view(reinterpret_cast<const char*>(base64.data()), static_cast<size_t>(length)),
      "'");
}

}  // namespace

WebPage MakeWebPage(bool has_chat) {
  constexpr std::string_view kChatMode = "<body data-mode=\"chat\">";
  constexpr std::string_view kCompletionMode = "<body data-mode=\"completion\">";
  WebPage page;
  page.html = kWebPageText;
  // The script and the style read the mode.
  if (!has_chat) page.html.replace(page.html.find(kChatMode), kChatMode.size(), kCompletionMode);
  page.security_policy = base::StrCat(
      "default-src 'none'; script-src ", HashSource(Between(page.html, "<script>", "</script>")),
      "; style-src ", HashSource(Between(page.html, "<style>", "</style>")),
      "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'");
  return page;
}

bool AcceptsHtml(std::string_view accept) {
  return accept.find("text/html") != std::string_view::npos ||
         accept.find("application/xhtml+xml") != std::string_view::npos;
}

}  // namespace heddle::server
