# SPDX-License-Identifier: Apache-2.0
"""How the one setting of a shared cache is told to sccache, ccache and Bazel. What these make of it
is in test_full.py."""

from __future__ import annotations

import pytest
from lmsbuild_processes import run
from lmsbuild_world import World
from test_full import describe

from lmsbuild.base.errors import OfflineError, UsageError
from lmsbuild.base.project import Project
from lmsbuild.places.sharedcache import VARIABLE, SharedCache, shared_cache
from lmsbuild.tags.frameworks import targets


def named(monkeypatch: pytest.MonkeyPatch, url: str, *, bazel: bool = False) -> SharedCache:
    monkeypatch.setenv(VARIABLE, url)
    found = shared_cache(bazel=bazel)
    assert found is not None
    return found


def test_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    found = named(monkeypatch, "redis://cache:6379")
    assert found.launcher(lambda name: True) == "sccache"
    environment = found.environment("sccache", "/work/source")
    assert environment["SCCACHE_REDIS_ENDPOINT"] == "redis://cache:6379"
    assert environment["SCCACHE_BASEDIRS"] == "/work/source"
    assert found.launcher(lambda name: name == "ccache") == "ccache"
    environment = found.environment("ccache", "/work/source")
    assert set(environment.values()) == {"redis://cache:6379"}


def test_s3_with_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    url = "s3://bucket/lms/objects?region=eu-west-1&endpoint=https://minio:9000"
    environment = named(monkeypatch, url).environment("sccache", "/x")
    assert environment["SCCACHE_BUCKET"] == "bucket"
    assert environment["SCCACHE_S3_KEY_PREFIX"] == "lms/objects"
    assert environment["SCCACHE_REGION"] == "eu-west-1"
    assert environment["SCCACHE_ENDPOINT"] == "https://minio:9000"
    assert environment["AWS_ACCESS_KEY_ID"] == "me" and "AWS_SESSION_TOKEN" not in environment


def test_the_cache_of_the_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIONS_RUNTIME_TOKEN", "token")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    environment = named(monkeypatch, "gha").environment("sccache", "/x")
    assert environment["SCCACHE_GHA_ENABLED"] == "true"
    assert environment["ACTIONS_RUNTIME_TOKEN"] == "token"
    assert "AWS_ACCESS_KEY_ID" not in environment, "no more than it needs"


def test_bazel(monkeypatch: pytest.MonkeyPatch) -> None:
    found = named(monkeypatch, "grpcs://me:secret@builder:8980?execute=yes", bazel=True)
    assert found.bazelrc.splitlines() == [
        "build --remote_cache=grpcs://me:secret@builder:8980",
        "build --remote_local_fallback",
        "build --remote_executor=grpcs://me:secret@builder:8980",
    ]
    assert "executor" not in named(monkeypatch, "http://cache:8080", bazel=True).bazelrc


def test_one_server_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """ccache asks a server for Bazel by http in Bazel's way."""
    found = named(monkeypatch, "http://cache:8080")
    assert found.launcher(lambda name: True) == "ccache"
    environment = found.environment("ccache", "/x")
    assert set(environment.values()) == {"http://cache:8080|layout=bazel"}


@pytest.mark.parametrize(
    ("url", "bazel", "why"),
    [
        ("redis://cache", True, "holds no results of Bazel; give one of http://"),
        ("grpc://cache", False, "holds no objects of compilers; give one of redis://"),
        ("ftp://cache", False, "no cache that is known"),
        ("cache:6379", False, "no cache that is known"),
        ("redis://", False, "names no server"),
        ("s3://bucket?zone=1", False, r"the option zone, and s3:// takes endpoint, region"),
        ("redis://cache?x=1", False, "takes none"),
    ],
)
def test_what_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch, url: str, bazel: bool, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        named(monkeypatch, url, bazel=bazel)


def test_an_image_without_sccache(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"has no sccache.*images\.build\.requirements"):
        named(monkeypatch, "s3://bucket").launcher(lambda name: name == "ccache")


def test_it_is_refused_before_anything_is_done(world: World) -> None:
    describe(world)
    world.clone()
    common = ["wheel", "v1.0", "--full", "--base-image", "x", "--into", "clone", "--source", "git"]
    code, _, err = run(*common, env={VARIABLE: "grpc://cache"})
    assert code == UsageError.exit_code and "holds no objects of compilers" in err
    code, _, err = run(*common, "--offline", env={VARIABLE: "redis://cache"})
    assert code == OfflineError.exit_code and "the shared cache" in err


def test_every_build_can_share(real_project: Project) -> None:
    """Each tag's complete build is Bazel's, or starts its compilers through what it is given."""
    for target in targets(real_project):
        how = target.tag.full
        if how is not None and not how.bazel:
            launchers = [v for k, v in how.environment.items() if k.endswith("COMPILER_LAUNCHER")]
            assert launchers and set(launchers) == {"{launcher}"}, target.label
            assert any(
                "sccache" in text for text in target.tag.images["build"].requirements["x86_64"]
            )
