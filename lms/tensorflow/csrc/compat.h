// SPDX-License-Identifier: Apache-2.0
// What TensorFlow's versions do differently, as far as the runtime needs it.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_COMPAT_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_COMPAT_H_

#include <cstdint>
#include <string>

#include "tensorflow/core/common_runtime/bfc_allocator.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/version.h"

#define TF_LMS_AT_LEAST(major, minor) \
  (TF_MAJOR_VERSION > (major) || (TF_MAJOR_VERSION == (major) && TF_MINOR_VERSION >= (minor)))

namespace tensorflow {
namespace lms {

#if TF_LMS_AT_LEAST(2, 14)
using BfcAllocator = tsl::BFCAllocator;
using BfcReclaimer = tsl::BFCReclaimer;
inline uint64_t VarTypeHash() { return TypeIndex::Make<Var>().hash_code(); }
#else
using BfcAllocator = tensorflow::BFCAllocator;
using BfcReclaimer = tensorflow::BFCReclaimer;
inline uint64_t VarTypeHash() { return MakeTypeIndex<Var>().hash_code(); }
#endif

// Whether the C interface, and with it Python, takes the pointers of tensors on the CPU without a
// call of the framework library, where it could be seen: the C interface is in another library.
// `IsEager` matters only then.
#if TF_LMS_AT_LEAST(2, 14)
constexpr bool kPointersTakenUnseen = false;
inline bool IsEager(OpKernelContext*) { return false; }
#else
constexpr bool kPointersTakenUnseen = true;
inline bool IsEager(OpKernelContext* context) { return context->is_eager(); }
#endif

#if TF_LMS_AT_LEAST(2, 14)
inline std::string MessageOf(const Status& status) { return std::string(status.message()); }
#else
inline std::string MessageOf(const Status& status) { return status.error_message(); }
#endif

// A tensor for whose memory nobody waits: not initialised when there is none.
inline Tensor NewTensorAtOnce(Allocator* allocator, DataType type, const TensorShape& shape) {
  AllocationAttributes attributes;
#if TF_LMS_AT_LEAST(2, 14)
  attributes.retry_on_failure = false;
#else
  attributes.no_retry_on_failure = true;
#endif
  return Tensor(allocator, type, shape, attributes);
}

inline Status Ok() { return Status(); }

// The variable that the handle names, with a reference that the caller drops; null when there is
// none yet. The handle must be one of a variable (VarTypeHash).
inline Var* FindVar(OpKernelContext* context, const ResourceHandle& handle) {
  core::RefCountPtr<Var> var;
  return LookupResource(context, handle, &var).ok() ? var.release() : nullptr;
}

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_COMPAT_H_
