"""CSV files of measurements, which begin with lines `# key: value` that say where the numbers are from."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO


def write_facts(file: TextIO, facts: Mapping[str, str]) -> None:
    """Begin a file with what `read_facts` gives back."""
    file.writelines(f"# {key}: {value}\n" for key, value in facts.items())


def read_facts(path: Path) -> dict[str, str]:
    """What the comments of a file say, by key."""
    comments = (line[1:] for line in path.read_text().splitlines() if line.startswith("#"))
    pairs = (line.partition(":") for line in comments if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def read_rows(path: Path) -> csv.DictReader[str]:
    """The rows below the comments."""
    return csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#"))
