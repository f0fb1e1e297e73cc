# SPDX-License-Identifier: Apache-2.0
"""TFLMS v1's names, pictures, and beside which TensorFlow the package works."""

import sys
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_large_model_support as package
from tensorflow_large_model_support import LMS, LMSKerasCallback, LMSSessionRunHook, v1, versions
from test_session import X, added, network, train

PACKAGE = "tensorflow_large_model_support"


def swapped(graph):
    return {op.inputs[0].op.name for op in added(graph) if "swapout" in op.name}


def test_v1_swaps_what_the_optimizers_scopes_read():
    graph = network()
    v1.LMS({"gradients"}, graph=graph).run()
    readers = {
        reader.name.partition("/")[0]
        for op in added(graph)
        if "swapin" in op.name
        for reader in op.outputs[0].consumers()
    }
    assert readers == {"gradients"}
    assert swapped(graph) and not any(name.startswith("gradients/") for name in swapped(graph))
    assert train(graph)[0] == train(network())[0]


def test_v1_numbers():
    for most in (0, 2):
        graph = network()
        v1.LMS({"gradients"}, n_tensors=most).run(graph)
        assert len(swapped(graph)) == most
    every, some = network(), network()
    v1.LMS(swap_branches=True).run(every)
    v1.LMS(swap_branches=True, branch_threshold=8, excl_types={"Relu"}).run(some)
    assert swapped(some) < swapped(every)
    apart, fused = network(), network()
    v1.LMS(swap_branches=True, branch_threshold=3).run(apart)
    v1.LMS(swap_branches=True, branch_threshold=3, fuse_swapins=True).run(fused)
    assert len(added(fused)) < len(added(apart))


