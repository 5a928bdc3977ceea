// Fields that this server knows but cannot honour, by API.
#pragma once

#include <span>

#include "server/request/fields.h"

namespace heddle::server {

std::span<const RefusedField> RefusedChatFields();
std::span<const RefusedField> RefusedCompletionFields();
std::span<const RefusedField> RefusedResponsesFields();
std::span<const RefusedField> RefusedMessagesFields();  // Anthropic's

}  // namespace heddle::server
