# SPDX-License-Identifier: Apache-2.0
"""The Python API: IBM's names, limits, exclusion, the environment switch, and wrong use."""

import json
import os
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tf_api.py")
POOL = 256
MIB = 1 << 20
IBM = [
    "num_allocs",
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc_size",
    "bytes_limit",
    "bytes_reserved",
    "peak_bytes_reserved",
    "bytes_reservable_limit",
    "bytes_inactive",
    "bytes_active",
    "peak_bytes_active",
    "bytes_reclaimed",
    "current_bytes_reclaimed",
    "peak_bytes_reclaimed",
    "num_single_reclaims",
    "num_full_reclaims",
]


@pytest.fixture
def api(programs):
    """What a program of tf_api.py says."""

    def run(name, *arguments, pool=POOL, **options):
        said = programs.run(PROGRAM, pool=pool, arguments=[name, *arguments], **options)
        return said if options.get("fails") else json.loads(said.splitlines()[-1])

    return run


# ---- on and off


def test_switch(api):
    assert api("switch") == [False, True, False, True]


@pytest.mark.parametrize("before", ["never", "on"])
def test_enabling_waits_for_operations_that_run(api, before):
    """They have pinned nothing. Not for ever: the error says why, and speaks of no device."""
    said, on, on_after_it, right = api("enabled_while_an_operation_runs", before)
    assert "operations that started before are still running after 10 seconds" in said
    assert "device" not in said.lower()
    assert not on and on_after_it and right


def test_defragmentation(api):
    """IBM's 2.1 could be asked for it; nothing has to be."""
    assert api("defragmentation") == [True, True, 0, 0]


def test_session_config(api):
    assert api("session_config") == [True, False, True]


def test_official_proto_keeps_the_field(api):
    """A configuration written by a patched process passes through an official one."""
    through = api("pass_config", api("write_config"), wheel="stock")
    assert api("read_config", through) is True


def test_environment_switch(api):
    env = {"TF_LMS": "device_limit=64MiB,host_limit=1GiB"}
    on, options = api("options", env=env, fresh=True)
    assert on and options["device_limit"] == 64 * MIB and options["host_limit"] == 1 << 30
    assert api("options", env={"TF_LMS": "0"}, fresh=True)[0] is False


def test_host_memory_has_a_limit_unless_one_is_set(api):
    """A share of the machine's memory for each process; the summary says of what."""
    limit, share, given = api("host_share", env={"SLURM_NTASKS_PER_NODE": "4"}, fresh=True)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < limit <= 3 * machine // 16
    assert "(3/4 of the " in share and ", among 4 processes)" in share
    assert "host 1.0 GiB, " in given


def test_the_setter_stores(api):
    """Where there is nothing to act on, too; the summary says so."""
    enabled, before, after = api("stored", pool=None)
    assert enabled is True
    assert before.startswith("Large Model Support: on, from when TensorFlow makes its devices")
    assert after.startswith("Large Model Support: on, but without a device to act on")
    assert "sees no GPU" in after and "TF_CPU_ALLOCATOR_USE_BFC=1" in after


def test_turned_on_after_a_tensor(api, eager_moves):
    right, first, moved, summary = api("after_a_tensor", pool=64)
    assert right and first == 1.0 and moved >= 64 * MIB
    assert summary.startswith("Large Model Support: on\n")


# ---- statistics


def test_ibm_statistics(api):
    found = api("ibm_statistics", ",".join(IBM))
    assert found["bytes_limit"] == POOL * MIB
    assert found["num_allocs"] > 0 and found["largest_alloc_size"] >= 4 * MIB
    assert 8 * MIB <= found["bytes_in_use"] <= found["peak_bytes_in_use"] <= found["bytes_limit"]
    assert found["bytes_reclaimed"] == found["num_full_reclaims"] == 0


def test_ids_are_integers_of_any_kind(api):
    assert api("ids") == [1.0, True, 0, 0]


def test_statistics_of_a_full_device(api, eager_moves):
    found = api("full_device", pool=128)
    assert found["moved"] >= 64 * MIB and found["reclaims"] > 0
    assert 64 * MIB <= found["now"] <= found["peak"] <= found["moved"]
    assert found["now"] <= found["host"] <= found["host_peak"]
    assert found["summary"].startswith("Large Model Support: on")


