// SPDX-License-Identifier: Apache-2.0
#pragma once

// What c10 of PyTorch 1.3 to 1.5 has for CUDA; included by cuda.h.

#include <c10/cuda/lms/compat/cuda_captures.h>
#include <c10/cuda/lms/compat/cuda_lacking.h>
