// SPDX-License-Identifier: Apache-2.0
// cuBLAS and cuBLASLt: products of matrices. TensorFlow's matrices have no gaps between their
// columns, so an operand is its elements.
#include <library_types.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "library.h"

using namespace simcuda;
using library::Handle;
using library::Operand;

namespace {

size_t size_of(int type) {  // of cudaDataType_t
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_64F:
    case CUDA_C_32F:
      return 8;
    case CUDA_C_64F:
      return 16;
    case CUDA_R_8I:
    case CUDA_R_8U:
      return 1;
    default:
      return 4;
  }
}

struct Sizes {
  double m, n, k, batch = 1;
};

// Where a batch is a table of pointers, which lies in device memory, `a`, `b` and `c` are unknown.
int product(const char* name, cudaStream_t stream, Sizes s, size_t in, size_t out, const void* a,
            const void* b, void* c) {
  const double each = static_cast<double>(in);
  return library::compute(
      name, stream,
      {Operand{a, s.m * s.k * s.batch * each, false}, Operand{b, s.k * s.n * s.batch * each, false},
       Operand{c, s.m * s.n * s.batch * static_cast<double>(out), true}},
      library::Work::kProduct, 2 * s.m * s.n * s.k * s.batch, library::precision_of(in));
}

cudaStream_t stream_of(void* handle) { return static_cast<Handle*>(handle)->stream; }

// A description of cublasLt's: what was set in it, by the number of the attribute.
struct Attributes {
  std::map<int, std::vector<char>> values = {};

  int set(int attribute, const void* value, size_t bytes) {
    auto* begin = static_cast<const char*>(value);
    values[attribute].assign(begin, begin + bytes);
    return 0;
  }
  int get(int attribute, void* value, size_t bytes, size_t* written) const {
    auto found = values.find(attribute);
    memset(value, 0, bytes);
    size_t known = found == values.end() ? 0 : std::min(bytes, found->second.size());
    if (known > 0) memcpy(value, found->second.data(), known);
    if (written) *written = bytes;
    return 0;
  }
  template <class T>
  T as(int attribute, T otherwise) const {
    auto found = values.find(attribute);
    if (found == values.end() || found->second.size() != sizeof(T)) return otherwise;
    memcpy(&otherwise, found->second.data(), sizeof(T));
    return otherwise;
  }
};
// cublasLtMatrixLayoutAttribute_t and cublasLtMatmulDescAttributes_t
enum { kType = 0, kRows = 2, kColumns = 3, kBatch = 5 };
enum { kCompute = 0, kScale = 1 };

struct Algorithm {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

}  // namespace

SIMCUDA_LIBRARY size_t cublasLtGetVersion() {
  const int major = library::kBlas[0];  // from 11 on there is room for more minor versions
  return static_cast<size_t>(major * (major < 11 ? 1000 : 10000) + library::kBlas[1] * 100 +
                             library::kBlas[2]);
}
SIMCUDA_LIBRARY int cublasGetVersion_v2(void*, int* version) {
  *version = static_cast<int>(cublasLtGetVersion());
  return 0;
}
SIMCUDA_LIBRARY int cublasGetProperty(int which, int* value) {
  *value = which >= 0 && which < 3 ? library::kBlas[which] : 0;
  return 0;
}
SIMCUDA_LIBRARY const char* cublasGetStatusString(int) { return "status of the simulated device"; }

// TensorFlow puts back what it found: scalars are the host's, and arithmetic is as usual.
SIMCUDA_LIBRARY int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return 0;
}
SIMCUDA_LIBRARY int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}

// ---- one function for each type

#define SIMCUDA_GEMM(letter, type)                                                                 \
  SIMCUDA_LIBRARY int cublas##letter##gemm_v2(void* handle, int, int, int m, int n, int k,         \
                                              const void*, const void* a, int, const void* b, int, \
                                              const void*, void* c, int) {                         \
    return product("cublas" #letter "gemm", stream_of(handle), {double(m), double(n), double(k)},  \
                   sizeof(type), sizeof(type), a, b, c);                                           \
  }                                                                                                \
  SIMCUDA_LIBRARY int cublas##letter##gemmBatched(void* handle, int, int, int m, int n, int k,     \
                                                  const void*, const void*, int, const void*, int, \
                                                  const void*, void*, int, int batch) {            \
    return product("cublas" #letter "gemmBatched", stream_of(handle),                              \
                   {double(m), double(n), double(k), double(batch)}, sizeof(type), sizeof(type),   \
                   nullptr, nullptr, nullptr);                                                     \
  }                                                                                                \
  SIMCUDA_LIBRARY int cublas##letter##gemmStridedBatched(                                          \
      void* handle, int, int, int m, int n, int k, const void*, const void* a, int, long long,     \
      const void* b, int, long long, const void*, void* c, int, long long, int batch) {            \
    return product("cublas" #letter "gemmStridedBatched", stream_of(handle),                       \
                   {double(m), double(n), double(k), double(batch)}, sizeof(type), sizeof(type),   \
                   a, b, c);                                                                       \
  }
