// Fields that this server knows but cannot honour, by API.
#pragma once

#include <span>

#include "server/request/fields.h"

namespace heddle::server {

std::span<const RefusedField> RefusedChatFields();  // also for completions
std::span<const RefusedField> RefusedResponsesFields();

}  // namespace heddle::server
