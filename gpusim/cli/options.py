"""Options that several commands share, and the objects they stand for."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpusim.errors import UserError
from gpusim.spec.load import load_gpu
from gpusim.spec.model import GpuSpec
from gpusim.spec.models import ModelShape, load_model

if TYPE_CHECKING:
    from traces.launch import Plan
    from traces.problem import AttentionProblem

__all__ = [
    "add_machine_options",
    "add_output_options",
    "add_problem_options",
    "add_schedule_options",
    "add_set_option",
    "atomic_write",
    "check_file",
    "check_outputs",
    "given_problem_or_schedule",
    "gpu_from",
    "model_from",
    "plan_from",
    "problem_from",
    "schedule_settings",
]

_SHAPE: tuple[str, ...] = (
    "batch",
    "heads",
    "kv_heads",
    "seq",
    "seq_kv",
    "dim",
    "dim_v",
    "dtype",
    "kv_dtype",
    "v_dtype",
    "kv_scale",
)
_SHAPE += ("outlier_channels", "window", "lengths", "kv_lengths", "page_size", "prefix", "mla", "layout")
_SCHEDULE = ("tile_q", "tile_kv", "stages", "splits")


def whole(text: str) -> int:
    """argparse type: a whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def lengths(text: str) -> tuple[int, ...]:
    """argparse type: whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 512,2048") from None


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    """The shape of the attention call: `--model`, `--batch`, `--heads`, … ."""
    group = parser.add_argument_group("problem")
    group.add_argument(
        "--model", metavar="NAME|config.json", help="take heads, KV heads and head dimension from a model"
    )
    group.add_argument("--batch", type=whole, metavar="N", help="sequences (default 1)")
    group.add_argument("--heads", type=whole, metavar="N", help="query heads (default 32)")
    group.add_argument("--kv-heads", type=whole, metavar="N", help="key/value heads (default: as --heads)")
    group.add_argument("--seq", type=whole, metavar="N", help="query rows per head (default 4096; decoding: 1)")
    group.add_argument(
        "--seq-kv", type=whole, metavar="N", help="key/value rows per head (default: as --seq; decoding: 4096)"
    )
    group.add_argument("--dim", type=whole, metavar="N", help="head dimension (default 128)")
    group.add_argument("--dim-v", type=whole, metavar="N", help="head dimension of V and O (default: as --dim)")
    group.add_argument("--dtype", metavar="TYPE", help="number format of Q and O (default fp16)")
    group.add_argument("--kv-dtype", metavar="TYPE", help="number format of K and V (default: as --dtype)")
    group.add_argument("--v-dtype", metavar="TYPE", help="number format of V (default: as --kv-dtype)")
    group.add_argument(
        "--kv-scale", metavar="WHAT", help="int8, fp8: a scale per token, channel or head (default token)"
    )
    group.add_argument("--outlier-channels", type=whole, metavar="N", help="channels of a quantised K kept in --dtype")
    group.add_argument("--causal", action="store_true", help="mask keys past the diagonal, aligned bottom-right")
    group.add_argument("--window", type=whole, metavar="N", help="with --causal: keys that a row sees (sliding window)")
    group.add_argument("--lengths", type=lengths, metavar="N,N…", help="query rows of each sequence (instead of --seq)")
    group.add_argument(
        "--kv-lengths", type=lengths, metavar="N,N…", help="KV rows of each sequence (default: --lengths)"
    )
    group.add_argument("--layout", choices=("bhsd", "bshd"), help="memory order of Q, K, V, O (default bhsd)")
    group.add_argument("--page-size", type=whole, metavar="N", help="tokens per KV page, for paged algorithms")
    group.add_argument("--prefix", type=whole, metavar="N", help="leading tokens whose pages all sequences share")
    group.add_argument(
        "--mla", action="store_true", default=None, help="latent attention: V is the first --dim-v columns of K"
    )
    group.add_argument("--splits", metavar="N", help="parts the KV is split in, for split-KV algorithms (0: chosen)")


def add_set_option(parser: argparse._ActionsContainer) -> None:
    """`--set section.key=value`, repeatable."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a figure of the GPU, such as l2.size=120MiB (repeatable)",
    )


def add_machine_options(parser: argparse.ArgumentParser, l2: bool = True) -> None:
    """The GPU and the state of its L2: `--gpu`, `--set`, and unless `l2` is false `--l2`."""
    group = parser.add_argument_group("machine")
    group.add_argument("--gpu", default="h200", metavar="NAME|FILE.toml", help="the GPU (default h200)")
    add_set_option(group)
    if not l2:
        return
    group.add_argument(
        "--l2",
        choices=("cold", "warm", "flush"),
        default="cold",
        help="L2 before the run: cold (empty), warm (the same launches ran before), flush (emptied before each kernel)",
    )


