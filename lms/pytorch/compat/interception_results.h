// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a kernel returned that was called by its own C++ signature. For the implementations of
// interception.h.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/lms/storages.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace torch::lms {

// f(StorageImpl*), which the caller keeps: a std::function of it costs an op a nanosecond.
class EachStorage {
 public:
  template <class F>
  EachStorage(const F& f)
      : f_(&f), call_([](const void* of, c10::StorageImpl* storage) {
          (*static_cast<const F*>(of))(storage);
        }) {}
  void operator()(c10::StorageImpl* storage) const { call_(f_, storage); }

 private:
  const void* f_;
  void (*call_)(const void*, c10::StorageImpl*);
};

inline void each_made(const at::Tensor& made, const EachStorage& f) {
  each_storage(made, [&](const at::Tensor&, c10::StorageImpl* storage) { f(storage); });
}

inline void each_made(const std::vector<at::Tensor>& made, const EachStorage& f) {
  for (const at::Tensor& tensor : made) {
    each_made(tensor, f);
  }
}

template <class T>
void each_made(const T&, const EachStorage&) {}

template <class... Ts>
void each_made(const std::tuple<Ts...>& made, const EachStorage& f) {
  std::apply([&](const auto&... each) { (each_made(each, f), ...); }, made);
}

// A value, what is somebody else's, or nothing.
template <class T>
struct Result {
  std::optional<T> value;

  template <class Make>
  void set(const Make& make) {
    value.emplace(make());
  }
  T take() { return std::move(*value); }
  void each(const EachStorage& f) const { each_made(*value, f); }
};

template <class T>
struct Result<T&> {
  T* value = nullptr;

  template <class Make>
  void set(const Make& make) {
    value = &make();
  }
  T& take() { return *value; }
  void each(const EachStorage&) const {}
};

template <>
struct Result<void> {
  template <class Make>
  void set(const Make& make) {
    make();
  }
  void take() {}
  void each(const EachStorage&) const {}
};

}  // namespace torch::lms
