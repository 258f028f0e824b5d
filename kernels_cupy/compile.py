"""Compiles CUDA C++ to a cubin, with or without a GPU, and keeps it on disk together with the compiler's report.

    compiled = compile_source(Path("softmax.cu"), {"T": "__half", "ITEMS": 2}, "sm_90a")
    compiled.reports["softmax"].registers

A cubin is found again by everything that went into it: source, headers, defines, target and compiler version. Those in
the folder `$GPUSIM_CUBINS`, compiled elsewhere (copy a cache there), are used whatever compiler made them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels_cupy.cubin import parameter_bytes
from kernels_cupy.errors import CompileError
from kernels_cupy.toolkit import cupy_module, include_folders
from traces.user_cache import user_cache_folder

INCLUDE = Path(__file__).parent / "include"
"""The device helpers that every kernel may include."""

_ONE_AT_A_TIME = threading.Lock()
"""NVRTC mixes up the logs of compilations in several threads."""

OPTIONS = ("--std=c++17", "--ptxas-options=-v")

CARRIED = "GPUSIM_CUBINS"
"""Environment variable: a folder of cubins to look into before compiling."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What the compiler says one kernel needs.

    Attributes:
        registers: per thread.
        stack_bytes: local memory per thread, spills included.
        spill_store_bytes, spill_load_bytes: of that, registers written to and read from local memory.
        static_shared_bytes: shared memory per CTA apart from the launch's dynamic one.
    """

    entry: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin on disk.

    Attributes:
        path: the file.
        reports: entry name → what it needs.
        log: everything the compiler said (warnings too).
    """

    path: Path
    reports: Mapping[str, KernelReport]
    log: str

    def parameter_bytes(self, entry: str) -> tuple[int, ...]:
        """Size of each parameter of a kernel, in order."""
        return parameter_bytes(self.path.read_bytes())[entry]


def compile_source(source: Path, defines: Mapping[str, int | str], arch: str) -> Compiled:
    """The cubin of `source` for `arch` (`sm_80`, `sm_90a`, …), compiled unless the cache has it.

    Args:
        defines: preprocessor macros, the kernel's specialisation.

    Raises:
        CompileError: with the compiler's log.
        Unavailable: no CuPy or no CUDA headers.
    """
    options, path = _options(defines, arch), _path(source, defines, arch)
    with _ONE_AT_A_TIME:
        if not _is_complete(path):
            _compile(source, [*options, *(f"-I{folder}" for folder in (INCLUDE, *include_folders()))], path)
    return _recall(path)


def is_compiled(source: Path, defines: Mapping[str, int | str], arch: str) -> bool:
    """Whether the cache has it."""
    return _is_complete(_path(source, defines, arch))


def compile_together(jobs: Iterable[tuple[Path, Mapping[str, int | str], str]]) -> None:
    """Fill the cache with many compilations (arguments of `compile_source`) at the same time, each in a process.

    One that fails says nothing here: `compile_source` will.
    """
    arguments = dict.fromkeys(json.dumps([str(source), dict(defines), arch]) for source, defines, arch in jobs)
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))

    def work(argument: str) -> None:
        command = [sys.executable, "-m", "kernels_cupy.compile", argument]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(work, arguments))


def _options(defines: Mapping[str, int | str], arch: str) -> list[str]:
    macros = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    return [f"--gpu-architecture={arch}", *OPTIONS, *macros]


def _path(source: Path, defines: Mapping[str, int | str], arch: str) -> Path:
    """Where the cubin is or will be: the name is a digest of all that goes into it, and the compiler's version."""
    digest = hashlib.sha256(repr(_options(defines, arch)).encode())
    for file in (source, *sorted(INCLUDE.glob("*.cuh"))):
        digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    name = f"{source.stem}-{arch}-{digest.hexdigest()[:24]}-nvrtc"
    carried = os.environ.get(CARRIED)
    found = sorted(path for path in Path(carried).glob(f"{name}*.cubin") if _is_complete(path)) if carried else []
    if found:
        return found[-1]
    version = ".".join(map(str, cupy_module().cuda.nvrtc.getVersion()))
    return user_cache_folder("cubin") / f"{name}{version}.cubin"


def _is_complete(path: Path) -> bool:
    return path.is_file() and _record(path).is_file()


def _compile(source: Path, options: list[str], path: Path) -> None:
    nvrtc = cupy_module().cuda.nvrtc
    program = nvrtc.createProgram(source.read_text(), source.name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        cubin, log = nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        chosen = " ".join(option for option in options if not option.startswith("-I"))
        log = nvrtc.getProgramLog(program)
        raise CompileError(f"{source.name} does not compile with {chosen} ({error}):\n{log}") from None
    finally:
        nvrtc.destroyProgram(program)
    reports = list(parse_log(log))
    _write(path, cubin)
    _write(_record(path), json.dumps({"log": log, "reports": [asdict(r) for r in reports]}).encode())


def parse_log(log: str) -> Iterator[KernelReport]:
    """The report of every kernel in a log of `--ptxas-options=-v`."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    for entry, text in zip(parts[1::2], parts[2::2], strict=True):
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
        registers = re.search(r"Used (\d+) registers", text)
        if frame is None or registers is None:
            raise CompileError(f"the compiler's report on {entry} has another form than expected:\n{text}")
        shared = re.search(r"(\d+) bytes smem", text)
        stack, stores, loads = (int(n) for n in frame.groups())
        yield KernelReport(entry, int(registers[1]), stack, stores, loads, int(shared[1]) if shared else 0)


def _record(path: Path) -> Path:
    """Where the report on a cubin is."""
    return path.with_suffix(".json")


def _recall(path: Path) -> Compiled:
    stored = json.loads(_record(path).read_text())
    return Compiled(path, {r["entry"]: KernelReport(**r) for r in stored["reports"]}, stored["log"])


def _write(path: Path, content: bytes) -> None:
    """Completely or not at all, whoever else compiles the same."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


if __name__ == "__main__":
    _source, _defines, _arch = json.loads(sys.argv[1])
    compile_source(Path(_source), _defines, _arch)