@pytest.mark.parametrize(
    ("mib", "thrashes"), [(200, True), pytest.param(40, False, marks=pytest.mark.slow)]
)
def test_thrashing_is_logged_once(api, eager_moves, mib, thrashes):
    logged = {"TF_CPP_MIN_LOG_LEVEL": "1"}
    right, said, share = api("thrashing", str(mib), pool=64, env=logged, fresh=True)
    assert right and thrashes == (share > 2 / 3)
    assert len(said) == int(thrashes)
    for line in said:
        assert "copies most of what operations use on " in line
        assert "1.00 MiB, for StridedSlice. What helps: less memory for each step" in line


def test_peak_of_active_bytes(api, eager_moves):
    """What the operation with the most needed, whether or not room was short; a reset takes it to
    what is active then."""
    reset, added, again = api("peak_active")
    for found in (reset, added, again):
        assert found["bytes_active"] == found["bytes_in_use"] - found["bytes_inactive"]
    assert reset["bytes_inactive"] == 80 * MIB and reset["bytes_active"] < MIB
    assert reset["peak_bytes_active"] == reset["bytes_active"]
    assert 24 * MIB <= added["peak_bytes_active"] < 25 * MIB  # two operands, one result
    assert added["peak_bytes_in_use"] >= 88 * MIB
    assert again["peak_bytes_active"] == again["bytes_active"] < MIB


def test_peak_of_active_bytes_when_off(api):
    """All that is in use is active as long as nothing can move."""
    found = api("peak_active_when_off")
    assert found["peak_bytes_active"] == found["peak_bytes_in_use"] >= 32 * MIB


def test_peak_of_active_bytes_when_off_again(api):
    found = api("peak_active_with_off_between")
    assert 32 * MIB <= found["peak_bytes_active"] <= found["peak_bytes_in_use"]


# ---- what moves


@pytest.mark.parametrize("kind", ["tensor", "variable"])
def test_values_survive(api, kind, request):
    """Each tensor that moved out reads as it was."""
    if kind == "tensor":
        request.getfixturevalue("eager_moves")
    same, moved, now, summary = api("values_survive", kind, pool=128)
    assert same and moved >= now >= 64 * MIB
    assert summary.startswith("Large Model Support: on")


def test_exclusion(api, eager_moves):
    kept, moved = api("exclusion", pool=128)
    assert kept >= 8 * MIB and moved > 0  # exposed when they were named


def test_exclusion_is_of_a_tensor_not_of_its_address(api, eager_moves):
    same_address, excluded = api("address_of_the_excluded")
    assert same_address and excluded == 0


def test_exclusion_of_what_is_not_known_yet(api):
    assert api("excluded_before_it_is_known") == 8 * MIB


def test_device_limit(api, eager_moves):
    """A limit below the pool holds."""
    assert api("device_limit") <= 64 * MIB


# ---- constants


@pytest.mark.parametrize("optimizer", ["off", "on"])
def test_constants_are_folded_outside_of_the_pool(api, optimizer):
    """Folding ended the process when operands, results and copies did not fit together."""
    values, peak, large = api("folded", optimizer, pool=24)
    assert values == large == [n * 4.0 * MIB for n in range(4)]
    if optimizer == "off":  # the other one leaves what is that large to the run
        assert peak < MIB


# ---- wrong use


WRONG = (
    ("ValueError", "host_limit", "this machine has"),
    ("ValueError", "device_limit", "TF_CPU_BFC_MEM_LIMIT_IN_MB"),
    ("ValueError", "host_limit must be bytes or a size", "'many'"),
    ("ValueError", "device_limit cannot be negative"),
    ("TypeError", "min_size must be a number of bytes", "1.5"),
    ("ValueError", "num_allocs", "first"),
    ("ValueError", "num_allocs", "True"),
    ("ValueError", "NUMA node's id", "-1"),
    ("TypeError", "eager tensor", "str"),
)


def test_wrong_arguments(api):
    """The calls are WRONG of tf_api.py."""
    said = api("wrong_arguments")
    assert len(said) == len(WRONG)
    for line, words in zip(said, WRONG):
        assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"TF_LMS": "device_limt=1G"}, ("ValueError", "TF_LMS takes", "device_limt")),
        ({"LMS_DEBUG": "choas"}, ("ValueError", "LMS_DEBUG knows", "choas")),
    ],
)
def test_wrong_environment(api, env, words):
    said = api("nothing", env=env, fails=True, fresh=True)
    line = [line for line in said.splitlines() if line and not line.startswith(" ")][-1]
    assert all(word in line for word in words), line
