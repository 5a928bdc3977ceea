// Handles a mapped file that ends before its mapping does, because someone truncated it or its disk
// fails. The kernel raises SIGBUS at the read, wherever that is. The process cannot continue, since
// the data is gone, but it can name the file.
//
// Process-wide, because a signal handler is: docs/decisions/0037.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace heddle::engine {

// From now on a read beyond the end of a mapped file writes the file's name to standard error and
// ends the process with code 1; any other SIGBUS is handled as before. Call it once, before threads
// are started.
void ReportMappingFaults();

// Called by MappedFile: notes which file a range of memory belongs to, until it is forgotten. With
// more than some thousand mapped files, the rest are not named.
void RememberMapping(std::span<const std::byte> bytes, const std::filesystem::path& path);
void ForgetMapping(std::span<const std::byte> bytes);

}  // namespace heddle::engine
