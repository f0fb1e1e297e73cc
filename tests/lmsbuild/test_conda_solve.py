# SPDX-License-Identifier: Apache-2.0
"""Our packages beside those of other channels, as a client's solver (rattler) sees them.

The other channel is an index alone, whose records have the names, builds and constraints that
conda-forge's recipes give its packages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lmsbuild_world import REPOSITORY
from rattler import (
    BuildString,
    ChannelPriority,
    Gateway,
    GenericVirtualPackage,
    PackageName,
    Subdir,
    Version,
    solve,
)
from rattler.exceptions import SolverError

from lmsbuild.base.project import Project
from lmsbuild.conda.plan import Plan, companion_plan, framework_plan, own_plan
from lmsbuild.tags.frameworks import resolve

PYTHON = "3.11"
STRICT, FLEXIBLE = ChannelPriority.Strict, ChannelPriority.Disabled


@dataclass(frozen=True)
class Record:
    name: str
    version: str
    build: str = "0"
    depends: Sequence[str] = ()
    constrains: Sequence[str] = ()
    number: int = 0
    noarch: bool = field(default=False, kw_only=True)


def channel(place: Path, records: Sequence[Record]) -> str:
    """An index of the records, without the packages."""
    for subdir in ("linux-64", "noarch"):
        packages = {
            f"{one.name}-{one.version}-{one.build}.conda": {
                "name": one.name, "version": one.version, "build": one.build,
                "build_number": one.number, "depends": list(one.depends), "subdir": subdir,
                "constrains": list(one.constrains), "sha256": "0" * 64, "size": 1,
            }
            for one in records if one.noarch == (subdir == "noarch")
        }  # fmt: skip
        (place / subdir).mkdir(parents=True)
        index = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": packages}
        (place / subdir / "repodata.json").write_text(json.dumps(index))
    return place.as_uri()


# Of what wheels require, which is added to a package when it is made, what matters here.
REQUIRED = {
    "tensorflow": ["keras >=2.14.0,<2.15", "tensorflow-estimator >=2.14.0,<2.15", "numpy <2.0.0"],
    "torchvision": ["numpy", "pillow >=5.3.0,!=8.3.*"],
}


def of(plan: Plan) -> list[Record]:
    """A plan's package and metapackages."""
    depends = [*plan.depends, *REQUIRED.get(plan.name, [])]
    main = Record(plan.name, plan.version, plan.build, depends, plan.constrains, plan.number)
    metas = [
        Record(name, plan.version, plan.meta_build, pulls, noarch=True)
        for name, pulls in plan.metas.items()
    ]
    return [main, *metas]


def ours(project: Project) -> list[Record]:
    own = of(own_plan(project))
    records: list[Record] = [one for one in own if one.noarch]
    for label in ("pytorch:v2.6.0", "tensorflow:v2.14.1"):
        target = resolve(project, label)
        for cuda in target.tag.cuda:
            records += of(framework_plan(target.for_cuda(cuda), PYTHON, "linux-64"))
            for one in target.tag.companions:
                records += of(companion_plan(target.for_cuda(cuda), one, PYTHON, "linux-64"))
    return records


