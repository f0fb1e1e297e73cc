# SPDX-License-Identifier: Apache-2.0
"""The command line, child processes, and the build."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TOOLS, Run

pytestmark = pytest.mark.engine


def test_a_script_runs_with_its_arguments(run: Run) -> None:
    done = run(
        """
        import sys, torch
        print(sys.argv[1:], __name__, torch.cuda.get_device_properties(0).total_memory)
        print(torch.cuda.get_device_name(), torch.ones(2).cuda().sum().item())
        sys.exit(3)
        """,
        "--memory",
        "64M",
        "--mode",
        "lazy",
        arguments=("--memory", "x"),
    )
    assert done.stdout == (
        "['--memory', 'x'] __main__ 67108864\nsimcuda: simulated CUDA device 2.0\n"
    )
    assert done.returncode == 3
    announced = "simcuda: simulated CUDA device, 64 MiB, mode lazy: timings are not a GPU's\n"
    assert done.stderr == announced


def test_quiet(run: Run) -> None:
    done = run("import torch; torch.ones(1).cuda()", env={"SIMCUDA_QUIET": "1"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "fast"), "invalid choice: 'fast'"),
        (("--memory", "lots"), "'lots' is not a size"),
        (("--devices", "99"), "99 devices cannot be simulated"),
    ],
)
def test_wrong_usage_exits_with_2(run: Run, options: tuple[str, ...], message: str) -> None:
    done = run("", *options)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m simcuda` with these words."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA")}
    return subprocess.run(
        [sys.executable, "-m", "simcuda", *words],
        env={**inherited, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no program was given; name a script, or a module after -m"),
        (("--memory", "64M", "-m"), "no program was given; name a script"),
        (("no-such.py",), "no-such.py cannot be run because there is no such script; name one"),
        (("-m", "nosuch"), "nosuch cannot be run because there is no such module; name one"),
        (("-m", "nosuch.inside"), "nosuch cannot be run because there is no such module"),
        (("--dry", "x.py"), "without a profile, which says what GPU it stands for; give --profile"),
        (("--values", "off", "x.py"), "values off cannot be used because it is of the dry device"),
        (("--trace", "f", "x.py"), "it is of the dry device; give --dry, too, or leave it out"),
    ],
)
def test_what_cannot_be_run_says_what_to_do(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.py").touch()
    done = command(*words)
    assert done.returncode == 2 and done.stderr.startswith("simcuda: ")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_modules_within_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "empty/__init__.py": "", "fine/__init__.py": "", "fine/__main__.py": "print('ran')",
        "broken/__init__.py": "import what_it_needs",
    }.items():  # fmt: skip
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    assert command("-m", "fine").stdout == "ran\n"
    for name in ("empty", "fine.nosuch"):
        done = command("-m", name)
        assert done.returncode == 2 and "there is no such module" in done.stderr
        assert "Traceback" not in done.stderr
    assert "No module named 'what_it_needs'" in command("-m", "broken").stderr  # its own


CHILDREN = """
    import os, subprocess, sys
    import simcuda, torch
    code = (
        "import sys, torch, simcuda; from other import here; "
        "print(simcuda.device.capacity, simcuda.device.mode, torch.ones(1).cuda().item(), here)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    without = {k: v for k, v in os.environ.items() if k != "SIMCUDA"}
    code = "import sys; print('simcuda' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=without)
"""


def test_children_inherit_the_device(run: Run, tmp_path: Path) -> None:
    # A sitecustomize and a module of the user's own must still be found.
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'kept'")
    (tmp_path / "other.py").write_text("import builtins; here = builtins.theirs")
    tools = Path(__file__).parents[2] / "tools"
    env = {"PYTHONPATH": f"{tools}:{tmp_path}"}
    done = run(CHILDREN, "--memory", "96M", "--mode", "late-write", env=env)
    assert done.stdout == "100663296 late-write 1.0 kept\nFalse\n", done.stderr
    assert done.stderr.count("timings are not") == 1


SHARED = """
    import torch, torch.multiprocessing as mp

    def child(queue, back):
        x = queue.get()
        assert x.is_cuda
        x.mul_(2)
        torch.cuda.synchronize()
        back.put(x.cpu().tolist())
        del x

    if __name__ == "__main__":
        context = mp.get_context("spawn")
        queue, back = context.Queue(), context.Queue()
        process = context.Process(target=child, args=(queue, back))
        process.start()
        x = torch.arange(4.0).cuda()
        queue.put(x)
        print(back.get(timeout=60))
        process.join(60)
        print(x.tolist(), process.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("immediate", marks=pytest.mark.slow), "late-write"])
