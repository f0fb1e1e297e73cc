// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <cxxabi.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <unordered_map>

namespace simcuda {
namespace {

constexpr uintptr_t kGranule = 256;  // of TensorFlow's allocator
constexpr size_t kArguments = 64;    // of a launch; no more are looked at

uintptr_t address_of(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

uintptr_t end_of_stack() {
  thread_local const uintptr_t end = [] {
    pthread_attr_t attributes;
    void* begin = nullptr;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return uintptr_t{0};
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
    return address_of(begin) + bytes;
  }();
  return end;
}

// Which parameters are pointers that are written through, or structures, whose first word may be
// one.
std::vector<size_t> written_by(const char* mangled) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), free);
  std::vector<size_t> found;
  if (status != 0) return found;
  const std::string name = text.get();
  // From the end: the last parenthesis is the list's, and others are of anonymous namespaces.
  int depth = 0;
  size_t begin = name.size();
  do {
    if (begin == 0) return found;
    const char c = name[--begin];
    depth += c == ')' ? 1 : c == '(' ? -1 : 0;
  } while (depth != 0);
  size_t index = 0;
  std::string parameter;
  for (size_t i = begin + 1; i < name.size(); i++) {
    const char c = name[i];
    if (depth == 0 && (c == ',' || c == ')')) {
      const bool pointer = !parameter.empty() && parameter.back() == '*';
      const bool constant = parameter.find("const*") != std::string::npos;
      const bool structure = parameter.find('<') != std::string::npos;
      if ((pointer && !constant) || (!pointer && structure)) found.push_back(index);
      index++;
      parameter.clear();
      continue;
    }
    depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
    parameter += c;
  }
  return found;
}

}  // namespace

void Values::put(const void* at, const void* data, size_t bytes) {
  forget(at, bytes);
  if (bytes > kMost && !all_) return;
  auto* begin = static_cast<const char*>(data);
  known_[address_of(at)].assign(begin, begin + bytes);
}

void Values::get(void* to, const void* from, size_t bytes) const {
  memset(to, 0, bytes);
  const uintptr_t begin = address_of(from), end = begin + bytes;
  auto found = known_.upper_bound(begin);
  if (found != known_.begin()) --found;
  for (; found != known_.end() && found->first < end; ++found) {
    const uintptr_t first = std::max(begin, found->first);
    const uintptr_t last = std::min(end, found->first + found->second.size());
    if (first >= last) continue;
    memcpy(static_cast<char*>(to) + (first - begin), found->second.data() + (first - found->first),
           last - first);
  }
}

bool Values::knows(const void* at) const {
  const auto after = known_.upper_bound(address_of(at));
  if (after == known_.begin()) return false;
  const auto& [begin, value] = *std::prev(after);
  return address_of(at) < begin + value.size();
}

void Values::copy(const void* to, const void* from, size_t bytes) {
  if (bytes > kMost && !all_) return forget(to, bytes);
  std::vector<char> value(bytes);
  get(value.data(), from, bytes);
  put(to, value.data(), bytes);
}

void Values::forget(const void* at, size_t bytes) {
  const uintptr_t begin = address_of(at), end = begin + bytes;
  auto found = known_.upper_bound(begin);
  if (found != known_.begin()) --found;
  while (found != known_.end() && found->first < end) {
    const uintptr_t first = found->first, last = first + found->second.size();
    if (last <= begin) {
      ++found;
      continue;
    }
    std::vector<char> value = std::move(found->second);
    found = known_.erase(found);
    if (last > end) known_[end].assign(value.end() - static_cast<long>(last - end), value.end());
    if (first < begin) {
      value.resize(begin - first);
      known_[first] = std::move(value);
    }
  }
}

void Values::computed(const void* at, size_t bytes) {
  forget(at, bytes);
  if (!all_) return;
  uint64_t word = ++fills_ * 0x9E3779B97F4A7C15;
  std::vector<char>& value = known_[address_of(at)];
  value.resize(bytes);
  for (size_t i = 0; i < bytes; i++) {
    if (i % sizeof word == 0) word = word * 6364136223846793005 + 1442695040888963407;
    value[i] = static_cast<char>(word >> (8 * (i % sizeof word)));
  }
}

// How much of it was written, nobody has said: what was there, and what is left of others in as
// much as an allocation has at least.
void Values::forget_whole(uintptr_t at) {
  auto found = known_.upper_bound(at);
  while (found != known_.end() && found->first / kGranule == at / kGranule) {
    found = known_.erase(found);
  }
  if (found == known_.begin()) return;
  --found;
  if (at < found->first + found->second.size()) known_.erase(found);
}

void Values::forget_arguments(void** arguments) {
  if (arguments == nullptr || known_.empty()) return;
  const uintptr_t begin = address_of(__builtin_frame_address(0)), end = end_of_stack();
  const auto in_stack = [&](const void* pointer) {
    return address_of(pointer) >= begin && address_of(pointer) + sizeof(uintptr_t) <= end;
  };
  const uintptr_t lowest = known_.begin()->first;
  const uintptr_t highest = known_.rbegin()->first + known_.rbegin()->second.size();
  for (size_t i = 0; i < kArguments && in_stack(arguments + i) && in_stack(arguments[i]); i++) {
    uintptr_t value;
    memcpy(&value, arguments[i], sizeof value);
    if (value >= lowest && value < highest) forget_whole(value);
  }
}

void Values::forget_written(const char* kernel, void** arguments) {
  if (arguments == nullptr || known_.empty()) return;
  if (strncmp(kernel, "_Z", 2) != 0) return forget_arguments(arguments);
  static auto* written = new std::unordered_map<const char*, std::vector<size_t>>;
  auto [found, fresh] = written->try_emplace(kernel);
  if (fresh) found->second = written_by(kernel);
  for (size_t i : found->second) {
    uintptr_t value;
    memcpy(&value, arguments[i], sizeof value);
    forget_whole(value);
  }
}

}  // namespace simcuda
