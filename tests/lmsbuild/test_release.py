# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import zipfile
from email.parser import HeaderParser
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from lmsbuild_conda import give_conda
from lmsbuild_conda import make as make_small
from lmsbuild_engine import Engine
from lmsbuild_processes import run
from lmsbuild_wheels import PYTHON
from lmsbuild_world import World, leave, small_disk, write

from lmsbuild.base.console import Console
from lmsbuild.base.errors import (
    ConfigError,
    EngineError,
    FileError,
    RebuildError,
    SignError,
    UsageError,
)
from lmsbuild.base.hashing import sha256_file
from lmsbuild.places.imagecontents import Contents, PythonPackage, SystemPackage
from lmsbuild.series.series import series_of
from lmsbuild.ship import condasbom, imagesbom, pipeline, sbom
from lmsbuild.ship import release as releases
from lmsbuild.ship.choices import Choices
from lmsbuild.ship.release import Release, explain, read, rebuild, release
from lmsbuild.wheel import wheelfile

CHOICES = Choices("git", None, None, PYTHON, None, 2)


@pytest.fixture
def made(world: World, official: Path, console: Console) -> Release:
    return release(world.target, CHOICES, console)


def _json(folder: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / name).read_text())
    return found


def test_everything_is_in_one_folder(made: Release, world: World) -> None:
    assert {artefact.kind for artefact in made.artefacts} == {
        "patch", "wheel", "manifest", "sbom", "notes",
    }  # fmt: skip
    done = subprocess.run(["sha256sum", "--strict", "-c", releases.SUMS], cwd=made.folder)
    assert done.returncode == 0
    named = {line.split()[1] for line in (made.folder / releases.SUMS).read_text().splitlines()}
    assert named == {file.name for file in made.folder.iterdir()} - {releases.SUMS}
    notes = (made.folder / releases.NOTES).read_text()
    for patch in world.project.patches.rglob("*.patch"):
        assert "Subject: " in patch.read_text()
        assert patch.read_text().split("Subject: [PATCH] ")[1].splitlines()[0] in notes
    assert not list(made.folder.parent.glob(".release-*"))


