# SPDX-License-Identifier: Apache-2.0
"""Programs that end, fork, fail or are interrupted while tensors are out: what they say, and how
they end, is as without Large Model Support, in every mode of the device and in chaos mode."""

from __future__ import annotations

import textwrap
from typing import Any

import lms_device
import pytest
from lms_device import MIB

pytestmark = pytest.mark.values

MODES = (*lms_device.device.modes, "chaos")
PRELUDE = """
import atexit, ctypes, gc, os, random, sys, threading, time, weakref
import simcuda, torch

lms = torch.cuda.lms
lms.enable(min_size=0)
N = 1 << 18

def ramp(first):
    return (torch.arange(N, dtype=torch.float32) + first).cuda()

def say(*what):
    print(*what, flush=True)

def forked(code):
    # With what a child ends that drops all that is kept.
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

kept = [ramp(i) for i in range(10)]
torch.cuda.synchronize()
"""
PROGRAMS: dict[str, tuple[str, str]] = {}


def program_of(name: str, says: str, code: str) -> None:
    PROGRAMS[name] = PRELUDE + textwrap.dedent(code), says


program_of(
    "at_exit", "turned off 9.0\nand on 4.0\nat last 3.0\n",
    """
    atexit.register(lambda: say("at last", float(kept[0][3])))
    def switched(on):
        if on:
            lms.enable(min_size=0)
            lms.reclaim()
            say("and on", float(kept[1][3]))
        else:
            lms.disable()
            say("turned off", float((kept[2] + 4)[3]))

    atexit.register(switched, True)
    atexit.register(switched, False)
    lms.reclaim()
    """,
)  # fmt: skip
program_of(
    "without_cleaning_up", "7.0\n",
    """
    lms.reclaim()
    say(float(kept[4][3]))
    lms.reclaim()
    os._exit(0)
    """,
)  # fmt: skip
program_of(
    "a_thread_outlives_the_main_one", "45.0\n",
    """
    def work():
        threading.main_thread().join()
        lms.reclaim()
        say(sum(float(x[0]) for x in kept))

    threading.Thread(target=work).start()
    lms.reclaim()
    """,
)  # fmt: skip
program_of(
    "threads_that_sleep_at_the_end", "3.0\n",
    """
    local, there = threading.local(), threading.Barrier(3)

    def work(first):
        local.kept = [ramp(first + i) for i in range(3)]
        there.wait()
        time.sleep(1000)

    for first in range(2):
        threading.Thread(target=work, args=(first,), daemon=True).start()
    there.wait()
    lms.reclaim()
    say(float(kept[3][0]))
    """,
)  # fmt: skip
program_of(
    "finalisers_at_the_end", "10.0\n2.0\n",
    """
    class Holder:
        pass

    one, two = Holder(), Holder()
    one.other, two.other, one.x = two, one, ramp(5)
    weakref.finalize(one, lambda x: say(float(x[2])), kept[0])
    weakref.finalize(two, lambda x: say(float(x[1])), kept[9])
    sys.modules["kept"] = torch.kept = kept
    gc.disable()
    lms.reclaim()
    """,
)  # fmt: skip
program_of(
    "forks_beside_a_thread", "[0, 1, 2, 3] [0.0, 1.0, 2.0, 3.0]\n",
    """
    import warnings

    warnings.filterwarnings("ignore", "Large Model Support copies most of what")  # as it does
    stop = False

    def work():
        for i in range(10**9):
            kept[i % 4].mul_(1)
            if i % 4 == 0:
                lms.reclaim()
            if stop:
                break

    thread, codes = threading.Thread(target=work), []
    thread.start()
    for i in range(4):
        codes.append(forked(i))
    stop = True
    thread.join()
    say(codes, [float(x[0]) for x in kept[:4]])
    """,
)  # fmt: skip
program_of(
    "streams_that_are_destroyed", "[2.0, 4.0, 6.0, 8.0, 10.0]\n",
    """
    from lms_extension import OwnedStream

    main, made = torch.cuda.current_stream(), []
    for i in range(5):
        owned = OwnedStream()
        owned.stream.wait_stream(main)
        with torch.cuda.stream(owned.stream):
            made.append(kept[i] * 2)
            for x in made:
                x.add_(0)
        main.wait_stream(owned.stream)
        lms.reclaim()
        owned.destroy()
        if i == 3:
            lms.disable()
            lms.enable(min_size=0)
        lms.reclaim()
    say([float(x[1]) for x in made])
    """,
)  # fmt: skip

SHORT = """
simcuda.device.capacity = 30 << 20

def doubled(i):
    '''Whether the result, which needs most of the room, is wrong.'''
    both = torch.cat([kept[i % 10], kept[(i + 5) % 10]]) * 2
    return [float(both[1]), float(both[-1])] != [2.0 * (i % 10 + 1), 2.0 * ((i + 5) % 10 + N - 1)]

def right():
    return [float(x[1]) for x in kept] == [i + 1.0 for i in range(10)]
"""


def short_of_room(name: str, code: str) -> None:
    program_of(name, "right\n", SHORT + textwrap.dedent(code))