ABI = f"python_abi {PYTHON}.* *_cp311"
CUDA, TF = "cuda126_mkl_py311_h1_304", "cuda118py311h1_1"
FORGE = [
    Record("python", "3.11.9"), Record("python_abi", PYTHON, "5_cp311"), Record("numpy", "2.2.0"),
    Record("numpy", "1.26.4"), Record("cuda-version", "12.6"), Record("cuda-version", "11.8"),
    Record("pillow", "11.0.0"), Record("kaldi", "5.5"), Record("keras", "2.14.0"),
    # Its pytorch is split: libtorch's library lies in the prefix's lib.
    Record("libtorch", "2.6.0", "cuda126_mkl_h1_304", [], [
        "pytorch-cpu <0.0a0", "pytorch-gpu 2.6.0", "pytorch 2.6.0 cuda126_mkl_*_304"], 304),
    Record("libtorch", "2.7.0", "cuda126_mkl_h1_300", [], [
        "pytorch-cpu <0.0a0", "pytorch-gpu 2.7.0", "pytorch 2.7.0 cuda126_mkl_*_300"], 300),
    Record("pytorch", "2.6.0", CUDA, ["libtorch 2.6.0.* *_304", "__cuda", ABI, "numpy >=1.19,<3"], [
        "pytorch-cpu <0.0a0", "pytorch-gpu 2.6.0"], 304),
    Record("pytorch", "2.7.0", "cuda126_mkl_py311_h1_300", [
        "libtorch 2.7.0.* *_300", "__cuda", ABI, "numpy >=1.23,<3"], [
        "pytorch-cpu <0.0a0", "pytorch-gpu 2.7.0"], 300),
    Record("pytorch-gpu", "2.6.0", "cuda126_mkl_h1_304", ["pytorch 2.6.0 cuda*_mkl*304"], [], 304),
    Record("pytorch-gpu", "2.7.0", "cuda126_mkl_h1_300", ["pytorch 2.7.0 cuda*_mkl*300"], [], 300),
    Record("torchvision", "0.21.0", "cuda126_py311_h1_0", [
        "libtorch >=2.6.0,<2.7.0a0", "pytorch * cuda126*", "pytorch >=2.6.0,<2.7.0a0", "pillow"]),
    Record("torchaudio", "2.6.0", "cuda_126py311h1_0", [
        "kaldi", "pytorch * cuda*", "pytorch >=2.6.0,<2.7.0a0"]),
    # Of Python alone, it goes with any.
    Record("pytorch-lightning", "2.5.0", "pyhd8ed1ab_0", ["pytorch >=2.1.0"], noarch=True),
    Record("tensorflow-base", "2.14.0", TF, [ABI, "numpy >=1.26,<2"]),
    Record("tensorflow-estimator", "2.14.0", TF, [f"tensorflow-base 2.14.0 {TF}"]),
    Record("tensorflow", "2.14.0", TF, [
        f"tensorflow-base 2.14.0 {TF}", f"tensorflow-estimator 2.14.0 {TF}", "__cuda"]),
    Record("tensorflow-gpu", "2.14.0", TF, [f"tensorflow 2.14.0 {TF}"]),
]  # fmt: skip


@dataclass(frozen=True)
class Client:
    lms: str
    forge: str
    cache: Path

    def __call__(
        self,
        *specs: str,
        first: str = "lms",
        priority: ChannelPriority = STRICT,
        cuda: str = "12.6",
    ) -> dict[str, str]:  # fmt: skip
        """What is installed for the specs: version and build by name. Raises SolverError."""
        sources = [self.lms, self.forge] if first == "lms" else [self.forge, self.lms]
        virtual = [("__glibc", "2.36")] + ([("__cuda", cuda)] if cuda else [])
        found = asyncio.run(solve(
            sources, list(specs), gateway=Gateway(cache_dir=self.cache),
            platforms=[Subdir("linux-64"), Subdir("noarch")], channel_priority=priority,
            virtual_packages=[
                GenericVirtualPackage(PackageName(n), Version(v), BuildString("0"))
                for n, v in virtual
            ],
        ))  # fmt: skip
        return {one.name.normalized: f"{one.version} {one.build}" for one in found}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    place = tmp_path_factory.mktemp("channels")
    lms = channel(place / "lms", ours(Project(REPOSITORY)))
    return Client(lms, channel(place / "conda-forge", FORGE), place / "cache")


LMS_TORCH, LMS_TF = "2.6.0 lms_cu124py311_1", "2.14.1 lms_cpupy311_1"


def test_with_the_channel_first(client: Client) -> None:
    """What clients ask for of a framework is ours, with numpy, though the other has newer ones."""
    assert client("pytorch")["pytorch"] == LMS_TORCH
    found = client("pytorch-lms")
    assert found["pytorch"] == LMS_TORCH and found["numpy"] == "2.2.0 0"
    assert client("tensorflow-lms")["tensorflow"] == LMS_TF


