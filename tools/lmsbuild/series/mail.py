# SPDX-License-Identifier: Apache-2.0
"""The mail form of a commit, written here and not by git, so that no version of git changes it.

The form is that of `git format-patch --zero-commit --no-signature --no-stat`, except that a
header is never folded or encoded: UTF-8 as it is, which `git am` reads.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.utils import parseaddr, parsedate_to_datetime

_FIRST = "From " + "0" * 40 + " Mon Sep 17 00:00:00 2001"
_MIME = (
    "MIME-Version: 1.0",
    "Content-Type: text/plain; charset=UTF-8",
    "Content-Transfer-Encoding: 8bit",
)
_QUOTED = "Content-Transfer-Encoding: quoted-printable"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TRAILER = re.compile(r"^([A-Za-z][A-Za-z0-9-]*): +(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
_BECAUSE = re.compile(r"^([A-Za-z-]+: )(\S+)(?= because )")
_TRAILERS = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]*: .*(?:\n[ \t]+.*)*(?:\n|\Z))+")
# What `git am` takes for the end of the message, or mailsplit for the start of another mail.
_ENDS_MESSAGE = re.compile(r"^(---(\s*$| \S)|diff -|Index: |From \S.*\d:\d\d)", re.MULTILINE)
_IN_BODY_HEADER = re.compile(r"^(From|Date|Subject): ", re.IGNORECASE)


@dataclass(frozen=True)
class Mail:
    """Author, date and message of one commit."""

    author: str
    email: str
    date: str  # as in a mail: Thu, 1 Jan 2026 00:00:00 +0000
    message: str  # subject, and if there is a body, an empty line and the body

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]

    @property
    def body(self) -> str:
        return self.message.partition("\n\n")[2]

    def trailers(self, key: str) -> list[str]:
        """Values of the lines `key: value` in the body's last paragraph."""
        last = self.body.rpartition("\n\n")[2]
        return [re.sub(r"\s+", " ", m[2]) for m in _TRAILER.finditer(last) if m[1] == key]

    @property
    def whereabouts(self) -> str:
        """Where the patch went upstream, by its trailers (those of DEP-3), in words; "" for what
        went nowhere."""
        applied = self.trailers("Applied-Upstream")
        if applied:
            return f"upstream: {applied[-1]}"
        sent = [value for value in self.trailers("Forwarded") if value.lower() != "no"]
        if sent and sent[-1].lower() == "not-needed":
            return "not for upstream"
        return f"forwarded: {sent[-1]}" if sent else ""

    def moved(self, names: Mapping[str, str]) -> Mail:
        """With the trailers `KEY: FILE because REASON` naming files as `names` says."""
        if not any(old != new for old, new in names.items()):
            return self
        body, _, last = self.message.rpartition("\n\n")
        lines = [
            _BECAUSE.sub(lambda m: f"{m[1]}{names.get(m[2], m[2])}", x) for x in last.split("\n")
        ]
        return replace(self, message="\n\n".join([*([body] if body else []), "\n".join(lines)]))

    def render(self) -> str:
        """The mail up to where the diff begins."""
        name = self.author
        if re.search(r'[][()<>:;@\\,."]', name):
            name = '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
        head = [
            _FIRST,
            f"From: {name} <{self.email}>",
            f"Date: {self.date}",
            f"Subject: [PATCH] {self.subject}",
        ]
        if not (name + self.email + self.message).isascii():
            head += _MIME
        return "\n".join(head) + "\n\n" + (f"{self.body}\n\n" if self.body else "")

    def hazard(self) -> str:
        """The line of the message that `git am` would not give back, or ""."""
        found = _ENDS_MESSAGE.search(self.message)
        if found:
            return self.message[found.start() :].split("\n", 1)[0]
        first = self.body.split("\n", 1)[0]
        return first if _IN_BODY_HEADER.match(first) else ""


def joined(mails: Sequence[Mail]) -> str:
    """One message of several: the subject of the first, all that they say, and at the end their
    trailers, each once."""
    said: list[str] = []
    trailers: dict[str, None] = {}
    for number, mail in enumerate(mails):
        said += [mail.subject] if number else []
        prose, own = _parted(mail)
        trailers.update(dict.fromkeys(own))
        said += [prose] if prose else []
    parts = [mails[0].subject, *said, "\n".join(trailers)]
    return "\n\n".join(filter(None, parts))


def reworded(message: str, mails: Sequence[Mail]) -> str:
    """`message` with the trailers of `mails`, each once. Raises ValueError for what is no message
    of a patch."""
    try:
        message.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it is not UTF-8") from error
    spoken = replace(mails[0], message=_tidy(message))
    if not spoken.subject:
        raise ValueError("it is empty")
    if spoken.hazard():
        raise ValueError(f"`git am` would not give its line {spoken.hazard()!r} back")
    prose, own = _parted(spoken)
    trailers = dict.fromkeys([*own, *(line for mail in mails for line in _parted(mail)[1])])
    return "\n\n".join(filter(None, (spoken.subject, prose, "\n".join(trailers))))


