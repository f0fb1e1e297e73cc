// SPDX-License-Identifier: Apache-2.0
// cuDNN 8 and 9 by their functions for one layer each. Its newer interface is in graphs.cpp.
#include <cstring>

#include "library.h"

using namespace simcuda;
using library::Handle;
using library::Operand;

namespace {

constexpr size_t kWorkspace = size_t{1} << 20;  // of a recurrent layer; assumed

// A description of a tensor, a filter or a recurrent layer; the generated cudnnCreate functions
// give out zeroed memory for it.
struct Tensor {
  int type, dimensions;
  int sizes[8];
  int strides[8];

  double elements() const {
    double count = dimensions > 0 ? 1 : 0;
    for (int i = 0; i < dimensions && i < 8; i++) count *= sizes[i];
    return count;
  }
  double bytes() const { return elements() * static_cast<double>(size()); }
  size_t size() const {  // of cudnnDataType_t
    constexpr size_t kSizes[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2, 8};
    return type >= 0 && type < 11 ? kSizes[type] : 4;
  }
};
struct Recurrent {
  int hidden, layers, directions, mode, type, input;

  size_t bytes(double input_size) const {                // of all its parameters
    const int gates = mode < 2 ? 1 : mode == 2 ? 4 : 3;  // ReLU, tanh, LSTM, GRU
    double elements = 0;
    for (int i = 0; i < layers; i++) {
      const double size = i == 0 ? input_size : hidden * directions;
      elements += directions * gates * ((size + hidden) * hidden + 2.0 * hidden);
    }
    return static_cast<size_t>(elements) * (type == 2 ? 2 : type == 1 ? 8 : 4);
  }
};
struct Algorithm {  // cudnnConvolutionFwdAlgoPerf_t and its two siblings
  int algorithm, status;
  float time;
  size_t memory;
  int deterministic, math, reserved[3];
};

int describe(Tensor* tensor, int type, int dimensions, const int* sizes, const int* strides) {
  *tensor = {type, dimensions, {}, {}};
  for (int i = 0; i < dimensions && i < 8; i++) {
    tensor->sizes[i] = sizes[i];
    if (strides) tensor->strides[i] = strides[i];
  }
  return 0;
}

Operand in(const Tensor* tensor, const void* at) {
  return {at, tensor ? tensor->bytes() : 0, false};
}
Operand out(const Tensor* tensor, const void* at) {
  return {at, tensor ? tensor->bytes() : 0, true};
}

int layer(const char* name, Handle* handle, const std::vector<Operand>& operands) {
  return library::compute(name, handle->stream, operands);
}

int convolution(const char* name, Handle* handle, const Tensor* filter, const Tensor* result,
                const std::vector<Operand>& operands) {
  const double taps = filter->sizes[0] > 0 ? filter->elements() / filter->sizes[0] : 0;
  return library::compute(name, handle->stream, operands, library::Work::kConvolution,
                          2 * taps * result->elements(), library::precision_of(filter->size()));
}

constexpr int kBest = 1;  // which algorithm of a convolution

int choose(int* found, Algorithm* result) {
  *found = 1;
  *result = {kBest, 0, 0.01f, library::convolution_workspace(), 1, 1, {}};
  return 0;
}

int give(size_t* bytes, size_t value) {
  *bytes = value;
  return 0;
}

}  // namespace

SIMCUDA_LIBRARY size_t cudnnGetVersion() {
  const int major = library::kDnn[0];  // from 9 on there is room for more minor versions
  return static_cast<size_t>(major * (major < 9 ? 1000 : 10000) + library::kDnn[1] * 100 +
                             library::kDnn[2]);
}
SIMCUDA_LIBRARY size_t cudnnGetCudartVersion() { return kCuda; }
SIMCUDA_LIBRARY int cudnnGetProperty(int which, int* value) {
  *value = which >= 0 && which < 3 ? library::kDnn[which] : 0;
  return 0;
}
SIMCUDA_LIBRARY const char* cudnnGetErrorString(int) { return "status of the simulated device"; }

