# SPDX-License-Identifier: Apache-2.0
"""What complete builds share between machines: results of the compiler, or of Bazel.

LMSBUILD_SHARED_CACHE names a server. Compilers are started through sccache, or through ccache where
that is what knows the server; Bazel is told by a file in its home. Secrets are taken from the
environment, and are in no command line, log or manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from lmsbuild.base.errors import UsageError

VARIABLE = "LMSBUILD_SHARED_CACHE"
BAZELRC = ".bazelrc"
_COMPILERS = ("redis", "rediss", "s3", "gha", "http")
_BAZEL = ("http", "https", "grpc", "grpcs")
_SECRETS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "gha": ("ACTIONS_CACHE_SERVICE_V2", "ACTIONS_CACHE_URL", "ACTIONS_RESULTS_URL",
            "ACTIONS_RUNTIME_TOKEN"),
}  # fmt: skip
_OPTIONS = {"s3": {"region", "endpoint"}, "grpc": {"execute"}, "grpcs": {"execute"}}


@dataclass(frozen=True)
class SharedCache:
    """A server, as its URL says."""

    url: SplitResult
    options: Mapping[str, str]

    @property
    def scheme(self) -> str:
        return self.url.scheme

    @property
    def plain(self) -> str:
        """The URL without options."""
        return urlunsplit(self.url._replace(query="", fragment=""))

    def launcher(self, has: Callable[[str], bool]) -> str:
        """The program that starts the compilers, of those that the image `has`."""
        if self.scheme != "http" and has("sccache"):
            return "sccache"
        if self.scheme in ("redis", "http"):
            return "ccache"
        raise UsageError(
            f"{VARIABLE}={self.scheme}:... cannot be used because the build image has no sccache, "
            "which that needs; add it to `images.build.requirements` in tag.toml, or unset it"
        )

    def environment(self, launcher: str, base: str) -> dict[str, str]:
        """For `launcher`; what is below the folder `base` is the same in another folder."""
        if launcher == "ccache":
            # By http as Bazel does, so that a server for that will do for both.
            where = self.plain + ("|layout=bazel" if self.scheme == "http" else "")
            # The second is the name until 4.6.
            return dict.fromkeys(("CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE"), where)
        # A server that goes away costs time, not the build; and none waits for the last one's end.
        found = {
            "SCCACHE_BASEDIRS": base, "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
            "SCCACHE_IDLE_TIMEOUT": "0",
        }  # fmt: skip
        if self.scheme == "s3":
            found["SCCACHE_BUCKET"] = self.url.netloc
            found["SCCACHE_REGION"] = self.options.get("region", "auto")
            found["SCCACHE_S3_KEY_PREFIX"] = self.url.path.strip("/")
            if "endpoint" in self.options:
                found["SCCACHE_ENDPOINT"] = self.options["endpoint"]
        elif self.scheme == "gha":
            found["SCCACHE_GHA_ENABLED"] = "true"
        else:
            found["SCCACHE_REDIS_ENDPOINT"] = self.plain
        secrets = (name for name in _SECRETS.get(self.scheme, ()) if os.environ.get(name))
        return found | {name: os.environ[name] for name in secrets}

    @property
    def bazelrc(self) -> str:
        """What Bazel reads in its home."""
        lines = [f"build --remote_cache={self.plain}", "build --remote_local_fallback"]
        if self.options.get("execute") == "yes":
            lines.append(f"build --remote_executor={self.plain}")
        return "".join(f"{line}\n" for line in lines)


def shared_cache(*, bazel: bool) -> SharedCache | None:
    """That of the environment, None where none is named. Raises UsageError for one that is not of
    use: for a build by `bazel`, or for one of compilers."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    usable = _BAZEL if bazel else _COMPILERS
    url = urlsplit(f"{text}://" if text == "gha" else text)
    if url.scheme not in {*_BAZEL, *_COMPILERS}:
        raise UsageError(
            f"{VARIABLE} cannot be used because it is the URL of no cache that is known; give one "
            f"of {', '.join(f'{one}://' for one in usable)}, or unset it"
        )
    if url.scheme not in usable:
        what = "results of Bazel" if bazel else "objects of compilers"
        raise UsageError(
            f"{VARIABLE}={url.scheme}:... cannot be used because it holds no {what}; give one of "
            f"{', '.join(f'{one}://' for one in usable)}, or unset it"
        )
    if not url.netloc and url.scheme != "gha":
        raise UsageError(
            f"{VARIABLE} cannot be used because it names no server; give {url.scheme}://HOST"
        )
    options = {name: values[-1] for name, values in parse_qs(url.query).items()}
    strange = sorted(set(options) - _OPTIONS.get(url.scheme, set()))
    if strange:
        known = sorted(_OPTIONS.get(url.scheme, set())) or ["none"]
        raise UsageError(
            f"{VARIABLE} cannot be used because it has the option {strange[0]}, and "
            f"{url.scheme}:// takes {', '.join(known)}; leave it out"
        )
    return SharedCache(url, options)