def test_signed_checksums(made: Release, world: World, tmp_path: Path) -> None:
    """Whoever has the public key can tell; signed again, the release is unchanged."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    command = ["release", "v1.0", "--source", "git", "--python", PYTHON, "--no-conda"]
    code, out, err = run(*command, "--sign", str(key))
    assert code == 0, err
    assert f"unchanged {made.folder}" in out and releases.SIGNATURE in out
    signers = tmp_path / "signers"
    signers.write_text(f"lms {key.with_suffix('.pub').read_text()}")

    def verified() -> bool:
        sums = (made.folder / releases.SUMS).read_bytes()
        signature = str(made.folder / releases.SIGNATURE)
        words = ["-f", str(signers), "-I", "lms", "-n", "file", "-s", signature]
        done = subprocess.run(["ssh-keygen", "-Y", "verify", *words], input=sums)
        return done.returncode == 0

    assert verified()
    assert run(*command)[0] == 0 and run(*command, "--sign", str(key))[0] == 0
    sums = made.folder / releases.SUMS
    text = sums.read_text()
    sums.write_text(text.replace("a", "b", 1))
    assert not verified()
    sums.write_text(text)
    (made.folder / releases.SIGNATURE).unlink()
    key.write_text("no key")
    code, _, err = run(*command, "--sign", str(key))
    assert code == SignError.exit_code and "ssh-keygen says" in err
    assert not (made.folder / releases.SIGNATURE).exists()


def test_bill_of_materials(made: Release, world: World) -> None:
    file = next(made.folder.glob("*.cdx.json"))
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(file.read_text()) is None
    assert validator.validate_str(file.read_text().replace('"components"', '"parts"')) is not None
    about = json.loads(file.read_text())
    root = about["metadata"]["component"]
    assert root["pedigree"]["ancestors"][0]["purl"] == "pkg:pypi/alpha@1.0"
    diffs = [patch["diff"]["text"] for patch in root["pedigree"]["patches"]]
    assert all(diff["encoding"] == "base64" for diff in diffs)
    assert sorted(base64.b64decode(diff["content"]) for diff in diffs) == sorted(
        patch.data for patch in series_of(world.target).patches
    )
    names = {component["name"] for component in about["components"]}
    assert {"alpha/lib/libcore.so", "compiler", "linker"} <= names
    wheel = next(a for a in made.artefacts if a.kind == "wheel")
    assert root["hashes"] == [{"alg": "SHA-256", "content": wheel.sha256}]


def test_what_scanners_match(tmp_path: Path) -> None:
    """A version is one version, never a range, and a purl has it."""
    wheel = tmp_path / "alpha-1.0-py3-none-any.whl"
    lines = ["a_b==1.5", "c>=2,<3", "d==4.*", "e===7", "f ; python_version < '3'"]
    text = "".join(f"Requires-Dist: {line}\n" for line in [*lines, "g ; extra == 'x'"])
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("alpha-1.0.dist-info/METADATA", f"Name: alpha\nLicense: MIT\n{text}")
    found = {one.name: one for one in sbom._requirements(wheel)}
    assert {name: (one.version, str(one.purl)) for name, one in found.items()} == {
        "a-b": ("1.5", "pkg:pypi/a-b@1.5"), "c": (None, "pkg:pypi/c"), "d": (None, "pkg:pypi/d"),
        "e": ("7", "pkg:pypi/e@7"), "f": (None, "pkg:pypi/f"),
    }  # fmt: skip
    assert [p.value for p in found["c"].properties] == ["<3,>=2"]
    assert wheelfile.licence(wheel) == "MIT"
    for licence, said in (
        ("BSD-3-Clause AND Apache-2.0", {"expression": "BSD-3-Clause AND Apache-2.0"}),
        ("Apache-2.0", {"license": {"id": "Apache-2.0"}}),
        ("Like that of Perl", {"license": {"name": "Like that of Perl"}}),
    ):
        bom = Bom(components=[sbom.package(wheel.name, "0" * 64, licence=licence)])
        [component] = json.loads(sbom.written(bom))["components"]
        assert component["licenses"] == [said]


@pytest.mark.parametrize(
    ("lines", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0", "MIT OR Apache-2.0"),
        ("License: Apache 2.0", "Apache-2.0"),
        ("License: The Apache License, Version 2.0", "Apache-2.0"),
        ("License: NVIDIA Proprietary Software", "LicenseRef-NVIDIA-Proprietary"),
        ("License: Like that of Perl", "Like that of Perl"),
        ("Classifier: License :: OSI Approved :: MIT License\nClassifier: Topic :: X :: Y", "MIT"),
        ("License: A long text\n  of two lines\nClassifier: License :: OSI Approved :: MIT License",
         "MIT"),
        ("Classifier: Topic :: X", ""),
    ],
)  # fmt: skip
def test_licences_of_packages(lines: str, licence: str) -> None:
    assert wheelfile.licence_of(HeaderParser().parsestr(f"Name: a\n{lines}\n")) == licence


def test_licences_of_headers_and_libraries(made: Release, world: World, tmp_path: Path) -> None:
    wheel = next(made.folder.glob("*.whl"))
    manifest = json.loads(next(made.folder.glob("*.manifest.json")).read_text())
    header = "cuda_x-1.0-py3-none-any.whl"
    manifest["inputs"][header] = "2" * 64
    said = {header: "LicenseRef-NVIDIA-Proprietary"}
    text = sbom.render(world.target, series_of(world.target), wheel, manifest, said)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {one["bom-ref"]: one for one in json.loads(text)["components"]}
    [stated] = components[header]["licenses"]
    assert "LicenseRef-NVIDIA-Proprietary" in json.dumps(stated)


def test_bill_of_materials_of_a_conda_package(tmp_path: Path) -> None:
    files = {"lib/liba.so.1": "library\n", "lib/a.txt": "text\n"}
    depends = ["python >=3.11,<3.12.0a0", "numpy ==1.26.4", "beta ==2.0 lms_*", "__glibc >=2.17"]
    path = make_small(tmp_path, "alpha", files=files, depends=depends, license="BSD-3-Clause")
    wheel = Path("alpha-1.0-cp311-cp311-linux_x86_64.whl")
    text = condasbom.render(path, {"wheel_sha256": "1" * 64}, wheel)
    assert text == condasbom.render(path, {"wheel_sha256": "1" * 64}, wheel)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    about = json.loads(text)
    root = about["metadata"]["component"]
    assert root["purl"] == "pkg:conda/alpha@1.0?build=0&subdir=linux-64&type=conda"
    assert root["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert root["hashes"][0]["content"] == sha256_file(path)
    assert root["pedigree"]["ancestors"][0]["purl"] == "pkg:pypi/alpha@1.0"
    components = {one["name"]: one for one in about["components"]}
    assert sorted(components) == ["__glibc", "beta", "lib/liba.so.1", "numpy", "python"]
    assert components["numpy"]["purl"] == "pkg:conda/numpy@1.26.4"
    assert components["beta"]["version"] == "2.0"
    assert (
        "version" not in components["python"] and components["python"]["purl"] == "pkg:conda/python"
    )


def test_the_same_release_is_left_alone(made: Release, world: World, console: Console) -> None:
    before = made.folder.stat().st_mtime_ns
    again = release(world.target, CHOICES, console)
    assert again.reused and again.artefacts == made.artefacts
    assert made.folder.stat().st_mtime_ns == before


def test_another_release_of_the_same_version_is_refused(
    made: Release, world: World, console: Console
) -> None:
    notes = made.folder / releases.NOTES
    notes.write_text("changed\n")
    with pytest.raises(RebuildError, match=r"NOTES\.md differ"):
        release(world.target, CHOICES, console)
    assert notes.read_text() == "changed\n"
    assert not list(made.folder.parent.glob(".release-*"))


def test_what_a_killed_run_left_goes(made: Release, world: World, console: Console) -> None:
    shutil.rmtree(made.folder)
    left = made.folder.parent / ".release-killed"
    write(left, {"files/half": "half"})
    again = release(world.target, CHOICES, console)
    assert not left.exists() and not again.reused
    assert again.artefacts == made.artefacts


def test_full_disk_leaves_no_release(world: World, official: Path, console: Console) -> None:
    with small_disk(world.folder / "disk", "64k") as disk:
        leave(disk, 16_384)
        with pytest.raises(FileError, match=rf"{disk}.* No space left on device"):
            release(world.target, CHOICES, console, disk / "releases")
        assert [path.name for path in (disk / "releases").iterdir()] == [".lock"]


def test_rebuilt_bit_for_bit(
    made: Release, world: World, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    real = pipeline.wheel

    def seen(*arguments: object, **options: object) -> object:
        path, built = real(*arguments, **options)  # type: ignore[arg-type]
        compiled.append(str(built.compiled))
        return path, built

    monkeypatch.setattr(releases, "wheel", seen)
    compared = rebuild(world.target, read(made.folder / releases.MANIFEST), CHOICES, console)
    assert len(compared) == 5 and all(one.same for one in compared)
    assert int(compiled[0]) > 0  # not taken from the cache
    manifest = next(made.folder.glob("*.manifest.json"))
    [wheel] = rebuild(world.target, read(manifest), CHOICES, console)
    assert wheel.same and wheel.name.endswith(".whl")


def test_a_difference_is_explained(made: Release, world: World, console: Console) -> None:
    recorded = read(made.folder / releases.MANIFEST)
    toml = world.tag_file
    toml.write_text(toml.read_text().replace('cxx_standard = "c++17"', 'cxx_standard = "c++14"'))
    with pytest.raises(RebuildError, match=r"table `overlay` in tag\.toml changed"):
        rebuild(world.target, recorded, CHOICES, console)


def test_explanations() -> None:
    old = {"lmsbuild": "1", "patches": {"a": "1", "b": "1"}, "members": {"m": "1"}}
    assert explain(old, old) == ["the inputs are equal, but the build is not reproducible"]
    new = {"lmsbuild": "2", "patches": {"a": "2", "c": "1"}, "members": {"m": "2"}}
    assert explain(old, new) == [
        "lmsbuild was 1 and is 2",
        "patch a was 1 and is 2",
        "patch b is gone",
        "patch c is new",
        "members of the wheel that differ for it: 1",
    ]
    assert explain(old, {**old, "members": {"m": "2"}})[1] == "member m was 1 and is 2"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"artefacts": [{"name": 1}]}', '{"wheel": 5}'])
def test_what_is_no_manifest_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "release.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"release\.json cannot be used"):
        read(file)


@pytest.mark.parametrize("where", ["artefacts", "wheel", "conda"])
def test_a_manifest_names_files_of_its_folder(made: Release, where: str, tmp_path: Path) -> None:
    about = json.loads((made.folder / releases.MANIFEST).read_text())
    if where == "artefacts":
        about[where][0]["name"] = "../../x"
    elif where == "wheel":
        about = json.loads(next(made.folder.glob("*.manifest.json")).read_text())
        about["wheel"]["name"] = "../../x"
    else:
        about[where] = {"../../x": {}}
    file = tmp_path / "release.json"
    file.write_text(json.dumps(about))
    with pytest.raises(ConfigError, match=r"release\.json cannot be used because .*'\.\./\.\./x'"):
        read(file)


OTHER_TYPES: list[dict[str, Any]] = [
    {"tag": ["v1.0"]}, {"tag": 5}, {"artefacts": 5}, {"artefacts": [5]}, {"conda": "x"},
    {"conda": {"a": 5}}, {"wheel": None}, {"schema": [1]},
    *({"wheel": {name: wrong}} for name, wrong in (
        ("python", 5), ("python", "../../x"), ("python", "--x"), ("cuda", ["0"]), ("cuda", 0),
        ("patches", None), ("toolchain", []), ("inputs", 5), ("members", None), ("wheel", 5),
    )),
]  # fmt: skip


def test_a_manifest_of_other_types(made: Release, tmp_path: Path) -> None:
    about: Any = _json(made.folder, releases.MANIFEST)
    texts = ["[" * 9999, '{"schema": NaN}']
    for change in OTHER_TYPES:
        wheel = change.get("wheel")
        one = {"wheel": {**about["wheel"], **wheel}} if isinstance(wheel, dict) else change
        texts.append(json.dumps(about | one))
    file = tmp_path / "release.json"
    for text in texts:
        file.write_text(text)
        code, _, err = run("rebuild", str(file), "--dry-run")
        assert code == ConfigError.exit_code, (text[-300:], err)
        assert "is no manifest of lmsbuild" in err, (text[-300:], err)


def test_what_is_added_is_the_users(world: World, official: Path, console: Console) -> None:
    """It is never written to, nothing takes its name, and what never ends is not read."""
    place = world.folder / "mine"
    write(place, dict.fromkeys(("SHA256SUMS", "release.json", "NOTES.md", "a/x", "b/x"), "mine"))
    os.mkfifo(place / "pipe")
    for files in (["SHA256SUMS"], ["release.json"], ["NOTES.md"], ["a/x", "b/x"], ["pipe"]):
        with pytest.raises(UsageError, match=r"cannot be a part of (the|a) release because"):
            release(world.target, CHOICES, console, more=[place / name for name in files])
    assert {path.read_text() for path in place.rglob("*") if path.is_file()} == {"mine"}
    done = release(world.target, CHOICES, console, more=[place / "a/x"])
    (place / "a/x").write_text("later")
    assert (done.folder / "x").read_text() == "mine"
    os.mkfifo(done.folder / "pipe")
    with pytest.raises(RebuildError, match=r"holds another release .*\bpipe\b"):
        release(world.target, CHOICES, console)


@pytest.mark.slow
def test_conda_packages_are_made_again(world: World, official: Path, console: Console) -> None:
    """Those of the release's own wheel; a difference is explained, and others are left alone."""
    give_conda(world)
    other = make_small(world.folder / "other", "beside")
    command = ["release", "v1.0", "--add", str(other), "--source", "git", "--python", PYTHON]
    assert run("apply", "v1.0", "--source", "git")[0] == 0
    code, out, err = run(*command, "--dry-run", "--json")
    assert code == 0, err
    planned = json.loads(out)
    assert not Path(planned["folder"]).exists()
    code, out, err = run(*command, "--json")
    assert code == 0, err
    assert [step["step"] for step in json.loads(out)["steps"]].count("wheel") == 1
    manifest = Path(json.loads(out)["folder"]) / releases.MANIFEST
    names, patterns = sorted(x.name for x in manifest.parent.iterdir()), sorted(planned["planned"])
    # Its platform is known when the wheel is there.
    assert len(names) == len(patterns) and all(map(fnmatchcase, names, patterns)), patterns
    packages = sorted(file.name for file in manifest.parent.glob("alpha*.conda"))
    assert len(packages) == 2 and {f"{name}.cdx.json" for name in packages} < set(names)
    code, out, err = run("rebuild", str(manifest), "--json")
    assert code == 0, err
    compared = [one["name"] for one in json.loads(out)["compared"]]
    assert set(packages) < set(compared) and other.name not in compared
    toml = world.framework_file
    toml.write_text(toml.read_text().replace('summary = "Alpha"', 'summary = "Beta"'))
    recipe = world.project.root / "conda-recipes" / "wheel.yaml.j2"
    recipe.write_text(recipe.read_text() + "\n# changed\n")
    code, _, err = run("rebuild", str(manifest))
    assert code == RebuildError.exit_code and "recipe wheel.yaml.j2 was" in err
    assert packages[0] in err and ".whl" not in err.splitlines()[-1]


