#include "server/cli/build_name.h"

#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/escaping.h"
#include "base/message.h"

namespace heddle::server {
namespace {

constexpr size_t kShownBytes = 8;

// The first bytes of the identifier among the notes of a segment; empty: it is not there.
std::string_view FindBuildId(std::string_view notes) {
  const auto padded = [](size_t size) { return (size + 3) & ~size_t{3}; };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes.data(), sizeof(header));
    notes.remove_prefix(sizeof(header));
    const size_t name_bytes = padded(header.n_namesz);
    const size_t bytes = name_bytes + padded(header.n_descsz);
    if (bytes > notes.size()) break;
    const bool is_gnus = header.n_namesz == sizeof(ELF_NOTE_GNU) && notes.starts_with(ELF_NOTE_GNU);
    if (header.n_type == NT_GNU_BUILD_ID && is_gnus) {
      return notes.substr(name_bytes, std::min<size_t>(header.n_descsz, kShownBytes));
    }
    notes.remove_prefix(bytes);
  }
  return {};
}

// The first object is the program itself.
int VisitProgram(dl_phdr_info* info, size_t /*size*/, void* result) {
  for (ElfW(Half) i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const std::string_view id = FindBuildId(
        {reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr), header.p_memsz});
    if (!id.empty()) *static_cast<std::string_view*>(result) = id;
  }
  return 1;
}

}  // namespace

std::string BuildName(std::string_view version) {
  std::string_view id;
  dl_iterate_phdr(VisitProgram, &id);
  if (id.empty()) return std::string(version);
  return base::StrCat(version, " (build ", absl::BytesToHexString({id.data(), id.size()}), ")");
}

}  // namespace heddle::server
