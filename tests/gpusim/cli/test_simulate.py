"""Does `gpusim simulate` answer with the right figures, and every bad input with one sentence?"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import gpusim.machine
from gpusim.cli.main import main
from gpusim.cli.progress import Progress

SMALL = ["--heads", "1", "--seq", "256", "--dim", "64"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["simulate", *arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output(capsys, *arguments, "--json", "-"))


def test_does_the_textbook_case_come_out(capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "naive", "--heads", "1", "--seq", "4096", "--dim", "128", "--check", "--quiet")
    closed, total = result["analytic"], result["total"]
    assert closed["hbm_bytes"] == 8 * 4096**2 + 6 * 4096 * 128  # 137 MB
    assert closed["flops"] == 4 * 4096**2 * 128
    assert closed["arithmetic_intensity"] == pytest.approx(62.5, abs=0.1)
    assert [kernel["name"] for kernel in result["kernels"]] == ["qk", "softmax", "pv"]
    # S and P, 32 MiB each, partly stay in the 60 MiB L2: the closed form is too high.
    assert total["dram_read_bytes"] + total["dram_write_bytes"] < 0.8 * closed["hbm_bytes"]
    # Every tile was moved, and once: each row of 32 output tiles re-reads Q and K, V's tile covers d.
    reads = {name: tensor["sm_read_bytes"] >> 20 for name, tensor in result["by_tensor"].items()}
    assert reads == {"Q": 32, "K": 32, "V": 32, "S": 32, "P": 32, "O": 0}
    assert total["sm_read_bytes"] == sum(kernel["sm_read_bytes"] for kernel in result["kernels"]) == 160 << 20
    assert total["sm_write_bytes"] == (32 + 32 + 1) << 20


@pytest.mark.parametrize(("seq", "megabytes", "intensity"), [(4096, 137.4, 62.5), (8192, 543.2, 63.3)])
def test_what_the_closed_form_says_without_a_simulation(
    seq: int, megabytes: float, intensity: float, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--heads", "1", "--seq", str(seq), "--dim", "128", "--gpu", "a100-80gb-sxm", "--analytic"]
    closed = as_json(capsys, "naive", *shape)["analytic"]
    assert closed["hbm_bytes"] / 1e6 == pytest.approx(megabytes, abs=0.1)
    assert closed["arithmetic_intensity"] == pytest.approx(intensity, abs=0.1)
    assert closed["ridge_point"] == pytest.approx(153, abs=0.5)
    assert closed["bound"] == "memory"
    words = output(capsys, "naive", *shape).splitlines()[1].split()
    assert words[0] == "naive" and float(words[1]) == pytest.approx(megabytes, abs=0.1)


def test_does_footprint_show_the_tensors_even_of_what_fits_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "naive", "flash2", "--heads", "32", "--seq", "1000000", "--footprint").splitlines()
    assert out[0] == "naive" and "S MiB" in out[1] and "P MiB" in out[1] and "LSE MiB" in out[5]
    sizes = as_json(capsys, "naive", "--heads", "1", "--seq", "4096", "--footprint")["footprint"]
    assert sizes["S"] == sizes["P"] == 32 << 20
    assert sizes["total"] == sum(size for name, size in sizes.items() if name != "total")


def test_is_a_table_shown_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "naive", "flash2", *SMALL, "--l2", "warm")
    assert "naive" in out and "flash2_forward" in out and "comparison" in out


def test_are_all_outputs_written_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: str(tmp_path / f"r.{name}") for name in ("json", "html", "perfetto")}
    folder = tmp_path / "new" / "run"
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    out = output(capsys, "flash2", "flash3", *SMALL, *options, "--save", str(folder))
    assert "comparison" in out
    results = json.loads(Path(files["json"]).read_text())
    assert [result["algorithm"] for result in results] == ["flash2", "flash3"]
    assert Path(files["html"]).read_text().lower().startswith("<!doctype html>")
    assert json.loads(Path(files["perfetto"]).read_text())["traceEvents"]
    names = ["flash2.parquet", "flash3.parquet", "report.txt", "result.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert json.loads((folder / "result.json").read_text()) == results
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "r.html", "r.json", "r.perfetto"]
    assert main(["report", str(folder / "result.json")]) == 0
    assert capsys.readouterr().out == (folder / "report.txt").read_text()


def test_is_the_json_valid_when_a_figure_is_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(capsys, "flash2", *SMALL, "--set", "l2.size=inf")
    assert result["machine"]["l2_bytes"] is None


def test_do_schedule_and_machine_options_reach_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    plain = as_json(capsys, "flash2", *SMALL)
    tiled = as_json(capsys, "flash2", *SMALL, "--tile-q", "64", "--set-schedule", "kv_order=forward")
    assert (tiled["schedule"]["tile_q"], tiled["schedule"]["kv_order"]) == (64, "forward")
    assert tiled["total"]["ctas"] == 2 * plain["total"]["ctas"]
    assert tiled["by_tensor"]["K"]["sm_read_bytes"] == 2 * plain["by_tensor"]["K"]["sm_read_bytes"]
    assert as_json(capsys, "naive", *SMALL, "--gpu", "a100-80gb-sxm")["schedule"]["instruction"] == "mma_sync"


def test_is_what_was_finished_kept_on_an_interrupt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gpusim.machine.simulate

    def interrupted_at_flash3(plan: Any, *rest: Any, **named: Any) -> Any:
        if plan.algorithm == "flash3":
            raise KeyboardInterrupt
        return whole(plan, *rest, **named)

    monkeypatch.setattr(gpusim.machine, "simulate", interrupted_at_flash3)
    target = tmp_path / "r.json"
    assert main(["simulate", "flash2", "flash3", *SMALL, "--json", str(target)]) == 130
    captured = capsys.readouterr()
    assert "flash2_forward" in captured.out and "interrupted before the end of flash3" in captured.err
    assert json.loads(target.read_text())["algorithm"] == "flash2"
    assert main(["simulate", "flash3", *SMALL, "--json", str(tmp_path / "none.json")]) == 130
    assert not (tmp_path / "none.json").exists()


def test_what_progress_says() -> None:
    stream = io.StringIO()
    with Progress("flash2", 1000, "CTAs", stream=stream) as progress:
        progress(0.1)
        progress(0.5)
        start = progress._first
        line = progress.text(start + 60)
        assert line.startswith("flash2 [############............] 500 of 1,000 CTAs, 1:00")
        assert line.endswith("about 1:00 left")
    assert stream.getvalue() == ""  # over before two seconds


BAD = [
    (["flash4", *SMALL], "'flash4' is not one of naive, naive_online_softmax, flash1, "),
    ([], "an ALGO or --trace FILE is needed"),
    (["flash2", "flash2"], "flash2 is given twice"),
    (["flash2", "--gpu", "h300"], "'h300' is neither a file nor one of"),
    (["flash2", "--heads", "0"], "'0' is not a whole number of at least 1"),
    (["flash2", "--seq", "-4"], "'-4' is not a whole number of at least 1"),
    (["flash2", "--heads", "32", "--kv-heads", "5"], "kv_heads 5 does not divide heads 32"),
    (["flash2", "--tile-q", "1024", "--tile-kv", "512"], "but h200 allows 232448"),
    (["flash2", "--tile-q", "7"], "tile_q must be a positive multiple of 16, not 7"),
    (["flash2", "--set", "l2.sise=3"], "did you mean l2.size?"),
    (["flash2", "--set", "l2.size"], "is not of the form section.key=value"),
    (["flash2", "--set-schedule", "kv_odrer=forward"], "did you mean kv_order?"),
    (["flash2", "--set-schedule", "kv_order=up"], "kv_order is 'up', not one of forward"),
    (["flash3", "--gpu", "a100-80gb-sxm"], "uses wgmma instructions, which a100-80gb-sxm does not have"),
    (["naive", "--seq", "1000000"], "needs 128,032.8 GB for its tensors (S alone 64,000.0 GB), but h200 has 141 GB"),
    (["flash2", "--page-size", "16"], "paged K and V (page_size) is not supported by this algorithm"),
    (["flash2", "--trace", "x.npz"], "leave out flash2"),
    (["--trace", "x.npz", "--seq", "64", "--tile-q", "64"], "leave out --seq, --tile-q"),
    (["--trace", "missing.npz"], "missing.npz does not exist"),
    (["flash2", "--footprint", "--html", "x.html"], "--html does not apply"),
    (["flash2", "--footprint", "--analytic"], "not allowed with argument"),
    (["flash2", "--json", "missing/r.json"], "folder missing does not exist"),
    (["flash2", "--json", "."], "is a folder, not a file"),
    (["flash2", "--perfetto", "x", "--html", "x"], "already the target of"),
    (["flash2", "--gpu", "broken.toml"], "broken.toml"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(a) or "nothing" for a, _ in BAD])
def test_is_bad_input_one_sentence_and_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("[l2\nsize = 3")
    monkeypatch.setattr(gpusim.machine, "simulate", None)  # nothing may get that far
    html = [] if "--html" in arguments else ["--html", "page.html"]
    analytic = "--footprint" in arguments or "--trace" in arguments
    assert main(["simulate", *arguments, *([] if analytic else html)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gpusim: error: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.toml"]


def test_is_a_read_only_folder_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    monkeypatch.setattr(gpusim.machine, "simulate", None)
    for option in ("--json", "--html", "--perfetto", "--save"):
        assert main(["simulate", "flash2", *SMALL, option, str(tmp_path / "r")]) == 2
        assert "cannot be written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_does_a_full_disk_leave_no_part_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, destination: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    for option in ("--json", "--html", "--perfetto"):
        assert main(["simulate", "flash2", *SMALL, option, str(tmp_path / "r")]) == 2
        assert "No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
