# SPDX-License-Identifier: Apache-2.0
"""The device that computes nothing: shapes, allocations and time are those of a real run."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import TOOLS, Run
from fork_server import ForkServer

from simcuda import profile
from simcuda.profiles import to_toml
from simcuda.torchinfo import find_torch

HERE = Path(__file__).parent
PROFILE = "v100-32gb-pcie3"
DRY = {"SIMCUDA_DRY": "1", "SIMCUDA_PROFILE": PROFILE}

# Whether a stream keeps cuBLAS's workspace; from 2.15 on it is each product's.
TORCH = find_torch()
KEEPS = TORCH is None or tuple(int(part) for part in TORCH.version.split(".")[:2]) < (2, 15)

Program = Callable[..., Any]


def environment(settings: dict[str, str]) -> dict[str, str]:
    kept = ("SIMCUDA_CACHE", "SIMCUDA_CUDA_INCLUDE")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SIMCUDA") or k in kept}
    paths = [str(TOOLS), str(HERE)]
    return {**inherited, "SIMCUDA_QUIET": "1", "PYTHONPATH": os.pathsep.join(paths), **settings}


def server(settings: dict[str, str]) -> Iterator[ForkServer]:
    if TORCH is None:
        pytest.skip("torch is not installed here")
    made = ForkServer(sys.executable, ["device_fork"], environment(settings))
    yield made
    made.close()


@pytest.fixture(scope="session")
def dry_server() -> Iterator[ForkServer]:
    yield from server(DRY)


@pytest.fixture(scope="session")
def computing_server() -> Iterator[ForkServer]:
    yield from server({})


def ask(server: ForkServer, settings: dict[str, str], code: str, *arguments: str) -> Any:
    prelude = "import json, sys\nimport simcuda\nimport torch\ndevice = simcuda.device\n"
    program = ["-c", prelude + textwrap.dedent(code)]
    done = server.run(program, arguments, environment(settings), 120, "device_fork:ready")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def dry(dry_server: ForkServer) -> Program:
    """What a program prints last, as JSON, on the dry device; `settings` change the device."""
    return lambda code, *arguments, **settings: ask(
        dry_server, {**DRY, **{f"SIMCUDA_{k.upper()}": v for k, v in settings.items()}}, code,
        *arguments,
    )  # fmt: skip


@pytest.fixture
def computing(computing_server: ForkServer) -> Program:
    return lambda code, *arguments: ask(
        computing_server, {"SIMCUDA_MEMORY": "512M"}, code, *arguments
    )


CASES = """
    import dry_cases
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    dry_cases.main()
    print(1)
    """


def test_results_look_as_those_that_are_computed(
    dry: Program, computing: Program, tmp_path: Path
) -> None:
    results = []
    for program in (computing, dry):
        program(CASES, str(tmp_path / "results"))
        results.append(json.loads((tmp_path / "results").read_text()))
    expected, got = results
    assert not [f"{k}: {v}" for k, v in expected.items() if isinstance(v, str)]
    assert {k: v for k, v in got.items() if expected[k] != v} == {}


def test_strides_that_are_a_gpus_alone(dry: Program, computing: Program) -> None:
    """CUDA's libraries give some results of factorisations row by row, the CPU's by columns."""
    code = """
    x = torch.ones(5, 5, device="cuda") + torch.eye(5, device="cuda")
    print(json.dumps([torch.linalg.svd(x).Vh.stride(), torch.linalg.eig(x)[1].stride()]))
    """
    assert dry(code) == [[5, 1], [5, 1]] and computing(code) == [[1, 5], [1, 5]]


# ---- memory

MODELS = """
    from torch import nn
    from torch.nn import functional as F
    sys.path.insert(0, sys.argv[1])
    from lmsbench import models

    def train(model, x, y, optimiser, steps=3):
        model = model.cuda()
        optimiser = optimiser(model.parameters())
        for _ in range(steps):
            optimiser.zero_grad()
            models.loss_of(model(x.cuda()), y.cuda()).backward()
            optimiser.step()

    SGD = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)
    """


@pytest.mark.parametrize(
    "model",
    [
        "train(models.ResNet50(8), *models._image(64, 8), SGD)",
        pytest.param(
            """last = {"memory_format": torch.channels_last}
    image, label = models._image(64, 8)
    train(models.ResNet50(8).to(**last), image.to(**last), label, SGD)""",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train(models.UNet3d(8), *models._volume(32, 8), SGD)", marks=pytest.mark.slow
        ),
        'train(models.WORKLOADS["gpt2"].build(16), *models._text(2, 16), torch.optim.AdamW)',
    ],
    ids=["resnet", "channels-last", "unet", "gpt"],
)
def test_the_allocator_does_the_same_as_when_it_is_computed(
    dry: Program, computing: Program, model: str
) -> None:
    """Event for event: action, size, and where in which segment."""
    code = (
        MODELS
        + f"""
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10**6)
    {model}
    segments, events = {{}}, []
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        action, size, address = (event[k] for k in ("action", "size", "addr"))
        if action == "segment_alloc":
            segments[address] = (size, len(segments))
        inside = [(n, address - s) for s, (b, n) in segments.items() if s <= address < s + b]
        events.append((action, size, inside))
    print(json.dumps(events))
    """
    )
    expected, got = computing(code, str(TOOLS)), dry(code, str(TOOLS), workspaces="off")
    assert len(expected) > 500
    assert got == expected


WORKSPACES = """
    side = 512
    a, x = torch.empty(side, side, device="cuda"), torch.empty(4, 8, 64, 64, device="cuda")
    weight = torch.empty(8, 8, 3, 3, device="cuda")
    def taken(run):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        own = result.untyped_storage().nbytes()
        kept = torch.cuda.memory_allocated() - before - own
        return [kept, torch.cuda.max_memory_allocated() - before - own]
    product = lambda: a @ a
    found = [taken(product), taken(product)]
    with torch.cuda.stream(torch.cuda.Stream()):
        found.append(taken(product))
    print(json.dumps([*found, taken(lambda: torch.conv2d(x, weight, padding=1))]))
    """


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "blas"),
    # torch's own sizes: 2 of 4 MiB and 8 of 16 KiB, and 32 MiB for capability 9.0.
    [(PROFILE, 2 * 4096 * 1024 + 8 * 16 * 1024), ("h100-80gb-pcie5", 32 << 20)],
)
def test_workspaces_are_taken(dry: Program, name: str, blas: int, tmp_path: Path) -> None:
    """cuBLAS's for each stream, once, or for each product; a convolution's while it is issued."""
    conv = 48 << 20
    file = tmp_path / "one.toml"
    file.write_text(to_toml(replace(profile(name), convolution_workspace=conv)))
    kept, again = (blas, 0) if KEEPS else (0, blas)
    expected = [[kept, blas], [0, again], [kept, blas], [0, conv]]
    assert dry(WORKSPACES, profile=str(file)) == expected
    assert dry(WORKSPACES, profile=str(file), workspaces="off") == [[0, 0]] * 4
    assert dry(WORKSPACES, profile=name)[3] == [0, 0]  # none that has a source


def test_a_sort_takes_memory_while_it_sorts(dry: Program) -> None:
    """Of long rows: what torch's own kernels and cub have beside the result."""
    code = """
    def taken(*sizes, dim=-1):
        x = torch.empty(*sizes, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = x.sort(dim)
        own = sum(r.untyped_storage().nbytes() for r in results)
        return torch.cuda.max_memory_allocated() - before - own
    sizes = [(1 << 20,), (2, 1 << 20), (64, 1 << 15), (256, 1 << 13), (1024, 4096)]
    print(json.dumps([*(taken(*each) for each in sizes), taken(1 << 13, 256, dim=0)]))
    """
    key, index, count = 4, 8, 1 << 20
    alone, one, many = 2 * index + key, 3 * index + 2 * key, 2 * index + key
    turned = many + 2 * key + index
    expected = [
        count * alone,
        count * alone,
        2 * count * one,
        2 * count * many,
        0,
        2 * count * turned,
    ]
    assert dry(code) == expected
    assert dry(code, workspaces="off") == [0] * 6


