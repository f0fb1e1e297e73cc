// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels that are called by an operator's own C++ signature, and call the next one so: to box the
// arguments and results of an op, and to take them out again, is as much work as its pins. For
// interception_dispatcher.cpp.

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/csrc/lms/boundary.h>
#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/compat/interception_boxed.h>
#include <torch/csrc/lms/compat/interception_pending.h>
#include <torch/csrc/lms/compat/interception_results.h>
#include <torch/csrc/lms/compat/optional.h>
#include <torch/csrc/lms/compat/tensors.h>
#include <torch/csrc/lms/storages.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::lms {

// Stored before each kernel is registered, and loaded by each that runs: so it has what was written
// when it was made. The dispatcher, which other threads come through, has no barrier of its own.
inline std::atomic<bool> kernels_made{false};

// The tensors of one argument.
struct TensorsOf {
  const at::Tensor* first = nullptr;
  size_t count = 0;
};

inline TensorsOf tensors_of(const at::Tensor& tensor) { return {&tensor, 1}; }
inline TensorsOf tensors_of(const Optional<at::Tensor>& tensor) {
  return tensor.has_value() ? tensors_of(*tensor) : TensorsOf{};
}
inline TensorsOf tensors_of(const at::TensorList& list) { return {list.data(), list.size()}; }

template <class T>
constexpr bool kHoldsTensors = std::is_convertible_v<T, const at::Tensor&> ||
                               std::is_same_v<std::decay_t<T>, Optional<at::Tensor>> ||
                               std::is_same_v<std::decay_t<T>, at::TensorList>;

// One call, as at_boundary takes it. Whatever the signature: at_boundary is there once.
class UnboxedCall {
 public:
  struct Arguments {};  // they are the caller's, and good for another run

  const OpFacts& facts() {
    if (C10_UNLIKELY(pending().any())) {
      install_pending();
    }
    return facts_;
  }

  void operands(const OpFacts& facts, Operands* out) const {
    for (size_t i = 0; i < facts.tensors.size(); ++i) {
      const TensorsOf held = tensors_[i];
      const AddOperand add{out, facts.tensors[i].access};
      out->reserve(out->size() + held.count);
      for (size_t j = 0; j < held.count; ++j) {
        each_storage(held.first[j], add);
      }
    }
  }

  template <class F>
  void each_written(const OpFacts& facts, const F& f) const {
    for (size_t i = 0; i < facts.tensors.size(); ++i) {
      if (facts.tensors[i].access != c10::cuda::lms::Access::kRead) {
        f(tensors_[i].count == 1 ? *tensors_[i].first : at::Tensor());
      }
    }
  }

  CudaGenerator generator(c10::Device device) const {
    return generator_ != nullptr && generator_->has_value()
               ? CudaGenerator(**generator_)
               : CudaGenerator(at::globalContext().defaultGenerator(device));
  }

  virtual void run() = 0;
  // f(StorageImpl*) for each storage of the results.
  virtual void each_result(const EachStorage& f) const = 0;

  static Arguments arguments() { return {}; }
  static void set_arguments(const Arguments&) {}

  // The parts are boxed, as slices of lists are.
  template <class F>
  bool in_parts(size_t bytes, const F& f) {
    if (bytes_of_lists() <= bytes) {
      return false;
    }
    Stack stack = boxed_arguments();
    const bool done = run_in_parts(op_.schema(), bytes, &stack, [&](Stack* part, Room room) {
      BoxedCall call(op_, keys_, part, facts_);
      return f(call, room);
    });
    if (done) {
      set_boxed_results(&stack);
    }
    return done;
  }

  static Work work() { return {}; }  // collectives are boxed

 protected:
  // As many of `tensors` as the facts have.
  UnboxedCall(const c10::OperatorHandle& op, DispatchKeySet keys, const OpFacts& facts,
              const TensorsOf* tensors)
      : op_(op), keys_(keys), facts_(facts), tensors_(tensors) {}
  ~UnboxedCall() = default;

  virtual Stack boxed_arguments() const = 0;
  virtual void set_boxed_results(Stack* results) = 0;