def test_packages_and_images_are_part_of_it(world: World, official: Path, console: Console) -> None:
    package = world.folder / "alpha-1.0-lms_1.conda"
    package.write_bytes(b"a package")
    images = {"lmsbuild/alpha-v1.0:runtime": "sha256:" + "0" * 64}
    done = release(world.target, CHOICES, console, more=[package], images=[contents()])
    assert [a.bytes for a in done.artefacts if a.kind == "conda"] == [9]
    assert package.name in (done.folder / releases.SUMS).read_text()
    assert _json(done.folder, releases.MANIFEST)["images"] == images
    name = "lmsbuild_alpha-v1.0_runtime.cdx.json"
    assert [a.name for a in done.artefacts if a.kind == "image-sbom"] == [name]
    assert f"  {name}\n" in (done.folder / releases.SUMS).read_text()
    planned = release(world.target, CHOICES, console, images=[contents()], dry_run=True)
    assert name in planned.planned


def contents() -> Contents:
    return Contents(
        name="lmsbuild/alpha-v1.0:runtime", id="sha256:" + "0" * 64, digest="sha256:" + "0" * 64,
        created="2026-11-20T10:11:12.123456789Z", architecture="amd64",
        labels={"org.opencontainers.image.licenses": "BSD-3-Clause AND Apache-2.0"},
        distribution="debian", release="12",
        system=[SystemPackage("deb", "libc6", "2.36-9+deb12u9", "amd64")],
        python=[PythonPackage("Alpha_B", "1.0+lms.1", "Apache-2.0"), PythonPackage("b", "2", "")],
    )  # fmt: skip