def test_tensors_are_shared_between_processes(run: Run, mode: str) -> None:
    done = run(SHARED, "--mode", mode)
    assert done.stdout == "[0.0, 2.0, 4.0, 6.0]\n[0.0, 2.0, 4.0, 6.0] 0\n", done.stderr


@pytest.mark.slow
def test_load_in_the_program(run: Run) -> None:
    done = run(
        """
        import simcuda
        simcuda.load(memory="32M", mode="eager-copy", children=False)
        import torch
        print(simcuda.device.capacity, simcuda.device.mode, torch.ones(2, device="cuda").tolist())
        """,
        plain=True,
    )
    assert done.stdout == "33554432 eager-copy [1.0, 1.0]\n", done.stderr


def test_load_after_torch_is_refused(run: Run) -> None:
    code = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
    done = run(code + "import simcuda\nsimcuda.load()", plain=True)
    assert "call simcuda.load() before import torch" in done.stderr


@pytest.mark.slow
def test_a_fork_has_a_device_of_its_own(run: Run) -> None:
    done = run(
        """
        import os, sys
        import simcuda
        simcuda.load(memory="32M", order="report", for_forks=True)
        import torch

        def fork(**settings):
            sys.stdout.flush()
            if pid := os.fork():
                return os.waitpid(pid, 0)
            os.environ.update(settings)
            simcuda.settle()
            print(simcuda.device.capacity, simcuda.device.mode, torch.ones(2).cuda().tolist())
            a, b = torch.cuda.Stream(), torch.cuda.Stream()
            x = torch.ones(4, device="cuda")
            for stream in (a, b):
                with torch.cuda.stream(stream):
                    x.add_(1)
            sys.exit()

        fork(SIMCUDA_MEMORY="16M", SIMCUDA_MODE="lazy")
        fork()
        fork(SIMCUDA_ORDER="off")
        """,
        plain=True,
    )
    assert done.stdout == "16777216 lazy [1.0, 1.0]\n33554432 immediate [1.0, 1.0]\n", done.stderr
    assert done.stderr.count("are not ordered (races)") == 2
    assert "SimcudaError: order cannot change in a fork" in done.stderr


@pytest.mark.slow
def test_a_program_that_asks_whether_there_is_torch(run: Run) -> None:
    """Many libraries do before they import it."""
    done = run(
        """
        import importlib.util
        assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch")
        import torch
        print(torch.ones(3, device="cuda").sum().item())
        """
    )
    assert done.returncode == 0 and done.stdout == "3.0\n", done.stderr


@pytest.mark.slow
def test_a_fork_waits_for_no_thread_of_its_parent(run: Run) -> None:
    """What the CPU does to pinned memory is looked at in the child, too."""
    done = run(
        """
        import os, signal, threading, torch
        pinned = torch.ones(4, pin_memory=True)
        x = torch.ones(4, device="cuda")
        over = threading.Event()

        def busy():
            while not over.is_set():
                x.add_(1)

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            if (child := os.fork()) == 0:
                signal.alarm(10)
                pinned.add_(1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        print("done")
        """,
        "--order",
        "report",
    )
    assert done.stdout == "done\n", done.stderr


def test_a_process_that_is_no_fork_has_settled(run: Run) -> None:
    done = run("import simcuda\nsimcuda.load()\nsimcuda.settle()", plain=True)
    assert "call simcuda.load(for_forks=True) before the fork" in done.stderr


def _seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime  # of the processor: the machine may be busy


def test_a_finished_build_is_reused_at_once() -> None:
    command = [sys.executable, "-m", "simcuda", "build"]
    subprocess.run(command, check=True, capture_output=True)
    before = _seconds_of_children()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert _seconds_of_children() - before < 0.5
    assert (Path(done.stdout.strip()) / "libsimcuda_kernels.so").is_file()
    assert done.stderr == ""
