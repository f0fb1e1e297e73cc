# SPDX-License-Identifier: Apache-2.0
"""A program that forks beside threads, for the suites of all versions of PyTorch."""

# Forks while two threads are nearly always within the caching allocator. Each child drops `kept`,
# which the program has made, and ends by a signal where that takes too long. `statuses` has how
# they ended, up to the first that did not end well.
BESIDE_THREADS = """
import os, signal, threading

stop = False

def work():
    while not stop:
        torch.empty(1 << 17, device="cuda")

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
statuses = []
while len(statuses) < 100 and not any(statuses):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        kept.clear()
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
stop = True
for thread in threads:
    thread.join()
"""
