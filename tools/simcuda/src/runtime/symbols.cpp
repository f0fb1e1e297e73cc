// SPDX-License-Identifier: Apache-2.0
#include "symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

namespace simcuda {
namespace {

using Names = std::unordered_map<uintptr_t, const char*>;  // by the place in the library

// The file stays mapped, because the names are in it.
const char* mapped(const char* path, size_t* bytes) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about{};
  if (file < 0 || fstat(file, &about) != 0) {
    if (file >= 0) close(file);
    return nullptr;
  }
  *bytes = static_cast<size_t>(about.st_size);
  void* text = mmap(nullptr, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  return text == MAP_FAILED ? nullptr : static_cast<const char*>(text);
}

Names names_of(const char* path) {
  Names names;
  size_t bytes = 0;
  const char* text = mapped(path, &bytes);
  if (text == nullptr || bytes < sizeof(Elf64_Ehdr)) return names;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(text);
  if (header->e_shoff + header->e_shnum * sizeof(Elf64_Shdr) > bytes) return names;
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(text + header->e_shoff);
  for (int i = 0; i < header->e_shnum; i++) {
    const Elf64_Shdr& table = sections[i];
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= header->e_shnum) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(text + table.sh_offset);
    const char* strings = text + sections[table.sh_link].sh_offset;
    for (size_t k = 0; k < table.sh_size / sizeof(Elf64_Sym); k++) {
      if (ELF64_ST_TYPE(symbols[k].st_info) != STT_FUNC || symbols[k].st_value == 0) continue;
      names.emplace(symbols[k].st_value, strings + symbols[k].st_name);
    }
  }
  return names;
}

}  // namespace

const char* symbol_at(const void* function) {
  Dl_info about;
  if (dladdr(function, &about) == 0 || about.dli_fname == nullptr) return nullptr;
  static auto* mutex = new std::mutex;
  static auto* libraries = new std::map<std::string, Names>;
  std::lock_guard<std::mutex> guard(*mutex);
  auto [library, fresh] = libraries->try_emplace(about.dli_fname);
  if (fresh) library->second = names_of(about.dli_fname);
  const auto at =
      reinterpret_cast<uintptr_t>(function) - reinterpret_cast<uintptr_t>(about.dli_fbase);
  const auto found = library->second.find(at);
  return found == library->second.end() ? nullptr : found->second;
}

}  // namespace simcuda