@pytest.mark.parametrize(
    "wrong",
    [
        {"lb": 1.5},
        {"lb": 3, "ub": 2},
        {"n_tensors": "2"},
        {"branch_threshold": None},
        {"ctrld_strategy": "best"},
        {"excl_scopes": "loss"},
        {"incl_types": [3]},
        {"optimizer_scopes": "adam"},
        {"starting_scope": {"a"}},
        {"starting_op_names": "x"},
        {"graph": "g"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_v1_refuses(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        v1.LMS(**wrong)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LMSKerasCallback(optimizer_scopes_override=wrong.pop("optimizer_scopes", ()), **wrong)


def test_v1_refuses_scopes_that_the_graph_has_not():
    for option in ({"optimizer_scopes": {"adam"}}, {"starting_scope": "nowhere"}):
        with pytest.raises(ValueError, match=f"{next(iter(option))} names .* in which the graph"):
            v1.LMS(**option).run(network())
    with pytest.raises(ValueError, match="starting_op_names names 'y', which is no operation"):
        v1.LMS(starting_op_names={"y"}).run(network())
    with pytest.raises(ValueError, match="excl_types names 'Relux', which no operation"):
        v1.LMS(excl_types={"Relux"}).run(network())


def test_a_call_is_of_the_version_whose_options_it_has():
    for call in (
        lambda: LMS({"gradients"}),
        lambda: LMS(["gradients"], graph=network()),
        lambda: LMS(graph=network(), optimizer_scopes={"gradients"}, lb=2),
        lambda: LMS(n_tensors=3),
    ):
        assert type(call()) is v1.LMS
    for call in (LMS, lambda: LMS(3, 0, 1), lambda: LMS(debug=True, cpu_device="/cpu:0")):
        assert type(call()) is LMS
    with pytest.raises(ValueError, match="lb, of TFLMS v1, and swapout_threshold, which is none"):
        LMS(lb=2, swapout_threshold=3)
    with pytest.raises(ValueError, match="optimizer_scopes, of TFLMS v1, and sync_mode, which"):
        LMS({"gradients"}, sync_mode=1)
    with pytest.raises(ValueError, match="'gradients', which is no integer"):
        LMS("gradients")


def test_v1_starts_where_it_is_told_to():
    every, inside, named = network(), network(), network()
    v1.LMS({"gradients"}).run(every)
    v1.LMS({"gradients"}, starting_scope="tower0/net/layer3").run(inside)
    (kernel,) = [op.name for op in named.get_operations() if op.name.endswith("layer3/Conv2D")]
    v1.LMS({"gradients"}, starting_op_names={kernel}).run(named)
    assert swapped(inside) == swapped(named) < swapped(every)
    assert all(name > "tower0/net/layer3" for name in swapped(inside))


def test_v1_finds_the_gradients_of_keras(said):
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    x = entry = layers.Input((8, 8, 3))
    for _ in range(3):
        x = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    model = tf.keras.Model(entry, x)
    model.compile("sgd", "mse", jit_compile=False)
    lms = LMSKerasCallback(lb=2, debug=True)
    model.fit(X, np.ones((4, 8, 8, 4)), verbose=0, callbacks=[lms])
    readers = [line.partition(", for ")[2] for line in said if " is out until " in line]
    assert readers and all("gradient_tape/" in each for each in readers)


def test_v1_hook_and_callback():
    graph = network()
    with graph.as_default():
        hook = LMSSessionRunHook({"gradients"}, starting_scope="tower0", starting_op_names={"x"})
        tf.compat.v1.train.get_or_create_global_step()
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert np.isfinite(session.run("loss:0", {"x:0": X}))
    assert added(graph)
    assert isinstance(LMSKerasCallback(lb=3), tf.keras.callbacks.Callback)
    with pytest.raises(AttributeError, match="no attribute 'LMX'"):
        package.LMX  # noqa: B018


def test_pictures(tmp_path, monkeypatch, said):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    lms = LMS(3, 2, 1, 1)
    lms.batch_size, lms.autotune_plot = 4, True
    with pytest.raises(ValueError, match="nothing was simulated yet"):
        lms.plan()
    lms.run(network())
    stem = "tflms_simulator_mem_traces_swapout_threshold3_swapin_ahead1_swapin_groupby2_sync_mode1"
    names = {"nolms_simulator_mem_traces", stem, "distances"}
    assert {path.name for path in (tmp_path / ".lms").iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("pdf", "png")
    }
    assert (tmp_path / ".lms" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
    figures = lms.plan()
    assert set(figures) == names
    below = figures["nolms_simulator_mem_traces"].axes[1]
    (drawn,) = below.collections
    top = drawn.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(lms.simulated.before.peak / (1 << 30))
    assert any("[Simulator] Pictures: " in line for line in said)


def test_pictures_where_nothing_is_swapped(tmp_path, monkeypatch, said):
    """Those of the run that was simulated; of a model that is known, too."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    lms = LMS()
    lms.batch_size, lms.autotune_gpu_mem, lms.autotune_plot = 4, 1, True
    for graph in (network(), network()):
        lms.run(graph)
        assert said[-1].startswith("[LMS][0] [Simulator] Pictures: ") and not added(graph)
        assert "[LMS][0] LMS is not necessary. Turned LMS off." in said
        names = {"nolms_simulator_mem_traces", "distances"}
        assert {path.stem for path in (tmp_path / ".lms").iterdir()} == names == set(lms.plan())
        assert lms.simulated.plan is None
        assert lms.simulated.after == lms.simulated.before and lms.simulated.before.peak > 0
    lms.autotune_gpu_mem = 84e3 / (1 << 30)
    lms.run(network())
    rewritten, lms.autotune_gpu_mem = lms.simulated, 1
    lms.run(network())  # as what validates, beside what trains
    assert rewritten.plan and lms.simulated is rewritten and len(lms.plan()) == 3


def test_pictures_that_cannot_be_written_stop_nothing(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    warned = []
    monkeypatch.setattr(
        tf.compat.v1.logging, "warning", lambda text, *parts: warned.append(text % parts)
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".lms").touch()
    lms, graph = LMS(3, 2, 1), network()
    lms.autotune_plot = True
    lms.run(graph)
    (line,) = warned
    assert "There are no pictures: " in line and added(graph)


@pytest.mark.parametrize(
    ("running", "refused"),
    [("2.21.0", None), ("2.21.3", None), ("2.19.1", "2.21.0"), ("2.15.0", "2.14.1")],
)
def test_other_releases_are_refused_by_name(running, refused, monkeypatch):
    known = ModuleType("_tested")
    known.TESTED = ("2.14.1", "2.21.0")
    monkeypatch.setitem(sys.modules, f"{PACKAGE}._tested", known)
    monkeypatch.delenv(versions.FORCE, raising=False)
    if refused is None:
        versions.check(running)
        return
    with pytest.raises(ImportError, match=f"not tested with TensorFlow {running}; .* {refused}; "):
        versions.check(running)
    monkeypatch.setenv(versions.FORCE, "1")
    versions.check(running)
