// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace lms {

// Which op it is. Opaque to the core: the adaptor makes it of whatever tells its kernels apart.
using OpId = std::size_t;

// The demand of ops: what each took from the pool while it ran, in bytes, by the op and the exact
// size of its operands. By the size, because one op may be called with operands of many shapes; by
// the exact one, because a kernel may choose another algorithm for nearly the same shape.
// Thread-safe; its lock is a leaf.
class Demand {
 public:
  static constexpr std::int64_t kUnknown = -1;

  // The most that the op took with operands of so many bytes; kUnknown when it has not run so.
  std::int64_t of(OpId op, std::int64_t operand_bytes) const;
  void note(OpId op, std::int64_t operand_bytes, std::int64_t taken_bytes);

  // Whether mark_tried was called for the op with operands of about that size: the same up to the
  // next power of two. Where the size is another one every time, each call would else be a first.
  bool tried(OpId op, std::int64_t operand_bytes) const;
  void mark_tried(OpId op, std::int64_t operand_bytes);

  // Entries of each kind. Trades memory (4 MiB at most) for ops that have to be learnt anew: beyond
  // it all are forgotten, most of which are of kernels that are gone.
  static constexpr std::size_t kMostEntries = std::size_t{1} << 16;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::size_t, std::int64_t> taken_;
  std::unordered_set<std::size_t> tried_;
};

}  // namespace lms
