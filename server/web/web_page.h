// The web page at "/": chat with the model, and a live view of what the server does. One HTML
// document with its style and script inside, put together at build time (embed.cmake); it loads
// nothing else, and talks to the server that it came from.
#pragma once

#include <string>
#include <string_view>

namespace heddle::server {

struct WebPage {
  std::string_view html;  // lives as long as the program
  // Content-Security-Policy: runs this style and this script, known by their hashes, and nothing
  // that might find its way into the page; connects to its own origin only.
  std::string security_policy;
};

WebPage MakeWebPage();

// Whether a client that sends this Accept header wants a page rather than plain text.
bool AcceptsHtml(std::string_view accept);

}  // namespace heddle::server