short_of_room(
    "switched_while_short",
    """
    stop, chosen = False, random.Random(1)

    def toggle():
        while not stop:
            lms.disable()
            time.sleep(0.01 * chosen.random())
            lms.enable(min_size=0)
            time.sleep(0.02 * chosen.random())

    thread, wrong = threading.Thread(target=toggle), 0
    thread.start()
    for i in range(40):
        try:
            wrong += doubled(i)
        except torch.OutOfMemoryError:
            pass  # while it is off
    stop = True
    thread.join()
    say("right" if not wrong and right() else "wrong")
    """,
)
short_of_room(
    "what_the_device_refuses",
    """
    chosen, wrong = random.Random(2), 0
    fails = (simcuda.device.fail_next_copies, simcuda.device.fail_next_mallocs,
             simcuda.device.fail_next_host_allocs)
    for i in range(40):
        fail = chosen.choice(fails)
        fail(chosen.randrange(3))
        try:
            if i % 3 == 0:
                lms.reclaim()
            wrong += doubled(i)
        except RuntimeError:
            pass
        fail(0)
    say("right" if not wrong and right() else "wrong")
    """,
)
short_of_room(
    "threads_that_are_stopped",
    """
    class Stop(Exception):
        pass

    wrong = []

    def work(i):
        try:
            while True:
                if doubled(i):
                    wrong.append(i)
                i += 1
        except (Stop, torch.OutOfMemoryError):
            pass

    for step in range(4):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.03 * step)
        for thread in threads:
            number, stop = ctypes.c_ulong(thread.ident), ctypes.py_object(Stop)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, stop)
            thread.join()
    pinned = lms.stats()["pinned.all.current"]
    say("right" if not wrong and right() and pinned == 0 else "wrong")
    """,
)
short_of_room(
    "forks_while_short",
    """
    stop, wrong, codes = False, [], []

    def work(i):
        while not stop:
            try:
                if doubled(i):
                    wrong.append(i)
            except torch.OutOfMemoryError:
                pass
            i += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for i in range(4):
        time.sleep(0.02)
        codes.append(forked(i))
    stop = True
    for thread in threads:
        thread.join()
    say("right" if not wrong and right() and codes == [0, 1, 2, 3] else "wrong")
    """,
)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[pytest.mark.slow] if (i + j) % 4 else [])
        for i, name in enumerate(PROGRAMS)
        for j, mode in enumerate(MODES)
    ],
)
def test_ends(program: Any, sim: Any, name: str, mode: str) -> None:
    code, says = PROGRAMS[name]
    chaos = mode == "chaos"
    said = program(
        code,
        mode="lazy" if chaos and "lazy" in MODES else MODES[0] if chaos else mode,
        env={"LMS_DEBUG": "chaos"} if chaos else None,
    )
    assert said == says


PINS = pytest.mark.parametrize(
    "pin",
    [
        "with torch.cuda.lms.pin(y): pass",
        "torch.cuda.lms.launches._launching(lambda *_: None)(None, y)",
        "y.untyped_storage().fill_(0)",
    ],
    ids=["pin", "launch", "storage"],
)


@PINS
def test_a_signal_while_a_pin_waits_leaves_none(program: Any, pin: str) -> None:
    """It is seen when the pin is there, and before whoever asked for it knows."""
    out = program(
        """
        import os, signal, sys, threading, time, torch
        library = torch.library.Library("lms_slow", "DEF")
        library.define("slow(Tensor x) -> ()")
        inside = threading.Event()
        library.impl("slow", lambda x: inside.set() or time.sleep(1), "CUDA")
        torch.cuda.lms.enable(min_size=0)
        x, y = (torch.full((10 << 18,), float(i), device="cuda") for i in range(2))
        thread = threading.Thread(target=torch.ops.lms_slow.slow, args=(x,))
        thread.start()
        inside.wait()

        class Told(Exception):
            pass

        def tell(*_):
            raise Told

        signal.signal(signal.SIGUSR1, tell)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        try:
            exec(sys.argv[1])
            time.sleep(9)
        except Told:
            thread.join()
        print("pinned:", torch.cuda.lms.stats()["pinned.all.current"])
        """,
        pin,
        memory=16 * MIB,
    )
    assert "pinned: 0" in out


@PINS
def test_a_signal_while_a_pin_comes_and_goes_leaves_none(program: Any, pin: str) -> None:
    """Wherever it is seen: also when what lets go has been called, and has done nothing yet."""
    out = program(
        """
        import random, signal, sys, time, torch
        torch.cuda.lms.enable(min_size=0)
        y = torch.ones(1 << 18, device="cuda")
        pinning = compile(sys.argv[1], "pinning", "exec")

        class Told(Exception):
            pass

        def tell(*_):
            raise Told

        def once(seconds):
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                exec(pinning)
                time.sleep(1)
            except Told:
                return True

        signal.signal(signal.SIGALRM, tell)
        began = time.perf_counter()
        for _ in range(100):
            exec(pinning)
        each = (time.perf_counter() - began) / 100
        assert all(once(random.uniform(0.1, 2) * each + 2e-6) for _ in range(500))
        print("pinned:", torch.cuda.lms.stats()["pinned.all.current"])
        """,
        pin,
        memory=16 * MIB,
    )
    assert "pinned: 0" in out
