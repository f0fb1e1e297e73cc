// SPDX-License-Identifier: Apache-2.0
// An operation that may write into its input, and asks for more memory when it has; one that runs
// until a test ends it.
#include <unistd.h>

#include <string>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {

REGISTER_OP("AddOneAndMore")
    .Input("x: float")
    .Attr("more: int")
    .Output("y: float")
    .Output("z: float")
    .SetShapeFn(shape_inference::UnknownShape);

class AddOneAndMore final : public OpKernel {
 public:
  explicit AddOneAndMore(OpKernelConstruction* made) : OpKernel(made) {
    OP_REQUIRES_OK(made, made->GetAttr("more", &more_));
  }
  void Compute(OpKernelContext* context) override {
    Tensor* y = nullptr;
    Tensor* z = nullptr;
    const Tensor& in = context->input(0);
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, in.shape(), &y));
    for (int64_t i = 0; i < in.NumElements(); ++i) {
      y->flat<float>()(i) = in.flat<float>()(i) + 1.0f;
    }
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({more_}), &z));
    z->flat<float>()(0) = y->flat<float>()(0);
  }

 private:
  int64_t more_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("AddOneAndMore").Device(DEVICE_CPU), AddOneAndMore);

REGISTER_OP("RunUntil")
    .Input("x: float")
    .Attr("file: string")
    .Output("y: float")
    .SetShapeFn(shape_inference::ScalarShape);

// Until there is a file.
class RunUntil final : public OpKernel {
 public:
  explicit RunUntil(OpKernelConstruction* made) : OpKernel(made) {
    OP_REQUIRES_OK(made, made->GetAttr("file", &file_));
  }
  void Compute(OpKernelContext* context) override {
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &y));
    while (access(file_.c_str(), F_OK) != 0) usleep(10000);
    y->scalar<float>()() = context->input(0).flat<float>()(0);
  }

 private:
  std::string file_;
};

REGISTER_KERNEL_BUILDER(Name("RunUntil").Device(DEVICE_CPU), RunUntil);

}  // namespace tensorflow
