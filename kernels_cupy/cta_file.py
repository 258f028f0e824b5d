"""Files of CTA times, measured or simulated: a row per CTA, and in comment lines on top what ran, and where.

- `kernel`, `launch`: name of the launch, and its number in the run.
- `cta`, `sm`: number of the CTA in its grid, and of the SM that it ran on.
- `start_ns`, `end_ns`: since the launch's first CTA started.
- `start_clock`, `end_clock`: cycles of the SM's own clock, through all launches. Only differences on one SM mean
  something: clocks of different SMs may have different zeros.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from kernels_cupy.commented_csv import read_facts, read_rows, write_facts
from traces.cta_times import CtaTimes
from traces.launch import Plan
from traces.problem import AttentionProblem

__all__ = ["COLUMNS", "CtaFile", "cta_text", "read_ctas"]

TIMES = ("start_ns", "end_ns", "start_clock", "end_clock")
COLUMNS = ("kernel", "launch", "cta", "sm", *TIMES)
RUN = ("algorithm", "problem", "schedule", "l2")
"""Comment lines that say what ran."""


@dataclass(frozen=True, slots=True)
class CtaFile:
    """What a file holds.

    Attributes:
        algorithm, problem, schedule, l2: what ran.
        launches: times of its launches, in order.
        provenance: the other comment lines.
    """

    algorithm: str
    problem: AttentionProblem
    schedule: Mapping[str, Any]
    l2: str
    launches: tuple[CtaTimes, ...]
    provenance: Mapping[str, str]


def cta_text(plan: Plan, l2: str, launches: Sequence[CtaTimes], provenance: Mapping[str, str]) -> str:
    """A file's text."""
    text = io.StringIO()
    problem, schedule = json.dumps(plan.problem.to_dict()), json.dumps(plan.schedule.to_dict())
    run = dict(zip(RUN, (plan.algorithm, problem, schedule, l2), strict=True))
    write_facts(text, {**run, **provenance})
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for number, times in enumerate(launches):
        columns = ([f"{value:.12g}" for value in getattr(times, name)] for name in TIMES)
        for cta, row in enumerate(zip(times.sm, *columns, strict=True)):
            table.writerow((times.kernel, number, cta, *row))
    return text.getvalue()


def read_ctas(path: Path) -> CtaFile:
    """The file at `path`.

    Raises:
        ValueError: it cannot be read, or is no such file.
    """
    try:
        facts, rows = read_facts(path), read_rows(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    missing = [name for name in RUN if name not in facts] + [n for n in COLUMNS if n not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"{path} is no file of CTA times (gpusim run ALGO --ctas FILE): it has no {missing[0]}")
    try:
        return CtaFile(
            algorithm=facts["algorithm"],
            problem=AttentionProblem.from_dict(_with_tuples(json.loads(facts["problem"]))),
            schedule=json.loads(facts["schedule"]),
            l2=facts["l2"],
            launches=tuple(_launches(rows)),
            provenance={key: value for key, value in facts.items() if key not in RUN},
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _launches(rows: Iterator[dict[str, str]]) -> Iterator[CtaTimes]:
    for number, (key, group) in enumerate(groupby(rows, key=lambda row: (row["launch"], row["kernel"]))):
        launch = list(group)
        if key[0] != str(number) or [row["cta"] for row in launch] != [str(cta) for cta in range(len(launch))]:
            raise ValueError(f"the rows of launch {key[0]} ({key[1]}) are not one for each CTA, in order")
        columns = {name: np.array([float(row[name]) for row in launch]) for name in TIMES}
        yield CtaTimes(key[1], np.array([int(row["sm"]) for row in launch]), **columns)


def _with_tuples(problem: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples, which lengths are."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in problem.items()}