  void note_generator(const Optional<at::Generator>& generator) { generator_ = &generator; }
  template <class T>
  void note_generator(const T&) {}

 protected:
  const c10::OperatorHandle& op_;
  const DispatchKeySet keys_;

 private:
  // Of the device.
  size_t bytes_of_lists() const {
    size_t bytes = 0;
    for (size_t i = 0; i < facts_.tensors.size(); ++i) {
      for (size_t j = 0; j < tensors_[i].count; ++j) {
        bytes += bytes_of_item(tensors_[i].first[j]);
      }
    }
    return bytes;
  }

  const OpFacts& facts_;
  const TensorsOf* const tensors_;
  const Optional<at::Generator>* generator_ = nullptr;
};

// Once, for all signatures.
C10_NOINLINE inline void at_boundary_of(UnboxedCall& call) { at_boundary(call); }

template <class Return>
constexpr bool kReturnsLists = std::is_same_v<Return, std::vector<at::Tensor>>;

template <class Signature>
struct Unboxed;

template <class Return, class... Args>
struct Unboxed<Return(Args...)> {
  using Handle = c10::TypedOperatorHandle<Return(Args...)>;

  // Of the parameters, those that hold tensors.
  static constexpr size_t holders() { return (size_t{kHoldsTensors<Args>} + ... + 0); }

  // Whether what it makes may be of another device than its tensors.
  static constexpr bool kNamesDevice =
      (std::is_same_v<std::decay_t<Args>, Optional<at::Device>> || ... || false);

  struct Held {
    explicit Held(Args&... arguments) { (add(arguments), ...); }

    std::array<TensorsOf, holders()> tensors;

   private:
    template <class T>
    void add(T& argument) {
      if constexpr (kHoldsTensors<T&>) {
        tensors[count_++] = tensors_of(argument);
      }
    }
    size_t count_ = 0;
  };

  class Call final : private Held, public UnboxedCall {
   public:
    Call(const Handle& op, DispatchKeySet keys, const OpFacts& facts, Args&... arguments)
        : Held(arguments...),
          UnboxedCall(op, keys, facts, Held::tensors.data()),
          typed_(op),
          arguments_(arguments...) {
      (note_generator(arguments), ...);
    }

    void run() override {
      result_.set([&]() -> Return {
        return std::apply(
            [&](auto&... argument) -> Return { return typed_.redispatch(keys_, argument...); },
            arguments_);
      });
    }
    void each_result(const EachStorage& f) const override { result_.each(f); }
    Return take() { return result_.take(); }

   private:
    Stack boxed_arguments() const override {
      return std::apply([](auto&... argument) { return c10::impl::boxArgs<Args...>(argument...); },
                        arguments_);
    }
    // Of calls on lists, which return lists or nothing.
    void set_boxed_results(Stack* results) override {
      if constexpr (kReturnsLists<Return>) {
        result_.set([&] { return c10::impl::PopResult<Return>::call(*results); });
      }
    }

    const Handle& typed_;
    const std::tuple<Args&...> arguments_;
    Result<Return> result_;
  };

