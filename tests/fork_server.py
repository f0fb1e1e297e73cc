# SPDX-License-Identifier: Apache-2.0
"""Runs programs in forks of a process that has imported a framework: the import is most of what a
short program costs. What the import does must not depend on the variables of the program.

For the oldest Python that a suite runs in, 3.7.
"""

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import balance


class Forked:
    """What a program did: its exit status (negative: the signal), and what it wrote."""

    def __init__(self, returncode, stdout, stderr):
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


class ForkServer:
    """`modules` are imported by `python` once, with these environment variables."""

    def __init__(self, python, modules, variables):
        self._process = subprocess.Popen(
            [python, __file__, *modules],
            env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            bufsize=0,  # select does not see an answer that lies in a buffer of ours
        )  # fmt: skip
        self._answers = self._process.stdout
        self._spent = 0.0

    def run(self, program, arguments, variables, within, ready=None, together=False, folder=None):
        """Run `program`, ["-c", code] or [file], in `folder` (where this process is, if None), with
        all of its environment `variables`, after the function `ready` ("module:function", without
        arguments). What it writes to standard error is in `stdout`, too, if `together`.

        Raises subprocess.TimeoutExpired after `within` seconds; the program is killed then.
        """
        with tempfile.TemporaryDirectory() as files:
            out, err = Path(files, "out"), Path(files, "err")
            err.touch()
            job = {
                "program": program, "arguments": list(arguments), "variables": variables,
                "stdout": str(out), "stderr": None if together else str(err), "ready": ready,
                "folder": folder or str(Path.cwd()),
            }  # fmt: skip
            left = json.dumps(job).encode() + b"\n"
            while left:
                left = left[self._process.stdin.write(left) :]
            pid = self._answer(None)["pid"]
            done = self._answer(within)
            if done is None:
                with contextlib.suppress(ProcessLookupError):  # it ended just now
                    os.killpg(pid, signal.SIGKILL)
                self._answer(None)
                raise subprocess.TimeoutExpired(program, within, out.read_bytes(), err.read_bytes())
            self._spent += done["spent"]
            balance.elsewhere += done["spent"]
            said = [file.read_text(errors="replace") for file in (out, err)]
            return Forked(done["returncode"], *said)

    def _answer(self, within):
        if not select.select([self._answers], [], [], within)[0]:
            return None
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        return json.loads(line)

    def close(self):
        if self._process.returncode is not None:
            return
        self._process.stdin.close()
        self._process.wait(timeout=60)
        balance.elsewhere -= self._spent  # now counted as this process's child's
        self._answers.close()


def _serve(jobs, answers):
    """Fork a program for each job; returns, in the fork, the job to do."""

    def say(**what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    for line in jobs:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            jobs.close()
            answers.close()
            return job
        say(pid=pid)
        _, status, used = os.wait4(pid, 0)
        ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        say(returncode=ended, spent=used.ru_utime + used.ru_stime)
    return None


def _main():
    # What is imported may write to standard output, which is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in sys.argv[1:]:
        __import__(module)
    sys.stdout.flush()  # what is left in the buffer would come out of every fork
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    job = _serve(os.fdopen(os.dup(0)), answers)
    if job is None:
        return
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (job["stdout"], os.O_WRONLY | os.O_CREAT),
         (job["stderr"], os.O_WRONLY | os.O_CREAT))
    ):  # fmt: skip
        if path is None:
            os.dup2(1, number)
            continue
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(job["variables"])
    os.chdir(job["folder"])
    if job["ready"]:
        module, _, function = job["ready"].partition(":")
        getattr(sys.modules[module], function)()
    _become(job["program"], job["arguments"])


def _become(program, arguments):
    """Run it as Python would have: as the module __main__."""
    namespace = sys.modules["__main__"].__dict__
    file = program[0]
    if file == "-c":
        code, name = program[1], "<string>"
        sys.path[0] = ""
    else:
        code, name = Path(file).read_text(), file
        sys.path[0] = str(Path(file).resolve().parent)
    sys.argv = [file, *arguments]
    for left in [key for key in namespace if not key.startswith("__")]:
        del namespace[left]
    namespace["__file__"] = file
    exec(compile(code, name, "exec"), namespace)


if __name__ == "__main__":
    _main()
