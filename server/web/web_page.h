// The web page at "/": chat with the model, and a live view of the server's work. It is one HTML
// document with its style and script inside, put together at build time (embed.cmake); it loads
// nothing else, and talks only to the server that it came from.
#pragma once

#include <string>
#include <string_view>

namespace heddle::server {

struct WebPage {
  std::string html;
  // Content-Security-Policy: allows this style and this script, by their hashes, and nothing that
  // might be injected into the page; connections go to its own origin only.
  std::string security_policy;
};

// Without chat, for a model that has no chat template, the page continues a text instead of a
// conversation.
WebPage MakeWebPage(bool has_chat);

// Whether a client that sends this Accept header wants a page rather than plain text.
bool AcceptsHtml(std::string_view accept);

}  // namespace heddle::server