SIMCUDA_GEMM(S, float)
SIMCUDA_GEMM(D, double)
SIMCUDA_GEMM(C, double)
SIMCUDA_GEMM(Z, double[2])
#undef SIMCUDA_GEMM

// ---- of any type

SIMCUDA_LIBRARY int cublasSgemmEx(void* handle, int, int, int m, int n, int k, const void*,
                                  const void* a, int type, int, const void* b, int, int,
                                  const void*, void* c, int out, int) {
  return product("cublasSgemmEx", stream_of(handle), {double(m), double(n), double(k)},
                 size_of(type), size_of(out), a, b, c);
}
SIMCUDA_LIBRARY int cublasGemmEx(void* handle, int, int, int m, int n, int k, const void*,
                                 const void* a, int type, int, const void* b, int, int, const void*,
                                 void* c, int out, int, int, int) {
  return product("cublasGemmEx", stream_of(handle), {double(m), double(n), double(k)},
                 size_of(type), size_of(out), a, b, c);
}
SIMCUDA_LIBRARY int cublasGemmBatchedEx(void* handle, int, int, int m, int n, int k, const void*,
                                        const void*, int type, int, const void*, int, int,
                                        const void*, void*, int out, int, int batch, int, int) {
  return product("cublasGemmBatchedEx", stream_of(handle),
                 {double(m), double(n), double(k), double(batch)}, size_of(type), size_of(out),
                 nullptr, nullptr, nullptr);
}
SIMCUDA_LIBRARY int cublasGemmStridedBatchedEx(void* handle, int, int, int m, int n, int k,
                                               const void*, const void* a, int type, int, long long,
                                               const void* b, int, int, long long, const void*,
                                               void* c, int out, int, long long, int batch, int,
                                               int) {
  return product("cublasGemmStridedBatchedEx", stream_of(handle),
                 {double(m), double(n), double(k), double(batch)}, size_of(type), size_of(out), a,
                 b, c);
}

// ---- cublasLt

SIMCUDA_LIBRARY int cublasLtMatrixLayoutCreate(Attributes** out, int type, uint64_t rows,
                                               uint64_t columns, int64_t) {
  *out = new Attributes;
  (*out)->set(kType, &type, sizeof type);
  (*out)->set(kRows, &rows, sizeof rows);
  return (*out)->set(kColumns, &columns, sizeof columns);
}
SIMCUDA_LIBRARY int cublasLtMatmulDescCreate(Attributes** out, int compute, int scale) {
  *out = new Attributes;
  (*out)->set(kCompute, &compute, sizeof compute);
  return (*out)->set(kScale, &scale, sizeof scale);
}
SIMCUDA_LIBRARY int cublasLtMatmulPreferenceCreate(Attributes** out) {
  *out = new Attributes;
  return 0;
}

#define SIMCUDA_ATTRIBUTES(of)                                                                     \
  SIMCUDA_LIBRARY int cublasLt##of##Destroy(Attributes* of) {                                      \
    delete of;                                                                                     \
    return 0;                                                                                      \
  }                                                                                                \
  SIMCUDA_LIBRARY int cublasLt##of##SetAttribute(Attributes* of, int attribute, const void* value, \
                                                 size_t bytes) {                                   \
    return of->set(attribute, value, bytes);                                                       \
  }                                                                                                \
  SIMCUDA_LIBRARY int cublasLt##of##GetAttribute(const Attributes* of, int attribute, void* value, \
                                                 size_t bytes, size_t* written) {                  \
    return of->get(attribute, value, bytes, written);                                              \
  }
SIMCUDA_ATTRIBUTES(MatrixLayout)
SIMCUDA_ATTRIBUTES(MatmulDesc)
SIMCUDA_ATTRIBUTES(MatmulPreference)
#undef SIMCUDA_ATTRIBUTES

SIMCUDA_LIBRARY int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*,
                                                   int, Algorithm* result, int* found) {
  *result = {};
  *found = 1;
  return 0;
}
SIMCUDA_LIBRARY int cublasLtMatmul(void*, void*, const void*, const void* a,
                                   const Attributes* a_layout, const void* b, const Attributes*,
                                   const void*, const void*, const Attributes*, void* d,
                                   const Attributes* d_layout, const void*, void*, size_t,
                                   cudaStream_t stream) {
  const auto side = [](const Attributes* of, int which) {
    return static_cast<double>(of->as<uint64_t>(which, 0));
  };
  Sizes sizes{side(d_layout, kRows), side(d_layout, kColumns), 0,
              static_cast<double>(d_layout->as<int32_t>(kBatch, 1))};
  // Transposed or not, the first operand has m x k elements.
  if (sizes.m > 0) sizes.k = side(a_layout, kRows) * side(a_layout, kColumns) / sizes.m;
  return product("cublasLtMatmul", stream, sizes, size_of(a_layout->as<int>(kType, CUDA_R_32F)),
                 size_of(d_layout->as<int>(kType, CUDA_R_32F)), a, b, d);
}
