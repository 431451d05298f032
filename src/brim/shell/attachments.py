"""Files in the conversation: `@path` in a message attaches them.

Each file is an output of its own, with its own share of the limit. Its version is kept in the turn,
so that brim notices when it changes and sends the new content with the next message.
"""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from brim.config import home_as_tilde
from brim.errors import InputError
from brim.shell.conversation import FILES
from brim.shell.edits import EDIT_RULE
from brim.shell.state import Shell

MAX_FILES: Final = 50
"""Files that one message can attach."""
MAX_BYTES: Final = 8 * 1024 * 1024
IMAGES: Final = ("image/gif", "image/jpeg", "image/png", "image/webp")
_VISION: Final = re.compile(
    r"gpt-(?:4o|4-turbo|4\.[15]|5)|chatgpt-4o|\bo[34]\b|\bo1(?!-mini)|claude-(?!2|instant)|gemini|"
    r"llava|pixtral|vision|[-_.]vl\b|gemma-?[34]|llama-?4|internvl|minicpm-v|moondream|smolvlm",
    re.IGNORECASE,
)
"""Names of models that read images."""
_REFERENCE: Final = re.compile(r"(?:^|(?<=[\s(]))@([^\s@]+)")
_LINES: Final = re.compile(r"(.+):(\d+)(?:-(\d+))?")
_TRAILING: Final = ".,;:!?)"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file, or some lines of it."""

    path: Path
    lines: tuple[int, int] | None = None
    """The first and the last line; None for the whole file."""

    @property
    def reference(self) -> str:
        return str(self.path) + (f":{self.lines[0]}-{self.lines[1]}" if self.lines else "")

    @property
    def image_type(self) -> str | None:
        kind = mimetypes.guess_type(self.path.name)[0]
        return kind if kind in IMAGES and self.lines is None else None

    def read(self) -> bytes:
        """Return the content; raise InputError if it is too large or not a file."""
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise InputError(f"{self.path} is larger than {MAX_BYTES:,} bytes. Attach a part.")
            data = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}.") from None
        if self.lines is None:
            return data
        first, last = self.lines
        return b"".join(data.splitlines(keepends=True)[first - 1 : last])


def find_attachments(text: str, folder: Path) -> list[Attachment]:
    """Return the files that a message refers to; other words with `@` are text."""
    found = [file for word in _REFERENCE.findall(text) for file in _find_files(word, folder)]
    if len(found) > MAX_FILES:
        raise InputError(f"The message attaches {len(found):,} files; the most is {MAX_FILES}.")
    return list(dict.fromkeys(found))


def _find_files(word: str, folder: Path) -> Iterator[Attachment]:
    for name in dict.fromkeys((word, word.rstrip(_TRAILING))):
        match = _LINES.fullmatch(name)
        pattern, lines = (match[1], match) if match else (name, None)
        whole = folder / Path(pattern).expanduser()
        paths = [whole]
        if not whole.exists() and re.search(r"[*?\[]", pattern):
            matching = Path(whole.anchor).glob(str(whole.relative_to(whole.anchor)))
            paths = sorted(islice(filter(Path.is_file, matching), MAX_FILES + 1))
        if files := [path for path in paths if path.is_file()]:
            first = int(lines[2]) if lines else 0
            part = (first, int(lines[3] or first)) if lines else None
            yield from (Attachment(path, part) for path in files)
            return


def attach_files(shell: Shell, text: str) -> tuple[str | list[dict[str, Any]], dict[str, str]]:
    """Attach the files of a message, and new content of changed ones.

    Return the content of the message, and the versions of its files.
    """
    known = list_versions(shell)
    files = find_attachments(text, shell.folder)
    changed = [file for file in _list_changed(known) if file not in files]
    for file in changed:
        shell.screen.notice(f"{_name(shell, file)} has changed; its new content is sent")
    contents = {file: file.read() for file in (*changed, *files)}
    images = [file for file in contents if file.image_type]
    if images and not _reads_images(shell):
        raise InputError(
            f"{shell.models.current} does not read images: {_name(shell, images[0])}. "
            f"If it does, set models.{shell.models.current}.vision = true."
        )
    for file, data in contents.items():
        if not file.image_type:
            _add_text(shell, file, data)
    if len(contents) > len(images) and not known:
        shell.conversation.add_output(EDIT_RULE)
    versions = {file.reference: _version(data) for file, data in contents.items()}
    parts = [_to_part(file, contents[file]) for file in images]
    return ([{"type": "text", "text": text}, *parts] if parts else text), versions


def list_versions(shell: Shell) -> dict[str, str]:
    """Return the attached files of the conversation with their last versions."""
    versions: dict[str, str] = {}
    for turn in shell.driver.turns:
        if files := turn.get(FILES):
            versions |= files
    return versions


def read_text(turn: Mapping[str, Any]) -> str:
    """Return the text of a user turn, which may have images too."""
    content = turn["content"]
    return content if isinstance(content, str) else str(content[0]["text"])


def _list_changed(versions: Mapping[str, str]) -> Iterator[Attachment]:
    for reference, version in versions.items():
        match = None if Path(reference).exists() else _LINES.fullmatch(reference)
        lines = (int(match[2]), int(match[3])) if match else None
        file = Attachment(Path(match[1] if match else reference), lines)
        if file.path.is_file() and not file.image_type and _version(file.read()) != version:
            yield file


def _add_text(shell: Shell, file: Attachment, data: bytes) -> None:
    if b"\0" in data:
        raise InputError(f"{_name(shell, file)} is neither text nor an image.")
    masked = shell.secrets.mask(data.decode("utf-8", "replace"))
    if masked.found:
        shell.screen.notice(f"hidden from the model: {', '.join(masked.found)}")
    text = f"[file] {_name(shell, file)}\n{masked.text}"
    shell.conversation.add_output(text, home_as_tilde(file.path))


def _name(shell: Shell, file: Attachment) -> str:
    """Return the reference as the user would write it."""
    return file.reference.removeprefix(f"{shell.folder}/")


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _reads_images(shell: Shell) -> bool:
    is_set = shell.models.choice(shell.models.current).model.vision
    return bool(_VISION.search(shell.driver.profile.model or "")) if is_set is None else is_set


def _to_part(file: Attachment, data: bytes) -> dict[str, Any]:
    url = f"data:{file.image_type};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}
