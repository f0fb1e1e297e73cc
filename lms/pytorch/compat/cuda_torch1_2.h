// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 of PyTorch 1.2 has for CUDA, which is 10.0 there; included by cuda.h.

#include <c10/cuda/lms/compat/cuda_captures.h>
#include <c10/cuda/lms/compat/cuda_lacking.h>
#include <c10/cuda/lms/compat/cuda_modeless.h>
