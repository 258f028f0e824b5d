"""Measures what a GPU file needs: every micro-benchmark of this card into one folder.

    python -m kernels_cupy.calibrate -o FOLDER

Needs only NumPy and CuPy; with Nsight Compute (`ncu`) on the PATH, and allowed to read counters, also the files that
come from counters. Each benchmark is a process of its own, so one that fails does not stop the others. The same command
again measures what is missing or was measured with other kernels. `gpusim calibrate --measurements FOLDER` makes a GPU
file of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_cupy.commented_csv import read_facts
from kernels_cupy.counters import NOT_PERMITTED, ncu_version
from kernels_cupy.errors import Unavailable
from kernels_cupy.microbench.device import card
from kernels_cupy.toolkit import require_gpu

__all__ = ["BENCHMARKS", "Benchmark", "Outcome", "measure_all", "source_hash"]

MICROBENCH = Path(__file__).parent / "microbench"
LIMIT_S = 300
"""Longest that one benchmark may take."""
DEVICE, PARTITIONS, STARTS, GPCS = "device.json", "partitions.json", "cta_starts.json", "gpcs.json"
FAILED = 1
BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One file of a folder of measurements.

    Attributes:
        output: the file.
        module: of `kernels_cupy.microbench`, run as a program.
        sources: files in its folder whose hash the output carries.
        what: what it measures, for people.
        needs: options and the files of the folder that they name.
        counters: whether it reads counters with ncu.
    """

    output: str
    module: str
    sources: tuple[str, ...]
    what: str
    needs: tuple[tuple[str, str], ...] = ()
    counters: bool = False


BENCHMARKS = (
    Benchmark(DEVICE, "device", ("clock.cu", "device.py"), "properties and clocks"),
    Benchmark(PARTITIONS, "partitions", ("partitions.cu",), "L2 partition of each SM, home of lines"),
    Benchmark(STARTS, "cta_starts", ("cta_starts.cu",), "order and times of CTA starts"),
    Benchmark(
        GPCS, "gpcs", ("sm_bandwidth.cu", "gpcs.py"), "which SMs share a port to the L2", (("--starts", STARTS),)
    ),
    Benchmark("latency.csv", "latency", ("latency.cu", "latency.py"), "latency of shared memory, L1, L2, memory"),
    Benchmark(
        "memory_latency.csv",
        "memory_latency",
        ("memory_latency.cu", "memory_latency.py"),
        "how long single reads of memory wait for refresh",
    ),
    Benchmark(
        "streams.csv",
        "streams",
        ("streams.cu", "streams.py"),
        "bandwidth by working set, SMs and threads",
        (("--partitions", PARTITIONS),),
    ),
    Benchmark(
        "sm_bandwidth.csv",
        "sm_bandwidth",
        ("sm_bandwidth.cu", "sm_bandwidth.py"),
        "bandwidth of SMs and GPCs from the L2",
        (("--partitions", PARTITIONS), ("--starts", STARTS), ("--gpcs", GPCS)),
    ),
    Benchmark(
        "sm_writes.csv",
        "sm_writes",
        ("sm_writes.cu", "sm_writes.py"),
        "what SMs of a CPC, a GPC and all send to the L2",
        (("--partitions", PARTITIONS), ("--starts", STARTS), ("--gpcs", GPCS)),
    ),
    Benchmark("reductions.csv", "reductions", ("reductions.cu",), "additions in the L2"),
    Benchmark("rates.csv", "rates", ("rates.cu", "rates.py"), "rates of tensor cores, lanes, exponentials"),
    Benchmark("launch.json", "launch", ("launch.cu", "launch.py"), "what a launch costs"),
    Benchmark(
        "launch_counters.csv",
        "launch_counters",
        ("launch.cu", "launch_counters.py"),
        "cycles of a launch and of each CTA",
        counters=True,
    ),
    Benchmark("units.csv", "units", ("streams.cu", "units.py"), "slices, GPCs, channels, L2 clock", counters=True),
    Benchmark(
        "l2_capacity_reads.csv",
        "capacity",
        ("streams.cu", "capacity.py"),
        "L2 capacity with fixed and moving readers",
        counters=True,
    ),
    Benchmark(
        "l2_writeback_and_merging.csv",
        "writeback",
        ("writeback.cu", "writeback.py"),
        "dirty data, and merging in lockstep",
        counters=True,
    ),
    Benchmark(
        "merging.csv",
        "merging",
        ("merging.cu",),
        "which SMs' reads merge, and for how long",
        (("--partitions", PARTITIONS),),
        counters=True,
    ),
)
"""In the order they run: later ones read files of earlier ones."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a benchmark: `measured`, `kept` (was there), `failed`, or `left out`; and why."""

    benchmark: Benchmark
    state: str
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        took = f" ({self.seconds:.0f} s)" if self.state == "measured" else ""
        return f"{self.benchmark.output}: {self.state}{took}{': ' + self.why if self.why else ''}"


