// SPDX-License-Identifier: Apache-2.0
#if !__has_include(<torch/library.h>)  // before PyTorch 1.6: all of the file

#include <torch/csrc/lms/compat/interception.h>
#include <torch/csrc/lms/compat/interception_call.h>
#if __has_include(<c10/core/DispatchKey.h>)
#include <torch/csrc/lms/compat/interception_torch1_5.h>
#elif !__has_include(<c10/core/MemoryFormat.h>)
#include <torch/csrc/lms/compat/interception_torch1_1.h>
#elif !__has_include(<ATen/core/ATenDispatch.h>)
#include <torch/csrc/lms/compat/interception_torch1_4.h>
#elif __has_include(<ATen/core/boxing/KernelFunction.h>)
#include <torch/csrc/lms/compat/interception_torch1_3.h>
#else
#include <torch/csrc/lms/compat/interception_torch1_2.h>
#endif

#include <memory>

// By the kernels. Before PyTorch 1.6 no key is in every thread's set but autograd's, and most
// kernels of aten can only be called with their own C++ signature, not boxed. So the kernels in an
// operator's table are called through functions of the same signature, one template for all; which
// signature an operator has, upstream's own headers tell (signatures.py). What they have no
// operator for, other libraries' operators, is called boxed.
//
// Nothing is registered: in the tables the pointers to the functions are others. A version's header
// says how (hook_op), and which kernels are in no table of the dispatcher (hook_more).
namespace torch::lms {
namespace {

bool hook_named(const c10::OperatorName& name) {
  const auto op = find_op(name);
  return op && hook_op(*op);
}

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle& op) override {
    pending().add({op.schema().name(), op.schema().overload_name()});
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {}
};

}  // namespace

size_t install() {
  size_t more = 0;
  return pending().install(
             [&] {
               more = hook_more();
               c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>());
             },
             hook_named) +
         more;
}

size_t install_pending() { return pending().install_pending(hook_named); }

}  // namespace torch::lms

#endif
