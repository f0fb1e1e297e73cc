// SPDX-License-Identifier: Apache-2.0
// What the stand-ins for cuBLAS, cuDNN and their like have in common. A function that is known says
// what it reads and writes and how much it computes; any other one (they are generated, see
// stubs.py) takes a launch's time and is counted by name.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

#include "../runtime/state.h"

namespace simcuda::library {

// Behind every handle that a library's Create function gives out. `calloc`ed, so plain.
struct Handle {
  cudaStream_t stream;
};

struct Operand {
  const void* at;
  double bytes;
  bool written;
};

enum class Precision { kDouble, kSingle, kHalf };
Precision precision_of(size_t element_bytes);

// What the libraries say that they are: the oldest that a TensorFlow for this CUDA takes.
constexpr int kMajor = kCuda / 1000;
constexpr int kBlas[] = {kMajor, kMajor < 11 ? 2 : kMajor < 12 ? 11 : 5, kMajor < 11 ? 1 : 3};
constexpr int kDnn[] = {kMajor - 3, kMajor < 11 ? 6 : kMajor < 12 ? 7 : 3, kMajor < 11 ? 5 : 0};

// What a convolution asks for while it runs, as the profile has it.
size_t convolution_workspace();

enum class Work { kTraffic, kProduct, kConvolution };

// A kernel: takes the longer of its traffic and its `operations`, at the profile's rates, and tells
// the order checker what it touches. `name` lives as long as the process.
int compute(const char* name, cudaStream_t stream, const std::vector<Operand>& operands,
            Work work = Work::kTraffic, double operations = 0,
            Precision precision = Precision::kSingle);

}  // namespace simcuda::library

// The functions are C's: by name alone, whatever the library's headers call their types.
#define SIMCUDA_LIBRARY extern "C" __attribute__((visibility("default")))
