// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/lms/AllocatorHook.h>
#include <c10/cuda/lms/Lms.h>
#include <c10/cuda/lms/State.h>
#include <dlfcn.h>

// cuBLAS's workspaces, one for each thread and stream that has multiplied. PyTorch keeps them for
// good, wherever there was room at the first product: one within a large segment halves it, or
// more, for whatever comes later.
namespace c10::cuda::lms {
namespace {

// at::cuda::clearCublasWorkspaces, of a library that this one cannot be linked with; null where a
// version has none.
using Clear = void (*)();

Clear find_clear() {
  void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr
             ? nullptr
             : reinterpret_cast<Clear>(dlsym(library, "_ZN2at4cuda21clearCublasWorkspacesEv"));
}

}  // namespace

// A graph has their addresses in it, and a kernel past ops may be given them by no op.
void release_workspaces() noexcept {
  if (captured() || unseen_kernels()) {
    return;
  }
  static const Clear clear = find_clear();
  if (clear != nullptr) {
    const EngineScope no_python;
    clear();
  }
}

}  // namespace c10::cuda::lms
