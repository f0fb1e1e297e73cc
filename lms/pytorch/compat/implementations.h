// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which implementation of each seam this version of PyTorch takes.
#if __has_include(<c10/core/impl/COW.h>)  // 2.6 and later, of those that the runtime is for
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch2.h>
#define LMS_COLLECTIVES <torch/csrc/lms/collective.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1.h>
#define LMS_DEFINITIONS_BY <torch/csrc/lms/compat/definitions_torch1.h>
#define LMS_RANDOM <torch/csrc/lms/compat/random_torch2.h>
#define LMS_SILENCE <torch/csrc/lms/compat/silence_torch2.h>
#define LMS_STORAGE <c10/cuda/lms/compat/storage_torch2.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1.h>
#define LMS_WRITE_BARRIER <c10/cuda/lms/compat/write_barrier_cow.h>
#elif __has_include(<c10/util/ScopeExit.h>)  // 1.13
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch1.h>
#define LMS_COLLECTIVES <torch/csrc/lms/collective.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1.h>
#define LMS_DEFINITIONS_BY <torch/csrc/lms/compat/definitions_torch1.h>
#define LMS_RANDOM <torch/csrc/lms/compat/random_torch1.h>
#define LMS_SILENCE <torch/csrc/lms/compat/silence_torch1.h>
#define LMS_STORAGE <c10/cuda/lms/compat/storage_torch1.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1.h>
#define LMS_WRITE_BARRIER <c10/cuda/lms/compat/write_barrier_none.h>
#else  // 1.5 and before
#define LMS_COLLECTIVES <torch/csrc/lms/compat/collectives_none.h>
#define LMS_STORAGE <c10/cuda/lms/compat/storage_torch1_5.h>
#define LMS_WRITE_BARRIER <c10/cuda/lms/compat/write_barrier_none.h>
#if __has_include(<c10/core/MemoryFormat.h>)  // since 1.2
#define LMS_DEFINITIONS_BY <torch/csrc/lms/compat/definitions_torch1_5.h>
#define LMS_RANDOM <torch/csrc/lms/compat/random_torch1_5.h>
#else
#define LMS_DEFINITIONS_BY <torch/csrc/lms/compat/definitions_torch1_1.h>
#define LMS_RANDOM <torch/csrc/lms/compat/random_torch1_1.h>
#endif
#if !__has_include(<c10/core/TensorTypeId.h>)  // 1.5
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch1_5.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1_5.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1_5.h>
#elif __has_include(<c10/util/TypeIndex.h>)  // 1.4
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch1_5.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1_5.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1_4.h>
#elif __has_include(<c10/util/FunctionRef.h>)  // 1.3
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch1_3.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1_5.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1_3.h>
#elif __has_include(<c10/core/MemoryFormat.h>)  // 1.2
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch1_3.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1_2.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1_3.h>
#else  // 1.1
#define LMS_ALLOCATOR <c10/cuda/lms/compat/allocator_torch1_3.h>
#define LMS_CUDA <c10/cuda/lms/compat/cuda_torch1_1.h>
#define LMS_TENSORS <torch/csrc/lms/compat/tensors_torch1_1.h>
#endif
#endif
