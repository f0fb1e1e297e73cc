// SPDX-License-Identifier: Apache-2.0
// Follows a schedule on the virtual clock: a command a line on stdin, as test_clock.py writes them;
// the times of all marks on stdout.
#include <iostream>
#include <map>
#include <string>

#include "clock.h"

using namespace simcuda::clock;

int main() {
  int devices = 0, duplex = 0;
  std::cin >> devices >> duplex;
  Clock clock(devices, duplex);
  std::map<std::string, Line*> lines;
  std::map<std::string, MarkPtr> marks;
  std::string word, name;
  while (std::cin >> word >> name) {
    int number = 0;
    if (word == "open") {
      int order = 0;
      std::cin >> number >> order;
      lines[name] = &clock.open(number, static_cast<Order>(order));
    } else if (word == "run") {
      Nanoseconds work = 0;
      std::cin >> number >> work;
      clock.run(*lines[name], static_cast<Unit>(number), work);
    } else if (word == "record") {
      std::string mark;
      std::cin >> mark;
      marks[mark] = clock.record(*lines[name]);
    } else if (word == "wait") {
      std::string mark;
      std::cin >> mark;
      clock.wait(*lines[name], marks[mark]);
    } else if (word == "close") {
      clock.close(*lines[name]);
    } else if (word == "spend") {
      clock.spend(std::stoll(name));
    } else if (word == "finish_mark") {
      clock.finish(marks[name]);
    } else if (word == "finish_line") {
      clock.finish(*lines[name]);
    } else if (word == "finish_device") {
      clock.finish(std::stoi(name));
    } else if (word == "done") {
      std::cout << "done " << name << ' ' << marks[name]->done << '\n';
    } else {
      return 1;
    }
  }
  std::cout << "now " << clock.now() << "\nwaited " << clock.waited() << '\n';
  for (int d = 0; d < devices; d++) {
    for (int e = 0; e < kUnits; e++) {
      std::cout << "busy " << d << e << ' ' << clock.busy(d, static_cast<Unit>(e)) << '\n';
    }
  }
  for (auto& mark : marks) {
    std::cout << mark.first << ' ' << (mark.second->done ? mark.second->at : -1) << '\n';
  }
}
