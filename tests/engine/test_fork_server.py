# SPDX-License-Identifier: Apache-2.0
"""Programs in forks of one process behave as fresh ones do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import balance
from fork_server import ForkServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "slow_to_import.py").write_text(
        "import os\nprint('imported')\nseen = []\n"
        "def ready():\n    seen.append(os.environ['WHICH'])\n"
    )
    variables = {"PYTHONPATH": str(tmp_path), "WHICH": "server"}
    made = ForkServer(sys.executable, ["slow_to_import"], variables)
    yield made
    made.close()


def test_each_program_has_its_own_state(server: Any, tmp_path: Path) -> None:
    code = "import sys, os, slow_to_import as s; print(s.seen, sys.argv, __name__, os.environ['A'])"
    for which in ("one", "two"):
        variables = {"WHICH": which, "A": "a"}
        done = server.run(["-c", code], ["x"], variables, 60, "slow_to_import:ready")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"[{which!r}] ['-c', 'x'] __main__ a\n"
    file = tmp_path / "program.py"
    file.write_text("import sys, beside\nprint(sys.argv, __file__, beside.WHAT)")
    (tmp_path / "beside.py").write_text("WHAT = 3")
    done = server.run([str(file)], [], {}, 60)
    assert done.stdout == f"[{str(file)!r}] {file} 3\n", done.stderr


def test_how_a_program_ends(server: Any) -> None:
    def run(code: str, within: float = 60) -> Any:
        return server.run(["-c", code], [], {}, within)

    done = run("raise ValueError('what')")
    assert done.returncode == 1 and done.stderr.endswith("ValueError: what\n")
    assert run("import sys; sys.exit(7)").returncode == 7
    assert run("import os; os.kill(os.getpid(), 11)").returncode == -signal.SIGSEGV
    assert "at the end" in run("import atexit; atexit.register(print, 'at the end')").stdout
    with pytest.raises(subprocess.TimeoutExpired):
        run("import time; time.sleep(60)", within=0.5)
    assert run("print('still there')").stdout == "still there\n"


def test_a_program_that_ends_before_anybody_looks(server: Any, monkeypatch: Any) -> None:
    answer = server._answer

    def late(within: float | None) -> Any:
        time.sleep(1)  # both answers, that it began and that it ended, are there
        monkeypatch.setattr(server, "_answer", answer)
        return answer(within)

    monkeypatch.setattr(server, "_answer", late)
    assert server.run(["-c", "print('done')"], [], {}, 5).stdout == "done\n"


def test_both_streams_in_order(server: Any) -> None:
    code = (
        "import sys\nfor i in range(3):\n"
        "    print(i, file=(sys.stdout, sys.stderr)[i % 2], flush=True)"
    )
    done = server.run(["-c", code], [], {}, 60, together=True)
    assert (done.stdout, done.stderr) == ("0\n1\n2\n", "")


def test_their_time_is_counted_once(server: Any) -> None:
    before = balance.spent()
    server.run(["-c", "import time\nwhile time.process_time() < 1: pass"], [], {}, 60)
    assert 0.9 <= balance.spent() - before < 1.5
    server.close()
    assert 0.9 <= balance.spent() - before < 1.8


def test_a_server_that_cannot_import(tmp_path: Path) -> None:
    broken = ForkServer(sys.executable, ["no_such_module"], {})
    with pytest.raises((RuntimeError, BrokenPipeError)):
        broken.run(["-c", ""], [], {}, 60)
        broken.run(["-c", ""], [], {}, 60)
