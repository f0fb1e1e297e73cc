// SPDX-License-Identifier: Apache-2.0
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "crowd.h"
#include "harness.h"
#include "late_stores.h"

namespace {

using lms::BiasedMutex;
using Member = lms::Crowd::Member;

const auto nothing = [] {};

}  // namespace

TEST(crowd_of_one_is_alone) {
  lms::Crowd crowd;
  {
    const Member before(&crowd);
  }
  const Member one(&crowd);
  CHECK(one.if_alone(nothing));
  CHECK(one.if_alone(nothing));
}

TEST(crowd_members_that_met_are_not_alone) {
  lms::Crowd crowd;
  const Member one(&crowd);
  {
    const Member two(&crowd);
    CHECK(!one.if_alone([] { CHECK(false); }));
    CHECK(!two.if_alone([] { CHECK(false); }));
  }
  CHECK(!one.if_alone(nothing));
}

TEST(crowd_does_not_count_who_is_of_none) {
  lms::Crowd crowd;
  const Member one(&crowd);
  const Member none(nullptr);
  CHECK(one.if_alone(nothing));
}

// What was done is said to be done, whoever begins meanwhile.
TEST(crowd_looks_once) {
  lms::Crowd crowd;
  const Member one(&crowd);
  bool done = false;
  CHECK(one.if_alone([&] {
    const Member other(&crowd);
    done = true;
  }));
  CHECK(done);
  CHECK(!one.if_alone(nothing));
}

// ---- barriers

// Each stores, passes its barrier and looks for what the other stored, both at once.
TEST(barriers_show_one_what_the_other_stored) {
  const int rounds = static_cast<int>(harness::option("rounds", 20'000));
  lms::detail::allow_process_barriers();
  std::atomic<int> mine{0}, others{0}, round{0}, done{0};
  std::atomic<bool> other_saw{false};
  std::thread other([&] {
    for (int i = 1; i <= rounds; ++i) {
      while (round.load() != i) {
      }
      others.store(i, std::memory_order_relaxed);
      lms::light_barrier();
      other_saw.store(mine.load(std::memory_order_relaxed) == i, std::memory_order_relaxed);
      done.store(i);
    }
  });
  int neither = 0;
  for (int i = 1; i <= rounds; ++i) {
    round.store(i);
    for (int spin = i % 64; spin > 0; --spin) (void)done.load(std::memory_order_relaxed);
    mine.store(i, std::memory_order_relaxed);
    lms::heavy_barrier();
    const bool saw = others.load(std::memory_order_relaxed) == i;
    while (done.load() != i) {
    }
    if (!saw && !other_saw.load(std::memory_order_relaxed)) ++neither;
  }
  other.join();
  CHECK_EQ(neither, 0);
}

// ---- a mutex of one thread

namespace {

// More than it takes to own a mutex.
constexpr int kMany = 1000;

// Locks it so often, and says whether it was its own at last.
bool lock_often(BiasedMutex* mutex, BiasedMutex::Hand* hand, int times = kMany) {
  BiasedMutex::Hand* locked_by = nullptr;
  for (int i = 0; i < times; ++i) {
    locked_by = mutex->lock(hand);
    mutex->unlock(locked_by);
  }
  return locked_by == hand;
}

template <class Act>
void in_another_thread(const Act& act) {
  std::thread(act).join();
}

}  // namespace

TEST(biased_mutex_comes_to_be_its_own) {
  BiasedMutex mutex;
  BiasedMutex::Hand hand;
  CHECK(!lock_often(&mutex, &hand, 2));
  CHECK(lock_often(&mutex, &hand));
  mutex.lock();  // otherwise, by the same thread
  mutex.unlock();
  CHECK(lock_often(&mutex, &hand, 1));
}

TEST(biased_mutex_is_taken_back) {
  BiasedMutex mutex;
  BiasedMutex::Hand hand;
  CHECK(lock_often(&mutex, &hand));
  in_another_thread([&] {
    BiasedMutex::Hand others;
    CHECK(!lock_often(&mutex, &others, 2));
  });
  CHECK(!lock_often(&mutex, &hand, 2));
  CHECK(lock_often(&mutex, &hand));
}

// Two threads that take it in turn would each take it back from the other, which is dear.
TEST(biased_mutex_is_nobodys_own_where_two_take_turns) {
  BiasedMutex mutex;
  BiasedMutex::Hand one, other;
  for (int i = 0; i < kMany; ++i) {
    CHECK(!lock_often(&mutex, &one, 1));
    CHECK(!lock_often(&mutex, &other, 1));
  }
}

TEST(biased_mutex_forgets_who_goes) {
  BiasedMutex mutex;
  in_another_thread([&] {
    const std::unique_ptr<BiasedMutex::Hand> hand(new BiasedMutex::Hand);
    CHECK(lock_often(&mutex, hand.get()));
    mutex.lock();
    mutex.disown();
    mutex.unlock();
  });
  BiasedMutex::Hand hand;
  CHECK(!lock_often(&mutex, &hand, 2));
}

// Each locks it in bursts long enough to own it, or not, and some do so without a hand.
TEST(biased_mutex_lets_one_in_at_a_time) {
  constexpr int kThreads = 3, kBursts = 300;
  BiasedMutex mutex;
  long plain = 0;  // a race, where two are in
  std::atomic<int> inside{0}, met{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      BiasedMutex::Hand hand;
      for (int burst = 0; burst < kBursts; ++burst) {
        const int length = 1 + (burst * 37 + number * 101) % 400;
        for (int i = 0; i < length; ++i) {
          BiasedMutex::Hand* const locked_by =
              mutex.lock(number == 0 && burst % 4 == 0 ? nullptr : &hand);
          if (inside.fetch_add(1, std::memory_order_relaxed) != 0) ++met;
          ++plain;
          inside.fetch_sub(1, std::memory_order_relaxed);
          mutex.unlock(locked_by);
        }
      }
      mutex.lock();
      mutex.disown();
      mutex.unlock();
    });
  }
  for (std::thread& thread : threads) thread.join();
  long expected = 0;
  for (int number = 0; number < kThreads; ++number) {
    for (int burst = 0; burst < kBursts; ++burst) expected += 1 + (burst * 37 + number * 101) % 400;
  }
  CHECK_EQ(met.load(), 0);
  CHECK_EQ(plain, expected);
}

