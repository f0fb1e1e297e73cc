// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <string>

// A folder of a test's own, which goes with it. No program removes it: where a foreign processor is
// emulated there may be none.
class Folder {
 public:
  Folder() : path_(::mkdtemp(&name_[0])) {}
  ~Folder() {
    ::nftw(
        path_.c_str(),
        [](const char* path, const struct stat*, int, struct FTW*) { return std::remove(path); },
        /*descriptors=*/8, FTW_DEPTH | FTW_PHYS);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }

  // Writes the file `name`, which begins with a slash, and makes the folders that it is in.
  void file(const std::string& name, const std::string& content) const {
    for (std::size_t slash = name.find('/', 1); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      ::mkdir((path_ + name.substr(0, slash)).c_str(), 0700);
    }
    std::ofstream(path_ + name) << content;
  }

 private:
  std::string name_ = "/tmp/lms-test-XXXXXX";
  const std::string path_;
};