  // Throws when the operator has another signature.
  static torch::CppFunction kernel(const c10::OperatorHandle& op, OpFacts facts) {
    TORCH_CHECK(facts.tensors.size() == holders(), op.operator_name(), " has other operands");
    return torch::CppFunction([handle = op.typed<Return(Args...)>(),
                               facts = std::make_shared<const OpFacts>(std::move(facts))](
                                  DispatchKeySet keys, Args... arguments) -> Return {
      (void)kernels_made.load(std::memory_order_acquire);
      const DispatchKeySet below(DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
      if (!kNamesDevice && all_elsewhere(keys)) {
        return handle.redispatch(keys & below, std::forward<Args>(arguments)...);
      }
      Call call(handle, keys & below, *facts, arguments...);
      at_boundary_of(call);
      return call.take();
    });
  }
};

// ---- which signature an operator has

// As its schema names what C++ has as T.
template <class T>
constexpr const char* kName = nullptr;
template <>
inline constexpr const char* kName<at::Tensor> = "Tensor";
template <>
inline constexpr const char* kName<at::Scalar> = "Scalar";
template <>
inline constexpr const char* kName<int64_t> = "int";
template <>
inline constexpr const char* kName<c10::SymInt> = "SymInt";
template <>
inline constexpr const char* kName<double> = "float";
template <>
inline constexpr const char* kName<bool> = "bool";
template <>
inline constexpr const char* kName<c10::string_view> = "str";
template <>
inline constexpr const char* kName<at::ScalarType> = "ScalarType";
template <>
inline constexpr const char* kName<at::MemoryFormat> = "MemoryFormat";
template <>
inline constexpr const char* kName<at::Device> = "Device";
template <>
inline constexpr const char* kName<at::Layout> = "Layout";
template <>
inline constexpr const char* kName<at::Generator> = "Generator";

template <class T>
struct Named {
  static_assert(kName<T> != nullptr, "a type of no schema");
  static std::string name() { return kName<T>; }
};
template <class T>
struct Named<c10::ArrayRef<T>> {
  static std::string name() { return Named<T>::name() + "[]"; }
};
template <class T>
struct Named<Optional<T>> {
  static std::string name() { return Named<T>::name() + "?"; }
};
template <class T>
struct Named<c10::OptionalArrayRef<T>> {
  static std::string name() { return Named<c10::ArrayRef<T>>::name() + "?"; }
};
template <class T>
struct Named<const T&> {
  static std::string name() { return Named<T>::name(); }
};
template <class T>
struct Named<T&> {  // is written
  static std::string name() { return Named<T>::name() + "!"; }
};
template <class T>
struct Named<std::vector<T>> {
  static std::string name() { return Named<T>::name() + "[]"; }
};
template <class... Ts>
std::string names_of() {
  std::string names;
  ((names += Named<Ts>::name() + ","), ...);
  return names;
}

template <class Return>
struct Results {
  static std::string names() { return names_of<Return>(); }
};
template <>
struct Results<void> {
  static std::string names() { return ""; }
};
template <class... Ts>
struct Results<std::tuple<Ts...>> {
  static std::string names() { return names_of<Ts...>(); }
};

template <class Return, class... Args>
struct Named<Return(Args...)> {
  static std::string name() { return Results<Return>::names() + " of " + names_of<Args...>(); }
};

inline std::string name_of(const std::vector<c10::Argument>& arguments) {
  std::string names;
  for (const c10::Argument& argument : arguments) {
    const std::string type = argument.real_type()->str();
    // Lists that are written have the same C++ type as others.
    const bool written =
        argument.alias_info() != nullptr && argument.alias_info()->isWrite() && type.back() != ']';
    names += type + (written ? "!," : ",");
  }
  return names;
}

using MakeKernel = torch::CppFunction (*)(const c10::OperatorHandle&, OpFacts);

template <class... Signatures>
std::unordered_map<std::string, MakeKernel> kernels_of() {
  return {{Named<Signatures>::name(), &Unboxed<Signatures>::kernel}...};
}

// Those that many operators have, and those of the small operators that a training step is made of:
// for what takes long anyway a boxed call will do, and each costs some kilobytes.
inline const std::unordered_map<std::string, MakeKernel>& unboxed_kernels() {
  using T = const at::Tensor&;
  using Made = at::Tensor;
  using Written = at::Tensor&;
  using Some = const Optional<at::Tensor>&;
  using Number = const at::Scalar&;
  using Sizes = c10::SymIntArrayRef;
  using List = at::TensorList;
  using Numbers = at::ArrayRef<at::Scalar>;
  using MadeList = std::vector<at::Tensor>;
  using Dtype = Optional<at::ScalarType>;
  using Random = Optional<at::Generator>;
  using Two = std::tuple<at::Tensor, at::Tensor>;
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  static const auto* kernels = new auto(
      kernels_of<
          // that make one result
          Made(T), Made(T, T), Made(T, Number), Made(T, T, Number), Made(T, T, T),
          Made(T, T, T, Number), Made(T, T, T, Number, Number), Made(T, Number, Number),
          Made(T, T, Number, Number), Made(Number, T), Made(T, T, bool), Made(T, bool),
          Made(T, int64_t), Made(T, int64_t, bool), Made(T, int64_t, int64_t), Made(T, T, int64_t),
          Made(T, T, T, int64_t), Made(T, int64_t, T), Made(T, int64_t, T, T),
          Made(T, int64_t, T, bool), Made(T, int64_t, Dtype), Made(T, T, int64_t, at::ScalarType),
          Made(T, Dtype), Made(T, at::OptionalIntArrayRef, bool, Dtype), Made(T, at::IntArrayRef),
          Made(T, at::IntArrayRef, bool), Made(T, Sizes), Made(T, Sizes, bool),
          Made(T, c10::string_view), Made(T, T, c10::string_view), Made(T, T, T, bool),
          Made(T, T, bool, bool), Made(T, T, T, double), Made(T, T, double), Made(T, double),
          Made(T, T, c10::SymInt, c10::SymInt, bool),  // embedding_dense_backward and its like
          Made(T, T, c10::SymInt, bool, bool),         // embedding
          Made(T, T, Some, int64_t, c10::SymInt),      // nll_loss
          Made(T, Optional<at::ScalarType>, Optional<at::Layout>, Optional<at::Device>,
               Optional<bool>, bool, Optional<at::MemoryFormat>),  // _to_copy
          Made(T, Optional<at::MemoryFormat>),                     // clone
          // several
          Two(T), Two(T, bool), Two(T, int64_t, bool), Two(T, double, Optional<bool>),
          Three(T, Sizes, Some, Some, double), Two(T, T, Some, int64_t, c10::SymInt),
          // that write the first operand
          Written(Written), Written(Written, T), Written(Written, Number), Written(Written, T, T),
          Written(Written, T, Number), Written(Written, T, T, Number),
          Written(Written, T, T, Number, Number), Written(Written, T, bool),
          Written(Written, Number, Number), Written(Written, int64_t),
          Written(Written, double, double, Random), Written(Written, double, Random),
          // that write what they are given for the result
          Written(T, Written), Written(T, T, Written), Written(T, Number, Written),
          Written(T, T, Number, Written), Written(T, T, T, Number, Number, Written),
          Written(T, int64_t, Written), Written(T, Sizes, Written), Written(T, T, int64_t, Written),
          // that take lists: optimisers'
          void(List), void(List, Number), void(List, Numbers), void(List, List), void(List, T),
          void(List, List, Number), void(List, List, List), void(List, List, List, Number),
          void(List, List, List, Numbers), void(List, List, List, T), void(List, T, T),
          void(List, T, Number), void(List, List, Numbers), void(List, List, bool),
          void(List, Written, T),
          void(List, List, List, List, List, List, double, double, double, double, double, bool,
               bool, Some, Some),
          void(List, List, List, List, List, List, T, double, double, double, double, bool, bool,
               Some, Some),
          MadeList(List), MadeList(List, Number), MadeList(List, Numbers), MadeList(List, List),
          MadeList(List, T), MadeList(List, T, Number), MadeList(List, List, Number),
          MadeList(List, Number, Dtype), MadeList(List, List, List),
          MadeList(List, List, List, Number), MadeList(List, List, List, Numbers)>());
  return *kernels;
}

// The kernel of an operator of aten, of these facts. Nothing where its signature is none of those.
inline std::optional<torch::CppFunction> unboxed_kernel(const c10::OperatorHandle& op,
                                                        const OpFacts& facts) {
  const auto& schema = op.schema();
  const auto found =
      unboxed_kernels().find(name_of(schema.returns()) + " of " + name_of(schema.arguments()));
  const bool can = facts.kind == OpFacts::Kind::kNormal || facts.kind == OpFacts::Kind::kForeach;
  if (!can || found == unboxed_kernels().end()) {
    return std::nullopt;
  }
  try {
    return found->second(op, facts);
  } catch (const c10::Error&) {  // in C++ it is not what its schema says
    return std::nullopt;
  }
}

}  // namespace torch::lms
