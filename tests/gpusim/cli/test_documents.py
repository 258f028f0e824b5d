"""Are the commands in the documents commands that exist?"""

from __future__ import annotations

import doctest
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import gpusim
from gpusim.cli import simulate
from gpusim.cli.main import COMMANDS, Parser, main
from gpusim.cli.options import gpu_from
from gpusim.plans import check_fits
from gpusim.spec import load_gpu
from gpusim.spec.document import KEYS
from gpusim.spec.sources import KINDS, kind_of

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(document: Path) -> list[list[str]]:
    """The `gpusim` command lines in the code blocks of `document`, without comments, pipes and placeholders."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", document.read_text(), re.S | re.M):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ ").split(" | ")[0], comments=True) if "gpusim " in line else []
            if words[:1] == ["gpusim"]:
                found.append(words[1:])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_does_every_command_parse(document: Path) -> None:
    modules = {name: module for name, _, module in COMMANDS}
    for name, *arguments in commands(document):
        if name.startswith("-"):
            continue
        parser = Parser(prog=name, allow_abbrev=False)
        import_module(modules[name]).add_arguments(parser)
        parser.parse_args(arguments)


GUIDE = ROOT / "docs" / "algorithms.md"
"""Simulates an algorithm that the reader adds (`tests/traces/test_guide.py`)."""


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path != GUIDE], ids=lambda path: path.name)
def test_does_every_simulated_example_make_plans_that_fit(document: Path) -> None:
    for name, *arguments in commands(document):
        if name != "simulate" or "--trace" in arguments or any(word.endswith((".toml", "…")) for word in arguments):
            continue
        parser = Parser(prog=name, allow_abbrev=False)
        simulate.add_arguments(parser)
        args = parser.parse_args(arguments)
        gpu = gpu_from(args)
        for plan in simulate._plans(args, gpu):
            if not (args.footprint or args.analytic):
                check_fits(plan, gpu)


def test_are_the_figures_in_the_readme_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"^\$ gpusim (.*)\n((?:(?!\$ |```).*\n)+)", (ROOT / "README.md").read_text(), re.M)
    assert shown
    for command, output in shown:
        assert main(shlex.split(command)) == 0
        assert capsys.readouterr().out.strip() == output.strip()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "gpus").glob("*.toml")), ids=lambda path: path.stem)
def test_does_every_example_gpu_load_and_simulate(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_gpu(path).name == path.stem
    assert main(["gpus", str(path)]) == 0
    small = ["--heads", "1", "--seq", "256", "--dim", "64", "--check", "--quiet"]
    assert main(["simulate", "flash2", "--gpu", str(path), *small]) == 0
    assert path.stem in capsys.readouterr().out


def test_do_the_hypothetical_gpus_in_the_text_load(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "hypothetical-gpus.md").read_text()
    example, sources = re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M)
    (tmp_path / "gpu.toml").write_text(example + sources)
    gpu = load_gpu(tmp_path / "gpu.toml")
    assert gpu.l2.size_bytes == 2 * load_gpu("h200").l2.size_bytes
    assert gpu.sources["l2.size"] == "roadmap talk, slide 12"


def test_are_the_keys_and_kinds_in_the_text_those_of_the_program() -> None:
    text = (ROOT / "docs" / "hypothetical-gpus.md").read_text()
    named = set(re.findall(r"`((?:sm|l1|noc|l2|hbm)\.[\w.]+)`", text))
    assert named and named <= set(KEYS)
    h200 = load_gpu("h200").sources
    rows = re.findall(r"^\| ([\w ]+) \| .* \| ([^|]*) \|$", text.split("## How far to trust")[1], re.M)
    kinds = {kind: re.findall(r"`([^`]+)`", keys) for kind, keys in rows if kind in KINDS}
    assert set(KINDS) - set(kinds) == {"given", "default"}
    for kind, keys in kinds.items():
        assert {kind_of(h200.get(key, "default")) for key in keys} <= {kind}, kind


def test_does_the_python_example_run(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    exec(example.replace("seq=4096", "seq=256"), {})
    assert "dram_read_bytes" in capsys.readouterr().out


def test_is_the_example_of_the_package_right() -> None:
    assert doctest.testmod(gpusim).failed == 0
