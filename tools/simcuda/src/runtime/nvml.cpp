// SPDX-License-Identifier: Apache-2.0
// NVML as far as torch and TensorFlow ask: the devices, their links, and which process uses how
// much memory.
#define NVML_NO_UNVERSIONED_FUNC_DEFS  // the names below are the exported ones
#include <nvml.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "state.h"

using namespace simcuda;

namespace {

nvmlDevice_t handle_of(int device) {
  return reinterpret_cast<nvmlDevice_t>(state().devices[device].get());
}

int index_of(nvmlDevice_t handle) {
  for (int i = 0; i < simcuda_device_count(); i++) {
    if (handle == handle_of(i)) return i;
  }
  return -1;
}

}  // namespace

SIMCUDA_CUDA nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
SIMCUDA_CUDA nvmlReturn_t nvmlInit() { return NVML_SUCCESS; }
SIMCUDA_CUDA nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
SIMCUDA_CUDA const char* nvmlErrorString(nvmlReturn_t) { return "error of the simulated device"; }

SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(simcuda_device_count());
  return NVML_SUCCESS;
}

SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* out) {
  if (!valid_device(static_cast<int>(index))) return NVML_ERROR_INVALID_ARGUMENT;
  *out = handle_of(static_cast<int>(index));
  return NVML_SUCCESS;
}

SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus, nvmlDevice_t* out) {
  for (int i = 0; i < simcuda_device_count(); i++) {
    char text[32];
    cudaDeviceGetPCIBusId(text, sizeof text, i);
    if (strstr(bus, text)) {
      *out = handle_of(i);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char* text, unsigned length) {
  int device = index_of(handle);
  if (device < 0) return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(text, length, "GPU-5151c0da-0000-0000-0000-%012d", device);
  return NVML_SUCCESS;
}

// What XLA's estimates are made with: the generation of PCIe that is as fast as the profile's link.
SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t handle,
                                                              unsigned* generation) {
  if (index_of(handle) < 0) return NVML_ERROR_INVALID_ARGUMENT;
  const double slowest = 16e9;  // of the third generation, 16 lanes
  *generation = 3;
  while (*generation < 6 && state().profile.in > slowest * (1 << (*generation - 3)) * 1.01) {
    ++*generation;
  }
  return NVML_SUCCESS;
}
SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t handle, unsigned* lanes) {
  if (index_of(handle) < 0) return NVML_ERROR_INVALID_ARGUMENT;
  *lanes = 16;
  return NVML_SUCCESS;
}
// Between devices there is none.
SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned,
                                                   nvmlEnableState_t*) {
  return index_of(handle) < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

// No NVLink fabric: memory is not shared between machines.
#ifdef NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t handle,
                                                      nvmlGpuFabricInfoV_t* info) {
  if (index_of(handle) < 0) return NVML_ERROR_INVALID_ARGUMENT;
  info->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
  info->status = NVML_SUCCESS;
  return NVML_SUCCESS;
}
#endif

// Only this process: others have devices of their own. The three versions differ in the record.
template <typename Process>
static nvmlReturn_t running_processes(nvmlDevice_t handle, unsigned* count, Process* processes) {
  int device = index_of(handle);
  if (device < 0) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned room = *count;
  *count = 1;
  if (room < 1) return NVML_ERROR_INSUFFICIENT_SIZE;
  processes[0] = {};
  processes[0].pid = static_cast<unsigned>(getpid());
  processes[0].usedGpuMemory = simcuda_used(device);
  return NVML_SUCCESS;
}

SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned* count,
                                                               nvmlProcessInfo_v1_t* processes) {
  return running_processes(handle, count, processes);
}
SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle,
                                                                  unsigned* count,
                                                                  nvmlProcessInfo_v2_t* processes) {
  return running_processes(handle, count, processes);
}
SIMCUDA_CUDA nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle,
                                                                  unsigned* count,
                                                                  nvmlProcessInfo_t* processes) {
  return running_processes(handle, count, processes);
}