def test_the_host_has_an_end(dry: Program, dry_server: ForkServer, tmp_path: Path) -> None:
    """The profile's machine's, unless another is named: a line says whose it is, once."""
    file = tmp_path / "one.toml"
    file.write_text(to_toml(replace(profile(PROFILE), host=1 << 30)))
    code = """
    try:
        kept = [torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(3)]
        print(json.dumps("enough"))
    except RuntimeError as error:
        print(json.dumps(str(error).splitlines()[0]))
    """
    assert "out of memory" in dry(code, profile=str(file))
    assert dry(code, profile=str(file), host_memory="2G") == "enough"
    assert dry(code) == "enough"
    settings = environment({**DRY, "SIMCUDA_PROFILE": str(file)})
    program = ["-c", "import torch, json\n" + textwrap.dedent(2 * code)]
    said = dry_server.run(program, [], settings, 120, "device_fork:ready").stderr
    assert said.splitlines() == [
        f"simcuda: {512 << 20} bytes of pinned host memory are refused because {1 << 30} of "
        f"{1 << 30}, which the profile's machine has, are in use; give more with --host-memory"
    ]


@pytest.mark.slow
def test_true_sizes_take_seconds_and_no_memory(dry: Program) -> None:
    code = (
        MODELS
        + """
    import resource, time
    begin = time.monotonic()
    x, y = torch.empty(64, 3, 224, 224), torch.zeros(64, dtype=torch.long)
    train(models.ResNet50(), x, y, SGD, 2)
    resnet = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    train(models.WORKLOADS["gpt2"].build(1), *models._text(4, 1), torch.optim.AdamW, 2)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([resnet, torch.cuda.max_memory_allocated(), used, time.monotonic() - begin]))
    """
    )
    resnet, gpt, used, seconds = dry(code, str(TOOLS))
    assert 5 << 30 < resnet < 7 << 30
    assert 10 << 30 < gpt < 20 << 30
    assert used < 4 << 30
    assert seconds < 60


