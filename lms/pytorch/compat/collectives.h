// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/lms/compat/implementations.h>

// Seam: collectives, of versions where they are operators.
#include LMS_COLLECTIVES
