// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 of PyTorch 1.13 and later has for CUDA; included by cuda.h.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/lms/compat/cuda_captures.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
