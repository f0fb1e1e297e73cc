// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/cuda/lms/compat/implementations.h>

// Seam: how operators come to be. LMS_DEFINITIONS(d) { ... } runs when the library is loaded; in it
// d.def(schema, function), with d a `Definitions`, makes one in the namespace `lms`. `Storage` is
// what a schema calls a storage, StorageArgument the type of that argument; Counts that of a
// Dict(str, int), with insert(name, count).
#include LMS_DEFINITIONS_BY
