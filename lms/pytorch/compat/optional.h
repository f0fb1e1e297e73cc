// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/TensorBase.h>

#include <utility>

namespace torch::lms {

namespace detail {

template <class T>
struct OptionalOf;
template <template <class> class Kind, class T>
struct OptionalOf<Kind<T>> {
  template <class U>
  using Type = Kind<U>;
};

}  // namespace detail

// What PyTorch takes as an optional value: std's, and before PyTorch 2.5 its own.
template <class T>
using Optional = typename detail::OptionalOf<
    decltype(std::declval<c10::TensorOptions>().layout_opt())>::template Type<T>;

}  // namespace torch::lms