def test_what_does_not_fit_is_out_of_memory(dry: Program) -> None:
    """ResNet-50 on an image of 7500 x 7500: on 32 GiB, and its peak where nothing limits it."""
    code = (
        MODELS
        + """
    try:
        x = torch.empty(1, 3, 7500, 7500, device="cuda")
        train(models.ResNet50(), x, torch.zeros(1, dtype=torch.long), SGD, 2)
        print(json.dumps(torch.cuda.max_memory_allocated()))
    except torch.OutOfMemoryError as error:
        print(json.dumps(str(error)))
    """
    )
    assert "GPU 0 has a total capacity of 31.50 GiB" in dry(code, str(TOOLS))
    assert dry(code, str(TOOLS), memory="128G") / (1 << 30) == pytest.approx(90.8, abs=0.1)


def test_a_device_can_be_smaller_or_several(dry: Program) -> None:
    code = "print(json.dumps([torch.cuda.device_count(), torch.cuda.mem_get_info(1)[1]]))"
    assert dry(code, memory="2G", devices="2") == [2, 2 << 30]


def test_expandable_segments_have_nothing_behind_them(dry: Program) -> None:
    code = """
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    x = torch.empty(1 << 30, device="cuda")
    del x
    torch.cuda.empty_cache()
    print(json.dumps([torch.cuda.max_memory_allocated(), device.used]))
    """
    assert dry(code) == [4 << 30, 0]


# ---- values


def test_values_are_zero(dry: Program) -> None:
    code = """
    x = torch.ones(3, 3, device="cuda")
    big = torch.ones(1 << 16, device="cuda")
    values = [x.sum().item(), x.tolist()[0], big.cpu().sum().item()]
    print(json.dumps([*values, bool(x.any()), torch.equal(x, x)]))
    """
    assert dry(code) == [0, [0, 0, 0], 0, False, False]


