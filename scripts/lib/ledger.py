"""patch/FILES.txt: which files of vLLM the patch changes, from what, to what, by which series patch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from build_errors import BuildError

ABSENT = "-"  # in place of a hash: the file does not exist on that side
_HASH = re.compile(r"(?:[0-9a-f]{64}|-)\Z")


@dataclass(frozen=True)
class Entry:
    """One changed file. `before`/`after` are sha256 or ABSENT; `series` names the patches, in order."""

    path: str
    before: str
    after: str
    added: int
    removed: int
    series: tuple[str, ...]

    def line(self) -> str:
        return f"{self.path} {self.before} {self.after} +{self.added} -{self.removed} {','.join(self.series)}"


def parse_files(text: str, where: str) -> list[Entry]:
    """Entries of a FILES.txt. Raises BuildError naming the line that is malformed."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        good = (
            len(fields) == 6
            and all(_HASH.match(value) for value in fields[1:3])
            and re.fullmatch(r"\+\d+", fields[3])
            and re.fullmatch(r"-\d+", fields[4])
        )
        if not good or Path(fields[0]).is_absolute() or ".." in Path(fields[0]).parts:
            raise BuildError(f"{where}:{number}: not a line of FILES.txt: {line!r}")
        path, before, after, added, removed, series = fields
        entries.append(Entry(path, before, after, int(added), -int(removed), tuple(series.split(","))))
    return entries


def read_files(path: Path) -> list[Entry]:
    """Entries of the FILES.txt at `path`. Raises BuildError if it is missing."""
    try:
        return parse_files(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise BuildError(f"{path} does not exist; run `make patch`") from None
