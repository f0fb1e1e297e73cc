// SPDX-License-Identifier: Apache-2.0
// What versions of torch spell differently: Optional, nothing, data_of, writable_data_of,
// is_compressed, sparse_coo, silently, trace_allocator.
#pragma once

#if __has_include(<c10/core/impl/COW.h>)  // 2.6 and later, of those that were tried
#include "versions_torch2.h"
#else  // 1.13
#include "versions_torch1.h"
#endif