READS = """
    import contextlib, io, re
    scaler, w = torch.amp.GradScaler(), torch.nn.Parameter(torch.ones(2, device="cuda"))
    optimiser = torch.optim.SGD([w], 0.1)

    def train():
        for _ in range(2):
            scaler.scale(w.sum()).backward()
            scaler.step(optimiser)
            scaler.update()
            if w.sum() > 3:
                pass
            w.tolist()
        torch.equal(w, w)
        scaler.get_scale()
        w.sum().cpu()
        with torch.autograd.graph.save_on_cpu():
            (w.sum() * w.sum()).backward()
        assert str(w.data) == "tensor([0., 0.], device='cuda:0')"

    first = train.__code__.co_firstlineno
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            train()
        except NotImplementedError as error:
            print(error, file=sys.stderr)
    lines = re.findall('File ".*", line (.*) in train reads a value', said.getvalue())
    print(json.dumps([int(line) - first for line in lines]))
    """


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "lines"), [("report", [5, 7, 8, 9, 10]), ("error", [5]), ("off", [])]
)
def test_a_line_that_reads_a_value_is_named_once(
    dry: Program, values: str, lines: list[int]
) -> None:
    assert dry(READS, values=values) == lines


def test_a_module_of_torchs_that_reads_a_value_is_named_where_it_is_used(dry: Program) -> None:
    """Not the moves of modules, which copy their numbers one by one."""
    code = """
    import contextlib, io
    layer = torch.nn.BatchNorm1d(3, momentum=None).cuda()

    def train():
        with contextlib.suppress(ZeroDivisionError):
            layer(torch.ones(2, 3, device="cuda"))
        layer.cpu().cuda()

    with contextlib.redirect_stderr(io.StringIO()) as said:
        train()
    print(json.dumps([said.getvalue(), train.__code__.co_firstlineno]))
    """
    said, first = dry(code)
    assert f"line {first + 2} in train reads a value" in said and said.count("simcuda:") == 1


def test_what_needs_values_is_refused(dry: Program) -> None:
    code = """
    import os
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
    except NotImplementedError as error:
        print(json.dumps(str(error)))
    """
    said = dry(code)
    assert "refuses: DistributedDataParallel, because its processes agree by values" in said
    assert "; run the model without it, in one process" in said


def test_nccl_is_refused(dry: Program) -> None:
    code = """
    import torch.distributed as distributed
    store = distributed.HashStore()
    try:
        distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        distributed.all_reduce(torch.ones(1, device="cuda"))
    except RuntimeError as error:
        print(json.dumps(str(error)))
    """
    assert re.search("ncclGet(Last|)Error(String|): stand-in of the simulated device", dry(code))


def test_nested_tensors(dry: Program) -> None:
    """Most of their operators are made of ordinary ones; attention has a kernel of its own."""
    code = """
    make = lambda layout: torch.nested.nested_tensor(
        [torch.ones(3, 4), torch.ones(5, 4)], layout=layout, device="cuda")
    jagged = torch.nn.functional.linear(make(torch.jagged) * 2, torch.ones(6, 4, device="cuda"))
    strided = make(torch.strided) * 2
    try:
        torch.nn.functional.scaled_dot_product_attention(strided, strided, strided)
        said = ""
    except RuntimeError as error:
        said = str(error)
    print(json.dumps([list(jagged.values().shape), strided.size(0), said]))
    """
    jagged, count, said = dry(code)
    assert jagged == [8, 6] and count == 2
    assert "the simulated device refuses: kernel launch" in said and "add_padding" in said


def test_more_shapes_than_are_kept(dry: Program) -> None:
    code = """
    x = torch.empty(1100, device="cuda")
    sizes = [len(x[:n] + 1) for n in range(1100)] + [len(x[:3] + 1)]
    print(json.dumps(sizes))
    """
    assert dry(code) == [*range(1100), 3]


def test_a_size_that_depends_on_data_is_refused_by_name(dry: Program) -> None:
    code = """
    x, said = torch.ones(4, 5, device="cuda"), []
    picked, counted = lambda x: x[x > 0], lambda x: x.long()[0].bincount()
    for function in (torch.nonzero, torch.unique, picked, counted):
        try:
            function(x)
        except NotImplementedError as error:
            said.append(str(error))
    print(json.dumps(said))
    """
    nonzero, unique, index, bincount = dry(code)
    assert "refuses: aten::nonzero, because the size of its result depends on data" in nonzero
    assert nonzero.endswith("--assume nonzero=...")
    assert "aten::_unique2" in unique and unique.endswith("unique=...")
    assert "aten::index with a mask" in index
    assert bincount.endswith("--assume bincount=...")


