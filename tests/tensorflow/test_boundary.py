# SPDX-License-Identifier: Apache-2.0
"""Whatever holds a tensor finds its bytes: views, variables, variants, lists, arrays, datasets,
queues, NumPy, threads. Each scene of tf_boundary.py must give what the official wheel gives."""

import json
from functools import lru_cache
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("tf_boundary.py")
MEMORY = Path(__file__).with_name("tf_memory.py")
SCENES = [
    "forwarding",
    "views",
    "reshapes",
    "variables",
    "sparse_variables",
    "optimizers",
    "tensor_lists",
    "variants",
    "control_flow",
    "graph_mode",
    "datasets",
    "queues",
    "arrays",
    "dlpack",
    "python_functions",
    "checkpoints",
    "threads",
    "replaced_variables",
    "conditionals",
]
POOL = 48
MODES = {
    # Room for a third of what is asked for at once.
    "pressure": {"TF_LMS": "1"},
    # Everything idle leaves after every op, and its old place is overwritten.
    "chaos": {"TF_LMS": "1", "LMS_DEBUG": "chaos"},
}


@pytest.fixture(scope="module")
def scenes(programs, request):
    """Mode -> what the scenes gave, in one process each: of one test alone, its own scene."""
    asked_for = [getattr(item, "callspec", None) for item in request.session.items]
    names = sorted({c.params["scene"] for c in asked_for if c and "scene" in c.params})
    if any(item.name.startswith("test_moved") for item in request.session.items):
        names = []

    @lru_cache(maxsize=None)
    def run(mode):
        wheel, pool, asked, env = "stock", None, "4", {}
        if mode != "stock":
            wheel, env = "lms", MODES[mode]
            pool, asked = (POOL, str(3 * POOL)) if mode == "pressure" else (256, "4")
        said = programs.run(PROGRAM, wheel, pool, env, arguments=[asked, *names])
        return json.loads(said.splitlines()[-1])

    return run


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scenes, scene, mode):
    assert scenes(mode)[scene] == scenes("stock")[scene]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_moved(scenes, mode):
    """The scenes did move tensors, both ways, and found copies that were still good."""
    device = scenes(mode)["statistics"]["devices"][0]
    assert device["paged_out"] > 50 and device["paged_in"] > 20 and device["clean_evictions"] > 0


@pytest.fixture
def memory(programs):
    """What a program of tf_memory.py says, in a pool of so many MiB."""

    def run(name, pool, *arguments, **options):
        options.setdefault("env", {"TF_LMS": "1"})
        said = programs.run(MEMORY, pool=pool, arguments=[name, *arguments], **options)
        return json.loads(said.splitlines()[-1])

    return run


def test_reclaim(memory, eager_moves):
    """Idle tensors make way, come back as they were, and the pool never grows past its size."""
    right, reclaimed, peak = memory("reclaim", 64)
    assert right and reclaimed >= 96 << 20 and peak <= 64 << 20


@pytest.mark.parametrize("where", ["result", "operands"])
def test_out_of_memory_names_the_host_limit(memory, eager_moves, where):
    """Too little host memory is an error that names the variable, and nothing is lost."""
    env = {"TF_LMS": "1", "TF_GPU_HOST_MEM_LIMIT_IN_MB": "64"}
    said, right = memory("host_limit", 64, where, env=env)
    assert "raise TF_GPU_HOST_MEM_LIMIT_IN_MB" in said and right


def test_failed_page_in_loses_nothing(memory, eager_moves):
    """The operands of one operation do not fit together: what came in, and what did not, is as it
    was, and so after an operation that finds no room for its output."""
    failed, found, pinned, paged_in = memory("failed_page_in", 64)
    assert failed == [True] * 3 and found == [1.5, 1.5, 2.5, 2.5]
    assert pinned == 0 and paged_in > 0


@pytest.mark.parametrize("kind", ["result", "results", "operands", "constant"])
def test_out_of_memory_in_a_graph(memory, kind):
    """It says what Large Model Support knows, and soon: nothing runs that would leave memory."""
    said, seconds = memory("out_of_memory", 64, kind)
    assert "Large Model Support could not make room for" in said
    assert seconds < 8


def test_operands_take_no_more_than_they_need(memory, eager_moves):
    """The first operand comes into a hole of less than twice its size; the rest of it is for the
    second one."""
    assert memory("operands_take_what_they_need", 64) is True


@pytest.mark.parametrize("kind", ["result", "operands"])
def test_an_operation_that_needs_nearly_all(memory, eager_moves, kind):
    """All of the pool but the 64th that is for small tensors."""
    assert memory("nearly_all", 64, kind) == [2.0, True]


def test_operands_do_not_lie_between(memory, eager_moves):
    """Before an operation takes most of the pool, its operand moves out of the middle."""
    assert memory("operands_between", 64) == 3 * [40.0 * 2**18]


def test_the_first_operation_without_room(memory, eager_moves):
    """Until then nothing had to make way, and its operand lies where it came to lie."""
    assert memory("first_without_room", 64) == 40.0 * 2**18


