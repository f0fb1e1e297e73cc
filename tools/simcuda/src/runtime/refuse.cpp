// SPDX-License-Identifier: Apache-2.0
// What is not simulated fails by name: kernel launches, calls without a simulation, stub libraries.
#include "refuse.h"

#include <cxxabi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <unordered_map>

#include "shapes.h"
#include "state.h"
#include "symbols.h"

namespace simcuda {
namespace {

constexpr int kThreads = 2048;  // of a multiprocessor

thread_local std::string t_last_refusal = "not supported by the simulated device";

// Registration happens at load time, ten thousands of times: just remember.
struct Kernel {
  const void* host;
  const char* name;
};
std::vector<Kernel>& kernels() {
  static auto* registered = new std::vector<Kernel>;
  return *registered;
}
std::mutex& kernels_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::string demangled(const char* name) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                              free);
  return status == 0 ? text.get() : name;
}

// The one kernel with a simulation: torch.cuda._sleep(cycles), at 1 GHz.
constexpr const char* kSpin = "spin_kernel(long)";

cudaError_t sleep_on(cudaStream_t stream, void** arguments) {
  auto cycles = *static_cast<int64_t*>(arguments[0]);
  Lock lock(state().mutex);
  if (!exists(stream)) return fail(cudaErrorInvalidResourceHandle);
  if (dry()) {
    push(lock, resolve(stream),
         {nullptr, nullptr, nullptr, nullptr, nullptr, clock::Unit::kCompute, cycles, "sleep"});
    return cudaSuccess;
  }
  push(lock, resolve(stream),
       {nullptr, [=] { std::this_thread::sleep_for(std::chrono::nanoseconds(cycles)); }, nullptr});
  return cudaSuccess;
}

// Where kernels are unseen nothing depends on the name but the trace.
const char* registered_name(const void* function) {
  static auto* names = new std::unordered_map<const void*, const char*>;
  std::lock_guard<std::mutex> guard(kernels_mutex());
  static size_t known = 0;
  for (; known < kernels().size(); known++) {
    names->emplace(kernels()[known].host, kernels()[known].name);
  }
  auto found = names->find(function);
  if (found == names->end()) {  // it was registered with a runtime of the library's own
    const char* name = symbol_at(function);
    found = names->emplace(function, name ? name : "kernel").first;
  }
  return found->second;
}

cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  if (state().unseen_kernels) {
    launch_unseen(registered_name(function), arguments, stream);
    return cudaSuccess;
  }
  std::string name = "of unknown name";
  {
    std::lock_guard<std::mutex> guard(kernels_mutex());
    for (const auto& kernel : kernels()) {
      if (kernel.host == function) name = demangled(kernel.name);
    }
  }
  if (name.find(kSpin) != std::string::npos) return sleep_on(stream, arguments);
  {
    Lock lock(state().mutex);
    state().counters.refused_launches++;
  }
  refuse("kernel launch " + name);
  return fail(cudaErrorInvalidDeviceFunction);
}

}  // namespace

cudaError_t late_error() {
  if (state().broken) return fail(cudaErrorIllegalAddress);
  cudaError_t error = state().late_error;
  state().late_error = cudaSuccess;
  return fail(error);
}

void launch_unseen(const char* name, void** arguments, cudaStream_t stream) {
  Lock lock(state().mutex);
  auto& values = state().values;
  if (!compute_known(name, arguments, values)) values.forget_written(name, arguments);
  state().counters.ops++;
  push(lock, resolve(stream),
       {nullptr, nullptr, nullptr, nullptr, nullptr, clock::Unit::kCompute, state().profile.kernel,
        name});
}

const char* last_refusal() { return t_last_refusal.c_str(); }

void remember_refusal(const std::string& what) {
  t_last_refusal = "the simulated device refuses: " + what;
}

void refuse(const std::string& what) {
  remember_refusal(what);
  fprintf(stderr, "simcuda: REFUSED %s\n", what.c_str());
  fflush(stderr);
  bool stop;
  {
    Lock lock(state().mutex);
    stop = state().abort_on_refusal;
  }
  if (stop) abort();
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_refuse(const char* what) { refuse(what); }

const char* simcuda_last_refusal() { return last_refusal(); }

void simcuda_refuse_later(const char* what) {
  refuse(what);
  Lock lock(state().mutex);
  state().late_error = cudaErrorNotSupported;
}

int simcuda_stub_called(const char* function, int status) {
  {
    Lock lock(state().mutex);
    state().counters.unsupported_calls++;
  }
  refuse(std::string("call of ") + function);
  return status;
}

// For the functions of the runtime API that are generated from the CUDA headers.
__attribute__((visibility("hidden"))) int simcuda_unsupported(const char* function) {
  return fail(static_cast<cudaError_t>(simcuda_stub_called(function, cudaErrorNotSupported)));
}

}  // extern "C"

// ---- launches

SIMCUDA_CUDA cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments,
                                          size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}
SIMCUDA_CUDA cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3,
                                                     void** arguments, size_t,
                                                     cudaStream_t stream) {
  return launch(function, arguments, stream);
}

// What a program asks before a launch.
SIMCUDA_CUDA cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 80;
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
SIMCUDA_CUDA cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                                const void*,
                                                                                int threads, size_t,
                                                                                unsigned) {
  *blocks = std::max(1, kThreads / std::max(1, threads));  // as far as threads go
  return cudaSuccess;
}

// ---- registration of a program's kernels, called by compiler-generated code

SIMCUDA_CUDA void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
SIMCUDA_CUDA void __cudaRegisterFatBinaryEnd(void**) {}
SIMCUDA_CUDA void __cudaUnregisterFatBinary(void**) {}
SIMCUDA_CUDA char __cudaInitModule(void**) { return 1; }
SIMCUDA_CUDA void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int,
                                         uint3*, uint3*, dim3*, dim3*, int*) {
  std::lock_guard<std::mutex> guard(kernels_mutex());
  kernels().push_back({host, name});
}
SIMCUDA_CUDA void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
SIMCUDA_CUDA void __cudaRegisterTexture(void**, const void*, const void**, const char*, int, int,
                                        int) {}  // before CUDA 12

// kernel<<<grid, block, shared, stream>>>: pushed by the caller, popped by the launch stub.
struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local CallConfiguration t_call;

SIMCUDA_CUDA unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                                  void* stream) {
  t_call = {grid, block, shared, stream};
  return 0;
}
SIMCUDA_CUDA cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                                    void* stream) {
  *grid = t_call.grid;
  *block = t_call.block;
  *shared = t_call.shared;
  *static_cast<void**>(stream) = t_call.stream;
  return cudaSuccess;
}