def test_with_another_channel_first(client: Client) -> None:
    """`pytorch` is then stock, without a word; what has our name is ours, or refused with why."""
    for priority in (STRICT, FLEXIBLE):
        assert client("pytorch", first="forge", priority=priority)["pytorch"].startswith("2.7.0")
    assert client("pytorch", priority=FLEXIBLE)["pytorch"].startswith("2.7.0"), "it is newer"
    with pytest.raises(SolverError, match="due to strict channel priority not using this option"):
        client("pytorch-lms", first="forge")
    found = client("pytorch-lms", first="forge", priority=FLEXIBLE)
    assert found["pytorch"] == LMS_TORCH
    named = f"{client.lms}::pytorch"
    assert client(named, first="forge")["pytorch"] == LMS_TORCH


def test_compiled_for_another_pytorch(client: Client) -> None:
    """Of conda-forge, what is compiled against its libtorch is refused, and says so."""
    for priority in (STRICT, FLEXIBLE):
        with pytest.raises(SolverError, match=r"would constrain\s+└─ libtorch <0\.0a0"):
            client("pytorch-lms", "libtorch", priority=priority)
    stock = "torchvision * cuda126*"
    with pytest.raises(SolverError, match="torchvision"):
        client("pytorch-lms", stock)
    with pytest.raises(SolverError, match="torchvision"):
        client("pytorch-lms", stock, priority=FLEXIBLE)
    with pytest.raises(SolverError, match="torchaudio"):
        client("pytorch-lms", "torchaudio * cuda_126*", priority=FLEXIBLE)


@pytest.mark.parametrize("priority", [STRICT, FLEXIBLE])
def test_what_goes_beside_ours(client: Client, priority: ChannelPriority) -> None:
    """The channel's torchvision and torchaudio do, and what is of Python alone does."""
    found = client(
        "pytorch-lms", "torchvision", "torchaudio", "pytorch-lightning", priority=priority
    )
    assert found["pytorch"] == LMS_TORCH
    assert found["torchvision"] == "0.21.0 lms_cu124py311_1"
    assert found["torchaudio"] == "2.6.0 lms_cu124py311_1"
    assert "pytorch-lightning" in found and "libtorch" not in found


def test_tensorflow_without_the_others_files(client: Client) -> None:
    """conda-forge's estimator brings its TensorFlow, which has the files of ours: not both."""
    for priority in (STRICT, FLEXIBLE):
        found = client("tensorflow-lms", priority=priority)
        assert found["tensorflow-estimator"] == "2.14.0 lms_cpupy311_1"
        assert found["keras"] == "2.14.0 0" and found["numpy"] == "1.26.4 0"
        assert "tensorflow-base" not in found
    with pytest.raises(SolverError, match=r"tensorflow-base"):
        client("tensorflow-lms", f"tensorflow-estimator * {TF}", priority=FLEXIBLE)


def test_names_that_others_use(client: Client) -> None:
    """What asks for a framework for a GPU, or for all that IBM had, gets ours."""
    assert client("pytorch-gpu")["pytorch"] == LMS_TORCH
    found = client("tensorflow-gpu", cuda="11.8")
    assert found["tensorflow"] == "2.14.1 lms_cu118py311_1"
    found = client("powerai")
    assert found["pytorch"] == LMS_TORCH and found["tensorflow"] == LMS_TF


def test_without_a_gpu(client: Client) -> None:
    with pytest.raises(SolverError, match="__cuda >=12, for which no candidates were found"):
        client("pytorch-lms", cuda="")


def test_the_other_channel_alone_solves(client: Client) -> None:
    """So what is refused above is refused for ours."""
    found = client("torchvision", "torchaudio", "tensorflow-gpu", "numpy <2", first="forge")
    assert found["libtorch"].startswith("2.6.0") and "tensorflow-base" in found