// The owner has it locked before anybody can see that it has. Whoever adds loses what is added
// meanwhile.
TEST(biased_mutex_is_not_taken_from_one_who_has_it_locked) {
  BiasedMutex mutex;
  std::atomic<bool> over{false};
  std::atomic<long> sum{0};
  long others = 0, own = 0;
  const auto add = [&sum] {
    const long before = sum.load(std::memory_order_relaxed);
    for (int i = 0; i < 20; ++i) (void)sum.load(std::memory_order_relaxed);
    sum.store(before + 1, std::memory_order_relaxed);
  };
  std::thread owner([&] {
    LateStores stores;
    BiasedMutex::Hand hand;
    for (; !over.load(std::memory_order_relaxed); ++own) {
      stores();
      BiasedMutex::Hand* const locked_by = mutex.lock(&hand);
      add();
      mutex.unlock(locked_by);
    }
    mutex.lock();
    mutex.disown();
    mutex.unlock();
  });
  for (; others < 3000; ++others) {
    mutex.lock();
    add();
    mutex.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // it is the owner's again
  }
  over = true;
  owner.join();
  CHECK_EQ(sum.load(), own + others);
}

// ---- a system without barriers of the process

namespace {

// From now on the system refuses them to this process. False where it cannot be told to.
bool refuse_process_barriers() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof(code) / sizeof(code[0]), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// How a child process ends that runs this, as `waitpid` has it.
template <class Act>
int status_of_child(const Act& act) {
  const pid_t child = fork();
  if (child == 0) _exit(act());
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

}  // namespace

TEST(biased_mutex_is_nobodys_own_without_barriers_of_the_process) {
  const int status = status_of_child([] {
    if (!refuse_process_barriers()) return 0;
    BiasedMutex mutex;
    BiasedMutex::Hand hand;
    return lock_often(&mutex, &hand) ? 1 : 0;
  });
  CHECK_EQ(status, 0);
}

// What threads own by then could not be taken from them.
TEST(a_process_ends_that_is_refused_its_barriers_later) {
  const int status = status_of_child([] {
    BiasedMutex mutex;
    BiasedMutex::Hand hand;
    if (!lock_often(&mutex, &hand) || !refuse_process_barriers()) return 1;
    in_another_thread([&mutex] { mutex.lock(); });
    return 0;
  });
  CHECK(status == 1 << 8 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
}
