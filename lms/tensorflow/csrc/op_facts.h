// SPDX-License-Identifier: Apache-2.0
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OP_FACTS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OP_FACTS_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace lms {

// What an op does with the bytes of its operands, as far as its types do not tell.
struct OpFacts {
  // Passes its tensors on without a look at the bytes (but for those too small to be moved).
  bool by_reference = false;
  // Gives a tensor back to whoever called the function.
  bool returns = false;
  // Gives a tensor to a _Recv.
  bool sends = false;
  // Uses its variables without writing them.
  bool reads_variables = false;
  // Of these, gives out the variable's tensor itself, or a copy.
  bool reads_variable = false;
  // May keep an input, or hand its pointer to somebody, beyond its own run.
  bool keeps_inputs = false;
  // Keeps nothing between two runs: one that got no memory may be run again.
  bool repeatable = false;
  // What it makes is one tensor of all that it reads.
  bool gathers = false;
  // Runs on the CPU wherever its tensors are, and writes them to a file or reads them from one.
  bool on_host = false;
  // Variants among its operands are lists, of which it keeps no pointer.
  bool handles_lists = false;
  // Of these, reads the tensors in the lists.
  bool reads_lists = false;
  // Of these, those of positions that are filled in several lists.
  bool adds_lists = false;
  // Of these, gives out a tensor of the list itself, or zeros.
  bool takes_from_list = false;
  // Of these, puts tensors of its own into lists.
  bool makes_list = false;
};

// By the type of the op; found once for each, and good for ever.
const OpFacts& FactsOf(const OpKernel& kernel);

// Whether what a `sends` op sends is received in this process.
bool SendsWithinProcess(const OpKernel& kernel);

}  // namespace lms
}  // namespace tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_OP_FACTS_H_