def test_a_size_can_be_declared(dry: Program) -> None:
    code = """
    x = torch.ones(4, 5, device="cuda")
    whole = x[0].long()
    results = [
        x.nonzero(), x[x > 0], torch.masked_select(x, x > 0), x[x[:, 0] > 0], x.unique(),
        *x.unique(return_inverse=True, return_counts=True), x.unique(dim=0),
        torch.unique_consecutive(x), whole.bincount(), whole.bincount(minlength=20),
        whole.repeat_interleave(whole), whole.repeat_interleave(whole, output_size=7),
    ]
    print(json.dumps([list(r.shape) for r in results]))
    """
    assert dry(code, assume="nonzero=0.5,unique=0.25,bincount=8,repeat_interleave=3") == [
        [10, 2], [10], [10], [2, 5], [5], [5], [4, 5], [5], [1, 5], [5], [8], [20], [15], [7],
    ]  # fmt: skip


def test_an_operator_without_a_shape_is_refused_by_name(dry: Program) -> None:
    code = """
    try:
        torch.ones(2, 2, device="cuda").to_sparse()
    except NotImplementedError as error:
        print(json.dumps(str(error)))
    """
    said = dry(code)
    assert "refuses: operator aten::_to_sparse, because it has no kernel for Meta" in said
    assert 'torch.library.impl("aten::_to_sparse", "Meta")' in said


def test_an_embedding_with_a_sparse_gradient_is_refused_where_it_is_used(dry: Program) -> None:
    """In the backward pass no line of the program is known. Without gradients nothing is sparse."""
    code = """
    def use(layer):
        return layer(torch.zeros(2, 3, dtype=torch.long, device="cuda"))

    said, first = [], use.__code__.co_firstlineno
    layers = [make(9, 4, sparse=sparse).cuda() for sparse in (True, False)
              for make in (torch.nn.Embedding, torch.nn.EmbeddingBag)]
    for layer in layers:
        try:
            use(layer).sum().backward()
            said.append(list(layer.weight.grad.shape))
        except NotImplementedError as error:
            said.append(str(error).replace(f"line {first + 1} in use", "its line"))
    with torch.no_grad():
        said += [list(use(layer).shape) for layer in layers]
    print(json.dumps(said))
    """
    embedding, bag, *shapes = dry(code)
    assert shapes == [[9, 4], [9, 4], [2, 3, 4], [2, 4], [2, 3, 4], [2, 4]]
    for said, name in ((embedding, "embedding"), (bag, "embedding_bag")):
        assert said.startswith(f"the dry device refuses: {name} with sparse=True, at File")
        assert "its line, because its gradient is a sparse tensor" in said
        assert "give sparse=False" in said


def test_an_empty_out_gets_no_size_from_nowhere(dry: Program) -> None:
    """`out=` of the right size keeps it; an empty one gets the result's, which nobody knows."""
    code = """
    x, said = torch.ones(4, 4, device="cuda"), []
    empty = lambda **how: torch.empty(0, device="cuda", **how)
    for function in (
        lambda: torch.nonzero(x, out=empty(dtype=torch.long)),
        lambda: torch.masked_select(x, x > 0, out=empty()),
        lambda: torch.linalg.lstsq(x, x),
    ):
        try:
            said.append(list(function()[0].shape))
        except NotImplementedError as error:
            said.append(str(error))
    kept = torch.masked_select(x, x > 0, out=torch.empty(16, device="cuda"))
    print(json.dumps([*said, list(kept.shape)]))
    """
    nonzero, select, lstsq, kept = dry(code)
    assert "refuses" in nonzero and "aten::nonzero" in nonzero
    assert "refuses" in select and "aten::masked_select" in select
    assert "refuses" in lstsq and "aten::linalg_lstsq" in lstsq
    assert kept == [16]