// ---- descriptions

SIMCUDA_LIBRARY int cudnnSetTensor4dDescriptor(Tensor* tensor, int, int type, int n, int c, int h,
                                               int w) {
  const int sizes[] = {n, c, h, w};
  return describe(tensor, type, 4, sizes, nullptr);
}
SIMCUDA_LIBRARY int cudnnSetTensorNdDescriptor(Tensor* tensor, int type, int dimensions,
                                               const int* sizes, const int* strides) {
  return describe(tensor, type, dimensions, sizes, strides);
}
SIMCUDA_LIBRARY int cudnnSetTensorNdDescriptorEx(Tensor* tensor, int, int type, int dimensions,
                                                 const int* sizes) {
  return describe(tensor, type, dimensions, sizes, nullptr);
}
SIMCUDA_LIBRARY int cudnnSetFilter4dDescriptor(Tensor* filter, int type, int, int k, int c, int h,
                                               int w) {
  const int sizes[] = {k, c, h, w};
  return describe(filter, type, 4, sizes, nullptr);
}
SIMCUDA_LIBRARY int cudnnSetFilterNdDescriptor(Tensor* filter, int type, int, int dimensions,
                                               const int* sizes) {
  return describe(filter, type, dimensions, sizes, nullptr);
}

// ---- convolutions

#define SIMCUDA_CONVOLUTION(way)                                                                  \
  SIMCUDA_LIBRARY int cudnnGetConvolution##way##Algorithm_v7(void*, void*, void*, void*, void*,   \
                                                             int, int* found, Algorithm* best) {  \
    return choose(found, best);                                                                   \
  }                                                                                               \
  SIMCUDA_LIBRARY int cudnnGetConvolution##way##Algorithm(void*, void*, void*, void*, void*, int, \
                                                          size_t, int* best) {                    \
    *best = kBest;                                                                                \
    return 0;                                                                                     \
  }                                                                                               \
  SIMCUDA_LIBRARY int cudnnGetConvolution##way##AlgorithmMaxCount(void*, int* count) {            \
    *count = 1;                                                                                   \
    return 0;                                                                                     \
  }                                                                                               \
  SIMCUDA_LIBRARY int cudnnGetConvolution##way##WorkspaceSize(void*, void*, void*, void*, void*,  \
                                                              int, size_t* bytes) {               \
    return give(bytes, library::convolution_workspace());                                         \
  }
SIMCUDA_CONVOLUTION(Forward)
SIMCUDA_CONVOLUTION(BackwardData)
SIMCUDA_CONVOLUTION(BackwardFilter)
#undef SIMCUDA_CONVOLUTION