def _parted(mail: Mail) -> tuple[str, list[str]]:
    """What the body says, and its trailers."""
    prose, _, last = mail.body.rpartition("\n\n")
    if _TRAILERS.fullmatch(last):
        return prose, re.split(r"\n(?=\S)", last)
    return mail.body, []


def quoted(patch: bytes) -> bytes:
    """The mail of a patch with lines that end in CRLF, so that every `git am` keeps them: of lines
    that are not quoted it takes the CR off unless it is told otherwise (--keep-cr)."""
    head, _, rest = patch.partition(b"\n\n")
    lines = [line for line in head.decode("latin-1").split("\n") if line not in _MIME]
    lines += [*_MIME[:2], _QUOTED]
    body = (binascii.b2a_qp(line, istext=False) for line in rest.split(b"\n"))
    return "\n".join(lines).encode("latin-1") + b"\n\n" + b"\n".join(body)  # its bytes as they are


def from_commit(raw: bytes) -> Mail:
    """The mail of a raw commit object. Raises ValueError when it has no author that can be told."""
    head, _, content = raw.partition(b"\n\n")
    encoding = re.search(rb"^encoding (\S+)$", head, re.MULTILINE)
    codec = encoding[1].decode("ascii", "replace") if encoding else "utf-8"
    try:
        found = re.search(
            r"^author (.*) <(.*)> (-?\d+) ([-+]\d{4})$",
            head.decode(codec, errors="replace"),
            re.MULTILINE,
        )
        message = content.decode(codec, errors="replace")
    except LookupError as error:
        raise ValueError(f"its encoding is {codec!r}, which is unknown") from error
    if found is None:
        raise ValueError("it has no author line")
    return Mail(
        found[1].strip() or found[2],
        found[2],
        _date(int(found[3]), found[4]),
        _tidy(message),
    )


def parse(text: str) -> Mail:
    """The mail at the start of a patch file, whoever wrote it. Raises ValueError if it is none."""
    if "\r\n" in text[: text.find("\n") + 1]:
        raise ValueError("its lines end in CRLF, which no patch of a series does")
    head, _, rest = text.partition("\n\n")
    fields = dict(re.findall(r"^([A-Za-z-]+): *(.*(?:\n[ \t].*)*)", head, re.MULTILINE))
    for name in ("From", "Date", "Subject"):
        if name not in fields:
            raise ValueError(f"it has no {name} line")
    author, email = parseaddr(_decoded(fields["From"]))
    subject = re.sub(r"^\[PATCH[^]]*\] *", "", _decoded(fields["Subject"]))
    end = re.search(r"^(---\s*$|diff -)", rest, re.MULTILINE)
    body = rest[: end.start()] if end else rest
    return of_parts(author, email, fields["Date"], f"{subject}\n\n{body}")


def of_parts(author: str, email: str, date: str, message: str) -> Mail:
    """The mail of these. Raises ValueError for what is no date, and where nobody wrote it."""
    if not author and not email:
        raise ValueError("it has no author")
    if "\0" in message:  # which git writes into no commit
        raise ValueError("its message has a NUL byte")
    try:
        moment = parsedate_to_datetime(date)
    except (TypeError, ValueError) as error:
        raise ValueError(f"its date {date!r} is none") from error
    zone = re.search(r"[-+]\d{4}", date)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    seconds = int(moment.timestamp())
    if seconds < 0:  # git has none of them
        raise ValueError(f"its date {date!r} is before 1970")
    return Mail(author, email, _date(seconds, zone[0] if zone else "+0000"), _tidy(message))


def _decoded(value: str) -> str:
    unfolded = re.sub(r"\n[ \t]+", " ", value)
    try:
        return str(make_header(decode_header(unfolded)))
    except (HeaderParseError, LookupError, UnicodeError):
        return unfolded


def _tidy(message: str) -> str:
    """The first paragraph as one line, then the rest; no space at line ends."""
    text = "\n".join(line.rstrip() for line in message.splitlines()).strip("\n")
    subject, _, body = text.partition("\n\n")
    subject, body = " ".join(subject.split()), body.strip("\n")
    return f"{subject}\n\n{body}" if body else subject


def _date(seconds: int, zone: str) -> str:
    minutes = int(zone[0] + "1") * (60 * int(zone[1:3]) + int(zone[3:5]))
    try:
        local = datetime(1970, 1, 1) + timedelta(seconds=seconds, minutes=minutes)
    except OverflowError as error:
        raise ValueError("its date is out of range") from error
    return (
        f"{_DAYS[local.weekday()]}, {local.day} {_MONTHS[local.month - 1]} {local.year} "
        f"{local:%H:%M:%S} {zone}"
    )