def test_a_shape_can_be_registered(dry: Program) -> None:
    code = """
    sampled = lambda: torch._sample_dirichlet(torch.ones(3, device="cuda"))
    try:
        sampled()
    except NotImplementedError as error:
        said = str(error)
    like = lambda x, generator=None: torch.empty_like(x)
    torch.library.impl("aten::_sample_dirichlet", "Meta", like)
    print(json.dumps([said, list(sampled().shape)]))
    """
    said, shape = dry(code)
    assert "aten::_sample_dirichlet" in said and shape == [3]


def test_what_only_a_kernel_would_refuse_is_taken(dry: Program) -> None:
    code = """
    x = torch.ones(4, device="cuda")
    results = [
        x.to(torch.float8_e5m2).sum(), x[:1].expand(4).add_(1),
        x[torch.tensor([9], device="cuda")],
    ]
    print(json.dumps([list(r.shape) for r in results]))
    """
    assert dry(code) == [[], [4], [1]]


def test_a_tensor_that_is_not_dense_is_refused_by_name(dry: Program) -> None:
    code = """
    said = []
    at, values = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
    coo = torch.sparse_coo_tensor(at, values, (3, 3)).cuda()
    csr = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), at[0], values, (2, 2)).cuda()
    for work in (coo.to_dense, coo.coalesce, lambda: csr @ torch.ones(2, device="cuda")):
        try:
            work()
        except NotImplementedError as error:
            said.append(str(error))
    print(json.dumps(said))
    """
    said = dry(code)
    assert len(said) == 3
    assert all("the dry device refuses: aten::" in one for one in said), said
    assert all("because it has shapes of dense tensors only" in one for one in said)


def test_attention_without_gradients_has_its_shape(dry: Program) -> None:
    code = """
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16).cuda().eval()
    with torch.no_grad():
        print(json.dumps(list(layer(torch.ones(3, 2, 8, device="cuda")).shape)))
    """
    assert dry(code) == [3, 2, 8]


def test_a_graph_is_refused(dry: Program) -> None:
    """And nothing else: the program goes on on its stream, and its allocator is as it was."""
    code = """
    def graphed():
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            pass

    said, before = [], torch.cuda.current_stream()
    for capture in (graphed, torch.cuda.CUDAGraph().capture_begin):
        try:
            capture()
        except NotImplementedError as error:
            said.append(str(error))
    pool = torch.cuda.MemPool()
    del pool  # frees what nobody uses, which torch refuses within a capture
    print(json.dumps([said, torch.cuda.current_stream() == before]))
    """
    said, same = dry(code)
    assert len(said) == 2 and same
    assert all("refuses: the capture of a CUDA graph, because" in one for one in said)


@pytest.mark.parametrize(("name", "flash"), [(PROFILE, False), ("a100-80gb-pcie4", True)])
def test_the_capability_chooses_the_attention(dry: Program, name: str, flash: bool) -> None:
    code = """
    q = torch.empty(2, 4, 128, 64, device="cuda", dtype=torch.half, requires_grad=True)
    choice = torch._fused_sdp_choice(q, q, q)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    print(json.dumps([choice, torch.cuda.get_device_capability(), list(q.grad.shape)]))
    """
    choice, capability, grad = dry(code, profile=name)
    assert (choice == 1) == flash
    assert capability == ([8, 0] if flash else [7, 0])
    assert grad == [2, 4, 128, 64]


# ---- time

TIMED = """
    def timed(work):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        assert not end.query()
        end.synchronize()
        assert end.query()
        return begin.elapsed_time(end)

    main = torch.cuda.current_stream()
    sides = [torch.cuda.Stream() for _ in range(2)]
    device_memory = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)

    def on(stream, work):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            work()
        main.wait_stream(stream)

    come = lambda: device_memory.copy_(host, non_blocking=True)
    leave = lambda: host.copy_(device_memory, non_blocking=True)
    sleep = lambda: torch.cuda._sleep(50_000_000)
    """
COPY = (1 << 30) / 15.75e9 * 1e3  # milliseconds


