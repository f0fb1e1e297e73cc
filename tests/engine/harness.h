// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

// A test case is a function; a failed check leaves it by an exception. The program takes the name
// of one case (or --list), then options of the form name=number.
namespace harness {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Case {
  Case(const char* case_name, void (*case_body)());
  const char* name;
  void (*body)();
  Case* next;
};

// The value of an option of the command line.
long option(const char* name, long fallback);

[[noreturn]] void fail(const char* file, int line, const std::string& what);

template <class A, class B>
void check_equal(const A& a, const B& b, const char* file, int line, const char* text) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " is not " << b;
  fail(file, line, out.str());
}

}  // namespace harness

#define TEST(name)                                             \
  static void name();                                          \
  static const ::harness::Case name##_registered(#name, name); \
  static void name()

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) ::harness::fail(__FILE__, __LINE__, "not true: " #condition); \
  } while (false)

#define CHECK_EQ(a, b) ::harness::check_equal((a), (b), __FILE__, __LINE__, #a " == " #b)

#define CHECK_THROWS(expression, exception)                                                  \
  do {                                                                                       \
    bool thrown_ = false;                                                                    \
    try {                                                                                    \
      expression;                                                                            \
    } catch (const exception&) {                                                             \
      thrown_ = true;                                                                        \
    }                                                                                        \
    if (!thrown_) ::harness::fail(__FILE__, __LINE__, #expression " throws no " #exception); \
  } while (false)
