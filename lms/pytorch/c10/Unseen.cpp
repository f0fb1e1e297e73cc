// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/Lms.h>
#include <link.h>

#include <atomic>
#include <cstring>
#include <string>

// A library that was compiled against PyTorch, and is not PyTorch's own, can take the pointer of
// any storage and launch as it likes. Whether there is one may be asked under any lock.
namespace c10::cuda::lms {
namespace {

// What is asked of the program's libraries is what they need (DT_NEEDED), and where they are.

// These launch within operators only.
constexpr const char* kKnown[] = {"/torchvision/_C.so", "/libsimcuda_kernels.so"};

struct Folders {
  std::string torch;  // PyTorch's
  std::string own;    // of the library that this is in
};

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool begins_with(const char* text, const std::string& with) {
  return !with.empty() && std::strncmp(text, with.c_str(), with.size()) == 0;
}

bool ends_with(const char* text, const char* with) {
  const size_t length = std::strlen(text), end = std::strlen(with);
  return length >= end && std::strcmp(text + length - end, with) == 0;
}

bool contains(const dl_phdr_info& library, const void* address) {
  const auto at = reinterpret_cast<ElfW(Addr)>(address);
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const auto& part = library.dlpi_phdr[i];
    const auto begin = library.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && begin <= at && at - begin < part.p_memsz) {
      return true;
    }
  }
  return false;
}

// Calls `f` with the name of each library that this one needs, until that returns true.
template <class F>
bool any_needed(const dl_phdr_info& library, const F& f) {
  const ElfW(Dyn)* entries = nullptr;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type == PT_DYNAMIC) {
      entries =
          reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
    }
  }
  ElfW(Addr) names = 0;
  for (const auto* entry = entries; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) {
      names = entry->d_un.d_ptr;
    }
  }
  if (names == 0) {
    return false;
  }
  if (names < library.dlpi_addr) {  // where the loader leaves it as it is in the file
    names += library.dlpi_addr;
  }
  for (const auto* entry = entries; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_NEEDED && f(reinterpret_cast<const char*>(names + entry->d_un.d_val))) {
      return true;
    }
  }
  return false;
}

bool compiled_against_torch(const dl_phdr_info& library) {
  return any_needed(library, [](const char* name) {
    return begins_with(name, "libc10") || begins_with(name, "libtorch");
  });
}

int find_folders(dl_phdr_info* library, size_t, void* data) {
  auto& folders = *static_cast<Folders*>(data);
  if (contains(*library, reinterpret_cast<const void*>(&find_folders))) {
    folders.own = folder_of(library->dlpi_name);
  }
  if (ends_with(library->dlpi_name, "/libc10.so")) {  // in torch/lib
    const std::string lib = folder_of(library->dlpi_name);
    folders.torch = folder_of(lib.substr(0, lib.size() - 1));
  }
  return 0;
}

const Folders& folders() {
  static const auto* found = [] {
    auto* made = new Folders;
    dl_iterate_phdr(&find_folders, made);
    return made;
  }();
  return *found;
}

struct Look {
  const Folders& folders;
  unsigned long long changes;  // that it has seen
  bool found = false;
};

int look_at(dl_phdr_info* library, size_t, void* data) {
  auto& look = *static_cast<Look*>(data);
  const unsigned long long changes = library->dlpi_adds + library->dlpi_subs;
  if (changes == look.changes) {  // the first one already tells
    return 1;
  }
  const char* name = library->dlpi_name;
  bool known = begins_with(name, look.folders.torch) || begins_with(name, look.folders.own);
  for (const char* end : kKnown) {
    known = known || ends_with(name, end);
  }
  look.found = !known && compiled_against_torch(*library);
  return look.found ? 1 : 0;
}

int count_changes(dl_phdr_info* library, size_t, void* data) {
  *static_cast<unsigned long long*>(data) = library->dlpi_adds + library->dlpi_subs;
  return 1;
}

std::atomic<bool> found{false};
std::atomic<unsigned long long> seen{0};
std::atomic<UnseenKernels> assumed{UnseenKernels::kLookedFor};

}  // namespace

bool unseen_kernels() noexcept {
  if (assumed != UnseenKernels::kLookedFor) {
    return assumed == UnseenKernels::kAny;
  }
  if (found) {
    return true;
  }
  unsigned long long changes = 0;
  dl_iterate_phdr(&count_changes, &changes);
  Look look{folders(), seen};
  dl_iterate_phdr(&look_at, &look);
  if (look.found) {
    found = true;
  } else {
    seen = changes;  // what was loaded since is looked at next time
  }
  return look.found;
}

void launches_unseen() noexcept { found = true; }

void set_unseen_kernels(UnseenKernels kernels) noexcept { assumed = kernels; }

}  // namespace c10::cuda::lms