SIMCUDA_LIBRARY int cudnnConvolutionForward(Handle* handle, const void*, const Tensor* x,
                                            const void* x_at, const Tensor* w, const void* w_at,
                                            void*, int, void*, size_t, const void*, const Tensor* y,
                                            void* y_at) {
  return convolution("cudnnConvolutionForward", handle, w, y,
                     {in(x, x_at), in(w, w_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnConvolutionBackwardData(Handle* handle, const void*, const Tensor* w,
                                                 const void* w_at, const Tensor* dy,
                                                 const void* dy_at, void*, int, void*, size_t,
                                                 const void*, const Tensor* dx, void* dx_at) {
  return convolution("cudnnConvolutionBackwardData", handle, w, dy,
                     {in(w, w_at), in(dy, dy_at), out(dx, dx_at)});
}
SIMCUDA_LIBRARY int cudnnConvolutionBackwardFilter(Handle* handle, const void*, const Tensor* x,
                                                   const void* x_at, const Tensor* dy,
                                                   const void* dy_at, void*, int, void*, size_t,
                                                   const void*, const Tensor* dw, void* dw_at) {
  return convolution("cudnnConvolutionBackwardFilter", handle, dw, dy,
                     {in(x, x_at), in(dy, dy_at), out(dw, dw_at)});
}
SIMCUDA_LIBRARY int cudnnConvolutionBiasActivationForward(
    Handle* handle, const void*, const Tensor* x, const void* x_at, const Tensor* w,
    const void* w_at, void*, int, void*, size_t, const void*, const Tensor* z, const void* z_at,
    const Tensor* bias, const void* bias_at, void*, const Tensor* y, void* y_at) {
  return convolution("cudnnConvolutionBiasActivationForward", handle, w, y,
                     {in(x, x_at), in(w, w_at), in(z, z_at), in(bias, bias_at), out(y, y_at)});
}

// ---- other layers

SIMCUDA_LIBRARY int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*,
                                                                             void*, void*, void*,
                                                                             void*, size_t* bytes) {
  return give(bytes, 0);
}
SIMCUDA_LIBRARY int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*,
                                                                      void*, void*, void*, void*,
                                                                      void*, size_t* bytes) {
  return give(bytes, 0);
}
SIMCUDA_LIBRARY int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*,
                                                                         void*, size_t* bytes) {
  return give(bytes, 0);
}
SIMCUDA_LIBRARY int cudnnBatchNormalizationForwardTrainingEx(
    Handle* handle, int, int, const void*, const void*, const Tensor* x, const void* x_at,
    const Tensor* z, const void* z_at, const Tensor* y, void* y_at, const Tensor*, const void*,
    const void*, double, void*, void*, double, void*, void*, void*, void*, size_t, void*, size_t) {
  return layer("cudnnBatchNormalizationForwardTrainingEx", handle,
               {in(x, x_at), in(z_at ? z : nullptr, z_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnBatchNormalizationForwardTraining(Handle* handle, int, const void*,
                                                           const void*, const Tensor* x,
                                                           const void* x_at, const Tensor* y,
                                                           void* y_at, const Tensor*, const void*,
                                                           const void*, double, void*, void*,
                                                           double, void*, void*) {
  return layer("cudnnBatchNormalizationForwardTraining", handle, {in(x, x_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnBatchNormalizationForwardInference(Handle* handle, int, const void*,
                                                            const void*, const Tensor* x,
                                                            const void* x_at, const Tensor* y,
                                                            void* y_at, const Tensor*, const void*,
                                                            const void*, const void*, const void*,
                                                            double) {
  return layer("cudnnBatchNormalizationForwardInference", handle, {in(x, x_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnBatchNormalizationBackwardEx(
    Handle* handle, int, int, const void*, const void*, const void*, const void*, const Tensor* x,
    const void* x_at, const Tensor* y, const void* y_at, const Tensor* dy, const void* dy_at,
    const Tensor* dz, void* dz_at, const Tensor* dx, void* dx_at, const Tensor*, const void*,
    const void*, void*, void*, double, const void*, const void*, void*, void*, size_t, void*,
    size_t) {
  return layer("cudnnBatchNormalizationBackwardEx", handle,
               {in(x, x_at), in(y_at ? y : nullptr, y_at), in(dy, dy_at),
                out(dz_at ? dz : nullptr, dz_at), out(dx, dx_at)});
}
SIMCUDA_LIBRARY int cudnnBatchNormalizationBackward(Handle* handle, int, const void*, const void*,
                                                    const void*, const void*, const Tensor* x,
                                                    const void* x_at, const Tensor* dy,
                                                    const void* dy_at, const Tensor* dx,
                                                    void* dx_at, const Tensor*, const void*, void*,
                                                    void*, double, const void*, const void*) {
  return layer("cudnnBatchNormalizationBackward", handle,
               {in(x, x_at), in(dy, dy_at), out(dx, dx_at)});
}
SIMCUDA_LIBRARY int cudnnPoolingForward(Handle* handle, void*, const void*, const Tensor* x,
                                        const void* x_at, const void*, const Tensor* y,
                                        void* y_at) {
  return layer("cudnnPoolingForward", handle, {in(x, x_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnPoolingBackward(Handle* handle, void*, const void*, const Tensor* y,
                                         const void* y_at, const Tensor* dy, const void* dy_at,
                                         const Tensor* x, const void* x_at, const void*,
                                         const Tensor* dx, void* dx_at) {
  return layer("cudnnPoolingBackward", handle,
               {in(y, y_at), in(dy, dy_at), in(x, x_at), out(dx, dx_at)});
}
SIMCUDA_LIBRARY int cudnnActivationForward(Handle* handle, void*, const void*, const Tensor* x,
                                           const void* x_at, const void*, const Tensor* y,
                                           void* y_at) {
  return layer("cudnnActivationForward", handle, {in(x, x_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnSoftmaxForward(Handle* handle, int, int, const void*, const Tensor* x,
                                        const void* x_at, const void*, const Tensor* y,
                                        void* y_at) {
  return layer("cudnnSoftmaxForward", handle, {in(x, x_at), out(y, y_at)});
}
SIMCUDA_LIBRARY int cudnnAddTensor(Handle* handle, const void*, const Tensor* a, const void* a_at,
                                   const void*, const Tensor* c, void* c_at) {
  return layer("cudnnAddTensor", handle, {in(a, a_at), in(c, c_at), out(c, c_at)});
}

// ---- recurrent layers: the sizes that TensorFlow asks for; their kernels take a launch

SIMCUDA_LIBRARY int cudnnDropoutGetStatesSize(void*, size_t* bytes) {
  return give(bytes, kWorkspace);
}
SIMCUDA_LIBRARY int cudnnGetRNNWorkspaceSize(void*, void*, int, void*, size_t* bytes) {
  return give(bytes, kWorkspace);
}
SIMCUDA_LIBRARY int cudnnGetRNNTrainingReserveSize(void*, void*, int, void*, size_t* bytes) {
  return give(bytes, kWorkspace);
}
SIMCUDA_LIBRARY int cudnnGetRNNTempSpaceSizes(void*, void*, int, void*, size_t* work,
                                              size_t* reserve) {
  if (reserve) *reserve = kWorkspace;
  return give(work, kWorkspace);
}
SIMCUDA_LIBRARY int cudnnSetRNNDescriptor_v8(Recurrent* layer, int, int mode, int, int direction,
                                             int, int type, int, int, int input, int hidden, int,
                                             int layers, void*, unsigned) {
  *layer = {hidden, layers, direction ? 2 : 1, mode, type, input};
  return 0;
}
SIMCUDA_LIBRARY int cudnnSetRNNDescriptor(void*, Recurrent* layer, int hidden, int layers, void*,
                                          int, int direction, int mode, int, int type) {
  *layer = {hidden, layers, direction ? 2 : 1, mode, type, 0};
  return 0;
}
SIMCUDA_LIBRARY int cudnnSetRNNDescriptor_v6(void* handle, Recurrent* layer, int hidden, int layers,
                                             void* dropout, int input, int direction, int mode,
                                             int algorithm, int type) {
  return cudnnSetRNNDescriptor(handle, layer, hidden, layers, dropout, input, direction, mode,
                               algorithm, type);
}
SIMCUDA_LIBRARY int cudnnGetRNNDescriptor_v6(void*, const Recurrent* layer, int* hidden,
                                             int* layers, void** dropout, int* input,
                                             int* direction, int* mode, int* algorithm, int* type) {
  *hidden = layer->hidden;
  *layers = layer->layers;
  *dropout = nullptr;
  *input = *algorithm = 0;
  *direction = layer->directions - 1;
  *mode = layer->mode;
  *type = layer->type;
  return 0;
}
SIMCUDA_LIBRARY int cudnnGetRNNDescriptor(void* handle, const Recurrent* layer, int* hidden,
                                          int* layers, void** dropout, int* input, int* direction,
                                          int* mode, int* algorithm, int* type) {
  return cudnnGetRNNDescriptor_v6(handle, layer, hidden, layers, dropout, input, direction, mode,
                                  algorithm, type);
}
SIMCUDA_LIBRARY int cudnnGetRNNDescriptor_v8(const Recurrent* layer, int* algorithm, int* mode,
                                             int* bias, int* direction, int* input_mode, int* type,
                                             int* precision, int* math, int* input, int* hidden,
                                             int* projection, int* layers, void** dropout,
                                             unsigned* flags) {
  const auto tell = [](auto* out, auto value) {
    if (out) *out = value;
  };
  for (int* unset : {algorithm, input_mode, math}) tell(unset, 0);
  tell(bias, 2);  // one for each of the two products, as `bytes` counts
  tell(mode, layer->mode);
  tell(direction, layer->directions - 1);
  tell(type, layer->type);
  tell(precision, layer->type);
  tell(input, layer->input);
  tell(hidden, layer->hidden);
  tell(projection, layer->hidden);  // there is none
  tell(layers, layer->layers);
  tell(dropout, static_cast<void*>(nullptr));
  tell(flags, 0u);
  return 0;
}
SIMCUDA_LIBRARY int cudnnGetRNNProjectionLayers(void*, const Recurrent* layer, int* recurrent,
                                                int* output) {
  *recurrent = layer->hidden;  // there is none
  *output = 0;
  return 0;
}
SIMCUDA_LIBRARY int cudnnGetRNNParamsSize(void*, const Recurrent* layer, const Tensor* x,
                                          size_t* bytes, int) {
  return give(bytes, layer->bytes(x->sizes[1]));
}
SIMCUDA_LIBRARY int cudnnGetRNNWeightSpaceSize(void*, const Recurrent* layer, size_t* bytes) {
  return give(bytes, layer->bytes(layer->input));
}
namespace {
// TensorFlow asks where each matrix lies, and uses none of it on its way through Keras.
int one_element(Tensor* filter, void* parameters, void** at) {
  *filter = {0, 3, {1, 1, 1}, {}};
  *at = parameters;
  return 0;
}
}  // namespace
SIMCUDA_LIBRARY int cudnnGetRNNLinLayerMatrixParams(void*, void*, int, void*, void*,
                                                    void* parameters, int, Tensor* filter,
                                                    void** at) {
  return one_element(filter, parameters, at);
}
SIMCUDA_LIBRARY int cudnnGetRNNLinLayerBiasParams(void*, void*, int, void*, void*, void* parameters,
                                                  int, Tensor* filter, void** at) {
  return one_element(filter, parameters, at);
}
SIMCUDA_LIBRARY int cudnnGetRNNWeightParams(void*, void*, int, size_t, void* parameters, int,
                                            Tensor* matrix, void** matrix_at, Tensor* bias,
                                            void** bias_at) {
  one_element(matrix, parameters, matrix_at);
  return one_element(bias, parameters, bias_at);
}
SIMCUDA_LIBRARY int cudnnGetTensorNdDescriptor(const Tensor* tensor, int wanted, int* type,
                                               int* dimensions, int* sizes, int* strides) {
  *type = tensor->type;
  *dimensions = tensor->dimensions;
  for (int i = 0; i < tensor->dimensions && i < wanted; i++) {
    sizes[i] = tensor->sizes[i];
    strides[i] = tensor->strides[i];
  }
  return 0;
}
SIMCUDA_LIBRARY int cudnnGetFilterNdDescriptor(const Tensor* filter, int wanted, int* type,
                                               int* format, int* dimensions, int* sizes) {
  *type = filter->type;
  *format = 0;
  *dimensions = filter->dimensions;
  for (int i = 0; i < filter->dimensions && i < wanted; i++) sizes[i] = filter->sizes[i];
  return 0;
}