def test_an_operand_of_another_size_does_not_lie_between(memory, eager_moves):
    """What an operation took with an operand of nearly that size says nothing of this one."""
    assert memory("operand_of_another_size", 64) == 40.0 * 2**18


def test_many_operands_do_not_lie_between(memory, eager_moves):
    """Nor do those of an operation that takes little, but reads what lies all over the pool."""
    assert memory("many_operands", 40) == 3 * [float(sum(range(64)) << 14)]


def test_what_a_loop_keeps_for_its_gradient_moves(memory):
    """It is in lists, inside variants."""
    stock = memory("loop_with_gradient", None, wheel="stock", env={})
    assert memory("loop_with_gradient", 24) == stock


MAKERS = (
    "zeros", "sum", "from a tensor", "scattered", "scattered into one", "split", "pushed",
)  # fmt: skip


@pytest.mark.parametrize("maker", MAKERS)
def test_lists_that_operations_make_move(memory, eager_moves, maker):
    """Such as the zeros that a list's gradient begins with: 8 MiB or more of them."""
    assert memory("list_made", 32, maker) == 24.0 * 2**18


def test_a_sum_of_lists_brings_in_what_it_reads(memory, eager_moves):
    """What one of them has alone is passed on, as where a loop's gradient collects its slopes."""
    assert memory("sum_of_lists", 32) == [3.0, 38.0, 30.0]


def test_what_branches_keep_for_their_gradients_moves(memory, eager_moves):
    """Twelve tensors of a MiB and their slopes, in a pool for eight."""
    assert memory("branches", 8) == [409.6, 4096.0]


def test_small_tensors_keep_no_room_apart(memory):
    """What is too small to move is not put between large tensors, however much of it there is."""
    assert memory("small_between_large", 48) == [2.0, float(100 * sum(range(36)))]


def test_small_tensors_of_a_full_pool_keep_no_room_apart(memory, eager_moves):
    """What is idle makes way for them at the end of the pool, not where it is the oldest."""
    assert memory("small_in_a_full_pool", 80) == [2.0, float(sum(range(900)))]


def test_room_of_small_tensors_comes_back(memory):
    """What was set aside for small tensors that are gone serves a large one."""
    assert memory("room_of_small", 48) == 2.0


def test_what_nearly_fills_the_pool_leaves_the_rest(memory, eager_moves):
    assert memory("beside_most", 48) == 44.0


def test_small_tensors_under_a_limit(memory, eager_moves):
    """Room for small tensors is made as for others where a limit is below the pool."""
    assert memory("small_under_a_limit", 48) == [float(100 * sum(range(36))), True, 0]


def test_variables_move_from_their_first_update_on(memory):
    """An update gives a variable that shares its first value a tensor of its own."""
    assert memory("updated_variables", 48) is True


def test_constants_move(memory):
    """A graph's constants, which it keeps for good, and more of them than the pool holds."""
    assert memory("constants", 24) is True


def test_ops_that_do_not_fit_together(memory):
    """Many threads, and room for one of these ops at a time: none takes what another lacks."""
    stock = memory("ops_that_do_not_fit_together", None, wheel="stock", env={})
    assert memory("ops_that_do_not_fit_together", 56) == stock


@pytest.mark.parametrize("threads", [2, 8, 16])
def test_threads_whose_operations_fit_alone(memory, eager_moves, threads):
    """Those that lack what the others hold let go of all, and begin anew: none fails."""
    assert memory("threads_that_fit_alone", 48, str(threads)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["given", "shared"])
def test_an_operation_that_wrote_its_input_is_not_run_again(memory, eager_moves, builder, kind):
    """It would write into it for the second time; one that was given no input begins anew."""
    found = memory("written_input", 48, str(builder.library("add_one")), kind)
    assert found == ("out of memory" if kind == "given" else [2.0, 2.0, 1.0])


@pytest.mark.slow
def test_an_operation_is_alone_at_last(memory, eager_moves, builder, tmp_path):
    """Others kept its operand in the middle: alone from now on, it begins anew once more."""
    file = str(tmp_path / "ends")
    found = memory("alone_at_last", 48, str(builder.library("add_one")), file)
    assert found == [7.0, 10.0, 1.0]


def test_threads_that_look_at_arrays(memory, eager_moves):
    """Who waits for memory does not keep the interpreter, which others need to let go of theirs."""
    assert memory("arrays_of_threads", 48, "16")[0] == []


def test_what_python_lets_go_of_is_waited_for(memory, eager_moves):
    assert memory("let_go_by_another_thread", 48) == 2.0


def test_free_memory_in_pieces_is_named(memory, eager_moves):
    said, seconds, _ = memory("pieces", 48)
    assert "Enough is free, but not in one piece" in said
    assert "fewer operations at a time" not in said
    assert seconds < 8


def test_a_tensor_that_is_parsed_without_room(memory, eager_moves):
    """Says once what Large Model Support knows."""
    said, seconds, _ = memory("parsed", 48)
    assert said.count("Large Model Support could not make room for") == 1
    assert "constant" not in said and "fewer operations at a time" not in said
    assert seconds < 8
