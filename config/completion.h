// Scripts that complete heddle's command line in a shell, made from the table of options.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle::config {

inline constexpr std::string_view kCompletionShells[] = {"bash", "zsh", "fish"};

// The script, to be sourced or put where the shell looks for completions of `heddle`. Empty for a
// shell that is not in kCompletionShells.
std::optional<std::string> CompletionScript(std::string_view shell);

}  // namespace heddle::config