def test_kernels_take_what_the_profile_says(dry: Program) -> None:
    code = (
        TIMED
        + """
    a, half = torch.empty(8192, 8192, device="cuda"), torch.empty(8192, 8192, device="cuda").half()
    x, y = torch.empty(1 << 28, device="cuda"), torch.empty(1 << 28, device="cuda")
    w = torch.empty(64, 64, 3, 3, device="cuda")
    image = torch.empty(8, 64, 512, 512, device="cuda")
    works = [
        lambda: a @ a, lambda: half @ half, lambda: torch.add(x, x, out=y), lambda: x.add_(1),
        lambda: torch.nn.functional.conv2d(image, w, padding=1), sleep, come, leave,
    ]
    print(json.dumps([timed(work) for work in works]))
    """
    )
    flops, conv = 2 * 8192**3, 2 * 8 * 64 * 512 * 512 * 64 * 9
    expected = [
        flops / 14e12, flops / 112e12, 2 * (1 << 30) / 900e9, 2 * (1 << 30) / 900e9, conv / 14e12,
        0.05, COPY / 1e3, COPY / 1e3,
    ]  # fmt: skip
    assert dry(code) == pytest.approx([1e3 * seconds for seconds in expected], rel=0.01)


def test_a_copy_reads_an_expanded_dimension_once(dry: Program) -> None:
    code = (
        TIMED
        + """
    x = torch.empty(1 << 28, device="cuda")
    print(timed(lambda: x.copy_(x[:1].expand(1 << 28))))
    """
    )
    assert dry(code) == pytest.approx(1e3 * (1 << 30) / 900e9, rel=0.01)


def test_a_copy_to_another_device_takes_the_link(dry: Program) -> None:
    code = """
    x, y = (torch.empty(1 << 28, device=f"cuda:{i}") for i in range(2))
    before = device.times()
    y.copy_(x)
    for i in range(2):
        torch.cuda.synchronize(i)
    after = device.times()
    print(json.dumps([after[k] - before[k] for k in ("compute", "out")]))
    """
    assert dry(code, devices="2") == [0, pytest.approx(COPY * 1e6, rel=0.01)]


def test_what_is_set_for_tf32_counts(dry: Program) -> None:
    code = (
        TIMED
        + """
    a, times = torch.empty(8192, 8192, device="cuda"), []
    for allowed in (False, True, False):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        times.append(timed(lambda: a @ a))
    print(json.dumps(times))
    """
    )
    exact, fast = (2e3 * 8192**3 / rate for rate in (19.5e12, 156e12))
    assert dry(code, profile="a100-80gb-pcie4") == pytest.approx([exact, fast, exact], rel=0.03)


def test_streams_overlap_as_their_units_allow(dry: Program) -> None:
    code = (
        TIMED
        + """
    def both(first, second):
        for side in sides:
            side.wait_stream(main)
        for side, work in zip(sides, (first, second)):
            with torch.cuda.stream(side):
                work()
        for side in sides:
            main.wait_stream(side)

    pairs = [(come, leave), (come, come), (come, sleep), (sleep, sleep)]
    print(json.dumps([timed(lambda: both(*pair)) for pair in pairs]))
    """
    )
    assert dry(code) == pytest.approx([COPY, 2 * COPY, COPY, 100], rel=0.01)


def test_the_host_runs_ahead_and_waits(dry: Program) -> None:
    code = (
        TIMED
        + """
    torch.cuda.synchronize()
    before = device.times()
    sleep()
    issued = device.times()
    torch.cuda.synchronize()
    done = device.times()
    value = device_memory[0].item()
    print(json.dumps([{k: t[k] - before[k] for k in t} for t in (issued, done)]))
    """
    )
    issued, done = dry(code)
    assert issued["now"] < 1e5 and issued["waited"] == 0
    assert done["now"] == pytest.approx(50e6, rel=0.01)
    assert done["waited"] == done["now"] - issued["now"]
    assert done["compute"] == 50_000_000