def test_bill_of_materials_of_an_image() -> None:
    text = imagesbom.render(contents())
    assert text == imagesbom.render(contents())
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    about = json.loads(text)
    root = about["metadata"]["component"]
    assert root["type"] == "container" and root["version"] == contents().digest
    assert root["purl"].startswith("pkg:oci/alpha-v1.0@sha256:00")
    assert root["licenses"] == [{"expression": "BSD-3-Clause AND Apache-2.0"}]
    purls = {one["purl"]: one.get("licenses") for one in about["components"]}
    assert purls == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=amd64&distro=debian-12": None,
        "pkg:pypi/alpha-b@1.0%2Blms.1": [{"license": {"id": "Apache-2.0"}}],
        "pkg:pypi/b@2": None,
    }


@pytest.mark.net
@pytest.mark.default
def test_what_is_in_an_image(
    world: World, official: Path, debian: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    command = ["release", "v1.0", "--source", "git", "--python", PYTHON, "--no-conda", "--json"]
    code, out, err = run(*command, "--image", debian)
    assert code == 0, err
    folder = Path(json.loads(out)["folder"])
    about = _json(folder, imagesbom.name_of(debian))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(about)) is None
    components: Any = about["components"]
    purls = [one["purl"] for one in components]
    assert any(p.startswith("pkg:deb/debian/python3@3.") and "distro=debian-12" in p for p in purls)
    assert len(purls) > 50 and len(set(purls)) == len(purls)
    code, _, err = run(*command, "--image", "no-such-image:1")
    assert code == 33 and "has no such image; build it with" in err


def test_a_container_is_asked_for(
    world: World, official: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{world.folder}/nobody.sock")
    assert (
        pipeline.container_for(
            world.target, wanted=False, base_image=None, choices=CHOICES, console=console
        )
        is None
    )
    for wanted, image in ((True, None), (False, "debian:bookworm")):
        container = pipeline.container_for(
            world.target, wanted=wanted, base_image=image, choices=CHOICES, console=console
        )
        with pytest.raises(EngineError, match=r"nobody\.sock"):
            release(world.target, CHOICES, console, container=container)


@pytest.mark.parametrize("words", [["release"], ["release", "--no-conda"], ["wheel"]])
def test_a_dry_run_without_a_checkout_fetches_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("LMSBUILD_CACHE", str(world.folder / "work/cache"))
    give_conda(world)
    command, *options = words
    code, out, err = run(command, "v1.0", *options, "--python", PYTHON, "--dry-run", "--json")
    assert code == 0, err
    assert "alpha-1.0+lms.1-cp" in out
    assert {path.name for path in world.folder.glob("work/*")} <= {"logs"}
