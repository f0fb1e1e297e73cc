// SPDX-License-Identifier: Apache-2.0
#pragma once

// Private members of the dispatcher, before PyTorch 1.6: an explicit instantiation may name them.

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch::lms {

template <class Tag, auto Member>
struct Grant {
  friend auto member(Tag) { return Member; }
};

struct Entry {
  friend auto member(Entry);
};
template struct Grant<Entry, &c10::OperatorHandle::operatorIterator_>;

struct Object {
  friend auto member(Object);
};
template struct Grant<Object, &c10::KernelFunction::functor_>;

struct Unboxed {
  friend auto member(Unboxed);
};
template struct Grant<Unboxed, &c10::KernelFunction::unboxed_kernel_func_>;

struct Boxed {
  friend auto member(Boxed);
};
template struct Grant<Boxed, &c10::KernelFunction::boxed_kernel_func_>;

template <class Member>
struct PointedTo;
template <class T>
struct PointedTo<T * c10::KernelFunction::*> {
  using type = T;
};

// With which a kernel is called boxed. Since PyTorch 1.5 it is told which operator it is of.
using BoxedFunction = PointedTo<decltype(member(Boxed{}))>::type;

}  // namespace torch::lms