def test_to_synchronise_what_is_done_takes_no_time(dry: Program) -> None:
    """Nor does it for a stream with nothing pending while another is busy. Only a blocking one
    is behind the legacy default stream, as CUDA has it."""
    code = (
        TIMED
        + """
    import ctypes
    runtime, blocking = ctypes.CDLL(None), ctypes.c_void_p()
    assert runtime.cudaStreamCreate(ctypes.byref(blocking)) == 0
    side, event = torch.cuda.Stream(), torch.cuda.Event()

    def took(*waits):
        before = device.times()
        for wait in waits:
            wait()
        return [device.times()[k] - before[k] for k in ("now", "waited")]

    torch.cuda.synchronize()
    event.record()
    event.synchronize()
    waits = (torch.cuda.synchronize, torch.cuda.current_stream().synchronize, side.synchronize,
             event.synchronize, lambda: runtime.cudaStreamSynchronize(blocking))
    idle = took(*waits)
    sleep()
    beside = took(side.synchronize, event.synchronize)
    behind = took(lambda: runtime.cudaStreamSynchronize(blocking))
    print(json.dumps([idle, beside, behind]))
    """
    )
    idle, beside, behind = dry(code)
    assert idle == beside == [0, 0]
    assert behind == [pytest.approx(50e6, rel=0.01)] * 2


def test_a_blocking_copy_holds_the_host_up(dry: Program) -> None:
    code = (
        TIMED
        + """
    before = device.times()["now"]
    device_memory.copy_(host)
    print(device.times()["now"] - before)
    """
    )
    assert dry(code) == pytest.approx(COPY * 1e6, rel=0.01)


def test_allocating_costs_time(dry: Program) -> None:
    code = """
    def cost(work):
        before = device.times()["now"]
        kept.append(work())
        return device.times()["now"] - before

    kept = [torch.empty(1, device="cuda")]
    big = lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    pinned = lambda: torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    print(json.dumps([cost(big), cost(lambda: torch.empty(8, device="cuda")), cost(pinned)]))
    """
    big, small, pinned = dry(code)
    assert (big, small) == (100_000, 0)
    assert pinned == pytest.approx(1e9 * (1 << 30) / 4e9, rel=0.01)


# ---- the program


@pytest.mark.slow
def test_a_child_that_starts_elsewhere_has_the_same_profile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.toml").write_text(to_toml(profile("h100-80gb-pcie5")))
    code = """
    import subprocess, sys
    ask = "import torch; print(torch.cuda.get_device_capability())"
    subprocess.run([sys.executable, "-c", ask], cwd="/", check=True)
    """
    monkeypatch.chdir(tmp_path)
    done = run(code, env={"SIMCUDA_DRY": "1", "SIMCUDA_PROFILE": "one.toml"})
    assert done.stdout == "(9, 0)\n", done.stderr


TRAIN = """
    import torch
    x = torch.ones(4, device="cuda")
    print(x.sum().item(), torch.cuda.get_device_capability())
    """


def test_a_program_runs_dry(run: Run) -> None:
    done = run(TRAIN, "--dry", "--profile", "h100-80gb-pcie5")
    assert done.stdout == "0.0 (9, 0)\n", done.stderr
    assert "dry CUDA device, h100-80gb-pcie5 (of data sheets), 79.5 GiB: nothing is" in done.stderr


def test_a_dry_program_must_say_what_it_stands_for(run: Run) -> None:
    done = run(TRAIN, "--dry")
    assert done.returncode == 2
    assert "no device can be dry without a profile" in done.stderr
    assert "give --profile with one of a100-80gb-pcie4" in done.stderr


def test_races_are_found_dry(run: Run) -> None:
    code = """
    import simcuda
    import torch
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.fill_(2)
    side.synchronize()
    torch.cuda.synchronize()
    y = x + 1
    simcuda.device.clear_races()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(y)
    assert not simcuda.device.races()
    """
    done = run(code, "--dry", "--profile", PROFILE, "--order", "report")
    assert done.returncode == 0, done.stderr
    assert "RACE aten::fill_" in done.stderr and "aten::fill_" in done.stderr


def test_a_program_that_polls_gets_there(dry: Program) -> None:
    code = (
        TIMED
        + """
    event = torch.cuda.Event()
    sleep()
    event.record()
    before, polls = device.times()["now"], 1
    while not event.query():
        polls += 1
        assert polls > 100 or device.times()["now"] == before
    print(json.dumps([polls, device.times()["waited"]]))
    """
    )
    polls, waited = dry(code)
    assert polls == pytest.approx(50_000 + 100, rel=0.01) and waited == 0
