// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace harness {
namespace {
Case* cases = nullptr;
char** arguments = nullptr;
}  // namespace

Case::Case(const char* case_name, void (*case_body)())
    : name(case_name), body(case_body), next(cases) {
  cases = this;
}

long option(const char* name, long fallback) {
  const std::size_t size = std::strlen(name);
  for (char** argument = arguments; *argument != nullptr; ++argument) {
    if (std::strncmp(*argument, name, size) == 0 && (*argument)[size] == '=') {
      return std::atol(*argument + size + 1);
    }
  }
  return fallback;
}

void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace harness

// Exit status: 0 passed, 1 failed, 2 no such case.
int main(int argc, char** argv) {
  harness::arguments = argv + (argc > 1 ? 2 : 1);
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s --list | CASE [option=number ...]\n", argv[0]);
    return 2;
  }
  for (const harness::Case* test = harness::cases; test != nullptr; test = test->next) {
    if (std::strcmp(argv[1], "--list") == 0) {
      std::printf("%s\n", test->name);
    } else if (std::strcmp(argv[1], test->name) == 0) {
      try {
        test->body();
        return 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s failed: %s\n", test->name, error.what());
        return 1;
      }
    }
  }
  return std::strcmp(argv[1], "--list") == 0 ? 0 : 2;
}
