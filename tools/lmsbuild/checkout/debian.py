# SPDX-License-Identifier: Apache-2.0
"""A Debian source package through the machine's own apt, in a private state directory.

The machine's configuration gives the archive and its key; nothing of it changes, and apt
verifies the archive's signature as always.
"""

from __future__ import annotations

import getpass
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.base import cache, log
from lmsbuild.base.console import Console
from lmsbuild.base.errors import SourceError
from lmsbuild.tags.download import download_url
from lmsbuild.tags.frameworks import Debian

SOURCES_LIST = Path("/etc/apt/sources.list")
SOURCES_PARTS = Path("/etc/apt/sources.list.d")
OS_RELEASE = Path("/etc/os-release")


@dataclass(frozen=True)
class Archive:
    """One configured archive: where it is and what signs it."""

    uri: str
    suites: list[str]
    components: list[str]
    signed_by: str | None


def parse_deb822(text: str) -> list[Archive]:
    """Archives of a .sources file."""
    archives = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and key:
                fields[key] += "\n" + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if not fields.get("uris") or fields.get("enabled", "yes").lower() == "no":
            continue
        signed_by = fields.get("signed-by")
        for uri in fields["uris"].split():
            archives.append(
                Archive(
                    uri,
                    fields.get("suites", "").split(),
                    fields.get("components", "").split(),
                    # A key may also be written out in the file; only its path can be passed on.
                    signed_by if signed_by and "\n" not in signed_by else None,
                )
            )
    return archives


_ONE_LINE = re.compile(r"^deb(?:-src)?\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$")


def parse_one_line(text: str) -> list[Archive]:
    """Archives of a sources.list file."""
    archives = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#")[0].strip())
        if match:
            options = dict(
                option.split("=", 1) for option in (match[1] or "").split() if "=" in option
            )
            archives.append(
                Archive(match[2], [match[3]], match[4].split(), options.get("signed-by"))
            )
    return archives


def codename(os_release: Path = OS_RELEASE) -> str | None:
    """The Debian release of this machine, None on another system."""
    try:
        text = os_release.read_text(encoding="utf-8")
    except OSError:
        return None
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return fields.get("VERSION_CODENAME") if fields.get("ID") == "debian" else None


def main_archive(release: str) -> Archive | None:
    """The configured archive that carries `main` of this machine's own release."""
    archives: list[Archive] = []
    files = [SOURCES_LIST] if SOURCES_LIST.is_file() else []
    files += sorted(SOURCES_PARTS.glob("*.list")) + sorted(SOURCES_PARTS.glob("*.sources"))
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        archives += parse_deb822(text) if file.suffix == ".sources" else parse_one_line(text)
    names = {release, "stable", "oldstable", "testing", "unstable", "sid"}
    for archive in archives:
        if "main" in archive.components and names & set(archive.suites):
            return archive
    return None


def orig_tarball(package: Debian, tag: str, console: Console) -> Path:
    """The orig tarball of `package`, downloaded once. Its SHA-256 is the recorded one."""

    def fill(path: Path) -> None:
        cache.require_network(
            f"Debian's {package.tarball}", f"lmsbuild fetch {tag} --source debian"
        )
        with console.task(f"asking Debian for {package.tarball}"):
            url = _locate(package)
        download_url(url, path, console, package.sha256)

    return cache.keep("downloads", package.tarball, package.tarball, fill, console, tag=tag)


def signature() -> str:
    """What vouches for a package's tarball."""
    archive = main_archive(codename() or "")
    keys = archive.signed_by if archive and archive.signed_by else "apt's keys"
    return f"archive signature checked by apt with {keys}, SHA-256 as recorded"


def _locate(package: Debian) -> str:
    """The address of the tarball, by an index whose signature apt has verified."""
    release = codename()
    if release is None or shutil.which("apt-get") is None:
        raise SourceError(
            "Debian's source package cannot be used because this machine is not Debian with apt; "
            "use --source git or a PATH"
        )
    archive = main_archive(release)
    if archive is None:
        raise SourceError(
            f"Debian's source package cannot be used because no archive of {release} main is "
            "configured in /etc/apt; configure one or use --source git or a PATH"
        )
    with cache.scratch() as state:
        apt = PrivateApt(state, archive, package.suite)
        apt.run("apt-get", "update")
        version = apt.newest(package)
        listed = apt.run(
            "apt-get",
            "source",
            "--print-uris",
            "--tar-only",
            "--",
            f"{package.package}={version}",
        )
    # 'URI' name size hash
    found = re.search(rf"^'([^']+)' {re.escape(package.tarball)} ", listed, re.MULTILINE)
    if found is None:
        raise SourceError(
            f"{package.tarball} was not downloaded because version {version} of "
            f"{package.package} has another tarball; use --source git or a PATH"
        )
    return found[1]


class PrivateApt:
    """apt whose lists, caches and source entries lie in `folder`."""

    def __init__(self, folder: Path, archive: Archive, suite: str) -> None:
        self.folder = folder
        for part in ("lists/partial", "cache/archives/partial", "parts"):
            (folder / part).mkdir(parents=True)
        option = f" [signed-by={archive.signed_by}]" if archive.signed_by else ""
        entry = f"deb-src{option} {archive.uri} {suite} main\n"
        (folder / "sources.list").write_text(entry, encoding="utf-8")
        (folder / "status").touch()

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::SourceList": self.folder / "sources.list",
            "Dir::Etc::SourceParts": self.folder / "parts",
            "Dir::State": self.folder,
            "Dir::State::Lists": self.folder / "lists",
            "Dir::State::Status": self.folder / "status",
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": getpass.getuser(),  # the folder is this user's own
            # Whatever the machine's configuration allows: nothing without a good signature.
            "Acquire::AllowInsecureRepositories": "false",
            "Acquire::AllowWeakRepositories": "false",
            "Acquire::AllowDowngradeToInsecureRepositories": "false",
            "APT::Get::AllowUnauthenticated": "false",
            "Acquire::Retries": 3,
            "Acquire::http::Timeout": 30,
        }
        command = [program]
        for key, value in options.items():
            command += ["-o", f"{key}={value}"]
        done = log.run([*command, *arguments], cwd=cwd or self.folder)
        # `update` succeeds with a warning when an index could not be had.
        failed = done.returncode != 0 or re.search(r"^W: Failed|^Err:", done.stderr, re.MULTILINE)
        if failed:
            lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:"))]
            raise SourceError(
                f"Debian's source package was not had because {program} says "
                f"{' '.join(lines) or done.stderr.strip() or 'nothing'}; use --source git or a "
                "PATH",
                output=done.stderr,
            )
        return done.stdout

    def newest(self, package: Debian) -> str:
        """The newest Debian revision of the recorded upstream version."""
        records = self.run("apt-cache", "showsrc", "--only-source", "--", package.package)
        versions: list[str] = re.findall(r"^Version: (\S+)$", records, re.MULTILINE)
        fitting = [version for version in versions if version.startswith(f"{package.version}-")]
        if not fitting:
            raise SourceError(
                f"Debian {package.suite} cannot give {package.package} {package.version} because "
                f"it has {', '.join(versions) or 'no version'}; use --source git or a PATH"
            )
        return max(fitting, key=lambda text: [int(n) for n in re.findall(r"\d+", text)])