def source_hash(benchmark: Benchmark) -> str:
    """The hash that `provenance` puts into the output."""
    return hashlib.sha256(b"".join((MICROBENCH / name).read_bytes() for name in benchmark.sources)).hexdigest()


def measure_all(folder: Path, say: Callable[[str], None], only: Sequence[str] = ()) -> list[Outcome]:
    """Run every benchmark whose file `folder` lacks or has of other kernels; `say` is told what goes on.

    Args:
        only: names of output files; none are all.

    Raises:
        ValueError: `only` names no output, or `folder` cannot be made or holds measurements of another card.
        Unavailable: no CuPy or no GPU.
    """
    unknown = [name for name in only if name not in {b.output for b in BENCHMARKS}]
    if unknown:
        raise ValueError(f"--only {unknown[0]} is not one of {', '.join(b.output for b in BENCHMARKS)}")
    require_gpu()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder {folder} cannot be made: {error.strerror or error}") from None
    measured_on = _facts(folder / DEVICE).get("card") if (folder / DEVICE).is_file() else None
    if measured_on not in (None, card()):
        raise ValueError(f"folder {folder} holds measurements of another card than this one; give another folder")
    no_counters = _why_no_counters()
    if no_counters:
        say(f"no counters: {no_counters}; what they would have said will be estimated")
    outcomes = []
    wanted = [b for b in BENCHMARKS if not only or b.output in only]
    for number, benchmark in enumerate(wanted, 1):
        say(f"[{number}/{len(wanted)}] {benchmark.what} …")
        outcome = _measure(benchmark, folder, no_counters)
        if outcome.state == "failed" and NOT_PERMITTED in outcome.why:
            no_counters = outcome.why  # the others would meet the same
            outcome = Outcome(benchmark, "left out", why=no_counters)
        say(f"[{number}/{len(wanted)}] {outcome}")
        outcomes.append(outcome)
    return outcomes


def _measure(benchmark: Benchmark, folder: Path, no_counters: str) -> Outcome:
    target = folder / benchmark.output
    if target.is_file() and _hash_of(target) == source_hash(benchmark):
        return Outcome(benchmark, "kept")
    if benchmark.counters and no_counters:
        return Outcome(benchmark, "left out", why="no counters")
    missing = [name for _, name in benchmark.needs if not (folder / name).is_file()]
    if missing:
        return Outcome(benchmark, "left out", why=f"needs {missing[0]}")
    began = time.monotonic()
    unfinished = folder / ".unfinished"  # so that a file is whole or not there, and commands name it alone
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    options = [text for option, name in benchmark.needs for text in (option, f"../{name}")]
    command = [sys.executable, "-m", f"kernels_cupy.microbench.{benchmark.module}", "-o", benchmark.output, *options]
    path = os.pathsep.join(filter(None, (str(MICROBENCH.parent.parent), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            command,
            cwd=unfinished,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(benchmark, "failed", why=f"not done in {LIMIT_S} s")
    finally:
        made = unfinished / benchmark.output
        text = made.read_bytes() if made.is_file() else b""
        shutil.rmtree(unfinished, ignore_errors=True)
    if done.returncode or not text:
        said = (done.stderr.strip() or done.stdout.strip() or "it wrote nothing").splitlines()
        return Outcome(benchmark, "failed", why=said[-1])
    target.write_bytes(text)
    return Outcome(benchmark, "measured", time.monotonic() - began)


def _hash_of(path: Path) -> str:
    """The hash of the sources that a file was measured with; nothing if it does not say."""
    return _facts(path).get("source_sha256", "")


def _facts(path: Path) -> dict[str, str]:
    """What a file says of where it comes from; nothing if it cannot be read."""
    try:
        return dict(json.loads(path.read_text()) if path.suffix == ".json" else read_facts(path))
    except ValueError:
        return {}


def _why_no_counters() -> str:
    """One sentence; empty if ncu is there (whether it may read counters shows when it tries)."""
    try:
        ncu_version()
    except Unavailable as error:
        return str(error)
    return ""


def main() -> int:
    """Exit status 1 if a benchmark failed, 2 if nothing can be measured."""
    parser = argparse.ArgumentParser(prog="python -m kernels_cupy.calibrate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--only", nargs="*", default=[], metavar="FILE", help="only these files")
    args = parser.parse_args()
    try:
        outcomes = measure_all(Path(args.output), lambda text: print(text, file=sys.stderr, flush=True), args.only)
    except (ValueError, Unavailable) as error:
        print(f"calibrate: error: {error}", file=sys.stderr)
        return BAD_INPUT
    return FAILED if any(outcome.state == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
