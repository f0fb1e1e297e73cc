# SPDX-License-Identifier: Apache-2.0
"""Tensors that no kernel of TensorFlow made in the pool: from Python, from files, from XLA. They
move like others, and a full pool ends no process."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tf_outside.py")
POOL = 48
MIB = 1 << 20


@pytest.fixture
def outside(programs):
    """What a program of tf_outside.py says, with room for half of what it holds."""

    def run(name, *arguments, **options):
        options.setdefault("env", {"TF_LMS": "1"})
        options.setdefault("pool", POOL)
        arguments = [name, *map(str, arguments)]
        options.setdefault("within", 300)
        said = programs.run(PROGRAM, arguments=arguments, **options)
        return json.loads(said.splitlines()[-1])

    return run


CHAOS = {"TF_LMS": "1", "LMS_DEBUG": "chaos"}


# ---- from Python


@pytest.fixture
def made_in_the_framework(eager_moves):
    """The C interface of the oldest versions makes tensors where nothing of ours can see it."""


def test_tensors_from_numpy_move(outside, made_in_the_framework):
    right, moved = outside("from_numpy")
    assert right and moved >= 48 * MIB


def test_what_python_holds_is_named(outside, eager_stays):
    """It takes pointers where nothing of ours can see it."""
    assert "held by Python" in outside("held_by_python")


@pytest.mark.parametrize("source", ["numpy", "a_list"])
def test_tensors_are_made_in_a_full_pool(outside, made_in_the_framework, source):
    """Nobody looks whether there was room: a pool in which nothing can move is no reason to end."""
    assert outside("from_%s_in_a_full_pool" % source) is True


def test_feeds_move(outside, made_in_the_framework):
    """More than the pool has, at once."""
    assert outside("feeds") is True


# ---- variables


def test_weights_from_numpy_move(outside, made_in_the_framework):
    """Twice as many as the pool has room for."""
    right, updated, exposed = outside("set_weights")
    assert right and updated and exposed == 0


def test_weights_are_loaded(outside, made_in_the_framework, tmp_path):
    assert outside("load_h5", tmp_path) is True


def test_variables_take_in_what_found_no_room(outside, made_in_the_framework):
    """A value that was made outside of the full pool is the pool's from an update on."""
    most, taken = outside("assigned_in_a_full_pool")
    assert most == 2.0 and taken >= 8 * MIB


# ---- files


def test_saved_in_the_same_bytes(outside, made_in_the_framework, tmp_path):
    """All variables are operands of one operation, which reads them where they are."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    stock = outside("save", theirs, wheel="stock", pool=None, env={})
    assert outside("save", ours) == stock


@pytest.mark.parametrize("mode", ["pressure", "chaos"])
def test_saved_while_others_use_it(outside, made_in_the_framework, tmp_path, mode):
    env = CHAOS if mode == "chaos" else {"TF_LMS": "1"}
    assert outside("save_and_use", tmp_path, env=env) == [True, True]


def test_restored(outside, made_in_the_framework, tmp_path):
    assert outside("restore", tmp_path) == [True, True]


def test_restored_in_parts(outside, made_in_the_framework, tmp_path):
    """68 MiB, in a pool of 48."""
    assert outside("restored_in_parts", tmp_path) == float(17 << 20)  # as a float32


def test_batches_in_a_full_pool(outside, made_in_the_framework):
    """Are made outside of it."""
    assert outside("batches_in_a_full_pool") is True


def test_saved_and_restored_by_a_saver(outside, tmp_path):
    assert outside("saver", tmp_path) == [True, True]


@pytest.mark.slow
def test_estimator(outside, tmp_path):
    """Turned on by the RunConfig of an Estimator, whose variables are 64 MiB."""
    on, moved, loss = outside("estimator", tmp_path / "small", env={})
    roomy = outside("estimator", tmp_path / "roomy", env={}, pool=1024)
    assert on and moved > 16 * MIB and roomy[0]
    assert loss == roomy[2]


# ---- XLA


def test_results_of_compiled_functions_move(outside, eager_moves):
    right, moved = outside("compiled")
    assert right and moved >= 96 * MIB


@pytest.mark.parametrize("mode", ["usual", "chaos"])
def test_compiled_functions_in_a_graph(outside, eager_moves, mode):
    """They pin what they read, and what they return is given back to where it came from."""
    env = CHAOS if mode == "chaos" else {"TF_LMS": "1"}
    right, moved = outside("compiled_in_a_graph", env=env)
    assert right and moved >= 32 * MIB


def test_a_compiled_function_that_finds_no_room_fails(outside, eager_moves):
    """It says so while it holds the locks of its variables."""
    assert outside("compiled_without_room", within=120) is True


def test_variables_that_compiled_functions_write_move(outside, eager_moves):
    assert outside("compiled_variables") is True