def add_schedule_options(parser: argparse.ArgumentParser) -> None:
    """How the algorithm is tiled: `--schedule`, `--tile-q`, `--tile-kv`, `--stages`, `--set-schedule`."""
    group = parser.add_argument_group("schedule")
    group.add_argument(
        "--schedule",
        choices=("default", "best"),
        help="tiles not given: a kernel library's (default), or the best that fit the GPU by a simple cost (best)",
    )
    group.add_argument("--tile-q", type=whole, metavar="N", help="query rows per tile")
    group.add_argument("--tile-kv", type=whole, metavar="N", help="key/value rows per tile")
    group.add_argument("--stages", type=whole, metavar="N", help="K/V buffers in shared memory")
    group.add_argument(
        "--set-schedule",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any schedule key of the algorithm, such as kv_order=sawtooth (repeatable)",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Where results go besides the table: `--json`, `--html`, `--perfetto`, `--ctas`, `--save`."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE|-", help="write the result as JSON (- is standard output)")
    group.add_argument("--html", metavar="FILE", help="write an HTML report")
    group.add_argument("--perfetto", metavar="FILE", help="write a timeline for ui.perfetto.dev")
    group.add_argument("--ctas", metavar="FILE", help="write the SM, start and end of every CTA as a CSV")
    group.add_argument("--save", metavar="DIR", help="write the result, with its timelines, into a folder")


def gpu_from(args: argparse.Namespace) -> GpuSpec:
    """The GPU that `--gpu` and `--set` describe."""
    return load_gpu(args.gpu, args.overrides)


def model_from(args: argparse.Namespace) -> ModelShape | None:
    """The model that `--model` names, if it was given."""
    return load_model(args.model) if args.model is not None else None


def problem_from(args: argparse.Namespace, algorithm: str = "") -> AttentionProblem:
    """The attention call that the problem options describe; explicit options win over `--model`, and that over what
    `algorithm` takes for granted (decoding: one query row).
    """
    from traces.algorithms import default_shape
    from traces.problem import AttentionProblem

    model = model_from(args)
    shape: dict[str, int | str | tuple[int, ...]] = {}
    try:
        shape |= default_shape(algorithm) if algorithm else {}
        if model is not None:
            shape |= model.shape
        shape |= {name: value for name in _SHAPE if (value := getattr(args, name)) is not None}
        return AttentionProblem(**shape, causal=args.causal)  # type: ignore[arg-type]  # names checked by _SHAPE
    except ValueError as error:
        raise UserError(str(error)) from None


def schedule_settings(args: argparse.Namespace) -> dict[str, str]:
    """Schedule key → value as text, from `--tile-q`, `--splits`, … and `--set-schedule` (which wins)."""
    settings = {name: str(value) for name in _SCHEDULE if (value := getattr(args, name)) is not None}
    for text in args.set_schedule:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise UserError(f"--set-schedule {text!r} is not of the form key=value, such as kv_order=sawtooth")
        settings[key] = value
    return settings


def plan_from(args: argparse.Namespace, name: str, problem: AttentionProblem, gpu: GpuSpec) -> Plan:
    """The plan of algorithm `name` with the schedule that the options describe; says what `--schedule best` chose."""
    settings = schedule_settings(args)
    if args.schedule != "best":
        from gpusim.plans import make_plan

        return make_plan(name, problem, gpu, settings)
    from gpusim.best_schedule import best_plan

    plan, reason = best_plan(name, problem, gpu, settings)
    if not args.quiet:
        print(reason, file=sys.stderr)
    return plan


def given_problem_or_schedule(args: argparse.Namespace) -> list[str]:
    """The problem and schedule options that were given, as written on the command line."""
    names = ("model", *_SHAPE, "causal", "schedule", *_SCHEDULE, "set_schedule")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(args, name)]


def check_outputs(args: argparse.Namespace) -> None:
    """UserError if an output could not be written; called before any work is done."""
    seen: dict[Path, str] = {}
    for name in ("json", "html", "perfetto", "ctas", "stamps", "save"):
        target = getattr(args, name, None)
        if target is None or (name == "json" and target == "-"):
            continue
        path = Path(target)
        if name == "save":
            _check_folder(path)
        else:
            check_file(f"--{name}", path)
        if path.resolve() in seen:
            raise UserError(f"--{name} {target} is already the target of {seen[path.resolve()]}")
        seen[path.resolve()] = f"--{name}"


def check_file(option: str, path: Path) -> None:
    """UserError if the file `path`, given by `option`, could not be written."""
    if not path.name or path.is_dir():
        raise UserError(f"{option} {path} is a folder, not a file")
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: folder {path.parent} does not exist")
    if not os.access(path.parent if _replaceable(path) else path, os.W_OK):
        raise UserError(f"{option} {path} cannot be written")


def _check_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UserError(f"--save {path} is a file, not a folder")
    existing = path if path.exists() else next(parent for parent in path.absolute().parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UserError(f"--save {path}: folder {existing} cannot be written")


def _replaceable(path: Path) -> bool:
    """Whether writing to `path` means making a file there (and not feeding a pipe or a device)."""
    return path.is_file() or not path.exists()


def atomic_write(path: str | Path, content: str | bytes) -> None:
    """Write `content` to `path` completely or not at all: to a file beside it, which then takes its place."""
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if not _replaceable(target):
            target.write_bytes(data)
            return
        # Through a symbolic link, the file it points to is replaced, not the link.
        target = target.resolve()
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            temporary.write_bytes(data)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
