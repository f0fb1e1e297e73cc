# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM end a command as an error does: everything opened is closed on the way out.

Standard library only and no import of lmsbuild: it is at work before anything else is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

CODES = {
    signal.SIGHUP: (129, "the terminal was closed"),
    signal.SIGINT: (130, "Ctrl-C was pressed"),
    signal.SIGTERM: (143, "SIGTERM was received"),
}
_GRACE_SECONDS = 3.0
_AGAIN_SECONDS = 0.02
# Where no more could be opened beside its pipe, no signal is repeated: a command reads modules, and
# has pipes to what it runs. More would leave it out where there is room, fewer make others fail.
_FILES_LEFT = 64
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)

_number = 0  # the signal that came
_over = False  # the command has ended: a signal comes too late
_stopped: list[Any] = []  # child processes told to end
_repeater: threading.Thread | None = None
_bell = -1  # the end of its pipe that is written to


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by a signal. `during` is the task that it ended, "" if none."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code, self.why = CODES[signal.Signals(number)]
        self.during = ""


def install() -> None:
    """Turn the signals into Interrupted, but for those that the caller has set to be ignored."""
    sys.unraisablehook = _unraisable
    for number in CODES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def insist() -> None:
    """Repeat each signal until its handler has run. Python runs it in the main thread alone, and a
    signal that comes just as that thread goes to sleep for a lock does not wake it."""
    global _repeater, _bell
    if _repeater is not None:
        return
    with contextlib.suppress(OSError, RuntimeError):  # no more files, or threads
        ear, _bell = os.pipe()
        if os.sysconf("SC_OPEN_MAX") < _bell + _FILES_LEFT:
            os.close(ear)
            os.close(_bell)
            return
        os.set_blocking(_bell, False)  # as set_wakeup_fd asks
        thread = threading.Thread(target=_repeat, args=(ear,), daemon=True)
        thread.start()
        _repeater = thread
        signal.set_wakeup_fd(_bell, warn_on_full_buffer=False)


def _repeat(ear: int) -> None:
    main = threading.main_thread().ident
    while numbers := os.read(ear, 1 << 16):
        ours = CODES.keys() & set(numbers)
        if ours:
            time.sleep(_AGAIN_SECONDS)
        for number in ours:
            if main is not None and signal.getsignal(number) is _handle:
                signal.pthread_kill(main, number)  # which rings again
    os.close(ear)


def over() -> None:
    """The command has ended, and is not cut short any more: what follows is not to be."""
    global _over
    _over = True


def uninstall() -> None:
    global _number, _over, _repeater
    over()
    thread, _repeater = _repeater, None
    if thread is not None:
        # Waited for: what it sent after this would end the process.
        signal.set_wakeup_fd(-1)
        os.close(_bell)
        thread.join()
    sys.unraisablehook = sys.__unraisablehook__
    # Python complains of a signal that came to a handler that is gone when it looks.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, CODES)
    for number in CODES:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_DFL)
    _number, _over = 0, False
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _handle(number: int, _: FrameType | None) -> None:
    global _number
    if _over:
        return
    _number = number
    # What runs from here on closes and restores: a second signal must not cut it short. SIG_IGN
    # would be inherited by a process that is just being started, which could not be asked to end.
    for other in CODES:
        signal.signal(other, _nothing)
    _adopt_orphans()
    _stop_children()
    raise Interrupted(number)


def _nothing(_: int, __: FrameType | None) -> None:
    pass


def _adopt_orphans() -> None:
    """Let what a child that ends leaves running become a child of this process (Linux): it may hold
    the pipes that a thread reads. Not earlier, so that a daemon that git started stays alone."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _unraisable(dropped: sys.UnraisableHookArgs) -> None:
    """What came while an object was destroyed is dropped there: it comes again, outside."""
    if not isinstance(dropped.exc_value, Interrupted):
        sys.__unraisablehook__(dropped)
    elif _number:
        signal.signal(_number, _handle)
        if _repeater is not None:
            os.write(_bell, bytes([_number]))


def came() -> Interrupted | None:
    """What a signal raised, also where a library took it for an error of its own."""
    return Interrupted(_number) if _number else None


def check() -> None:
    """Called before a process is started: other threads start none once the command is to end."""
    if _number and threading.current_thread() is not threading.main_thread():
        raise Interrupted(_number)


def _stop_children() -> None:
    """Ask all processes below this one to end, while it is known which they are, and wait a little:
    what started them kills them next, and git should have removed its lock files by then."""
    import psutil

    deadline = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < deadline:
        running = any(map(_runs, _stopped))
        new = []
        with contextlib.suppress(psutil.Error, OSError):
            # Again and again: a thread may just have been about to start another, and a child that
            # has ended since may have left one behind.
            new = [c for c in psutil.Process().children(recursive=True) if c not in _stopped]
            for child in new:
                _stopped.append(child)
                child.terminate()
        if not new and not running:
            break
        time.sleep(0.02)


def _runs(child: Any) -> bool:
    """Its exit code is left for whoever started it."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return bool(child.is_running() and child.status() != psutil.STATUS_ZOMBIE)
    return False


def finish() -> None:
    """End what did not end when asked."""
    if not _stopped:
        return
    import psutil

    for child in filter(_runs, _stopped):
        with contextlib.suppress(psutil.Error, OSError):
            child.kill()
