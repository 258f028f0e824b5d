"""Are GPU files read, extended and refused as they should be?"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gpusim.errors import UserError
from gpusim.spec import load_gpu


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_does_a_file_extend_a_preset_consistently(tmp_path: Path) -> None:
    path = write(tmp_path, "big.toml", 'extends = "h200"\n[sm]\ncount = 144\n[l2]\nsize = "120MiB"\n')
    gpu = load_gpu(path)
    assert gpu.name == "big"
    assert gpu.sm.count == len(gpu.sm.cta_order) == 144
    assert gpu.l2.dirty_cap_bytes == 56 * 2**20
    assert gpu.sources["l2.size"] == "set in big.toml"


def test_does_a_file_extend_a_file_beside_it_and_keep_its_own_sources(tmp_path: Path) -> None:
    write(tmp_path, "parent.toml", 'extends = "a100-80gb-sxm"\n[l2]\nways = 8\n')
    path = write(
        tmp_path, "child.toml", 'extends = "parent.toml"\n[sm]\ncount = 96\n[sources]\n"sm.count" = "a leak"\n'
    )
    gpu = load_gpu(path, ["l2.ways=4"])
    assert (gpu.l2.ways, gpu.sm.count, gpu.architecture) == (4, 96, "Ampere")
    assert gpu.sources["sm.count"] == "a leak"


def test_does_an_inherited_figure_say_whose_it_is(tmp_path: Path) -> None:
    write(tmp_path, "parent.toml", 'extends = "h200"\n[l2]\nways = 8\n')
    sources = load_gpu(write(tmp_path, "child.toml", 'extends = "parent.toml"\n[l2]\nsize = "120MiB"\n')).sources
    assert sources["l2.latency"].startswith("as h200: measured")
    assert sources["l2.ways"] == "as parent: set in parent.toml"
    assert sources["l2.dirty_cap"].startswith("follows l2.size; before: as h200: measured")


def test_can_a_spec_travel_to_another_process() -> None:
    gpu = load_gpu("h200", ["l2.size=inf"])
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert hash(gpu) == hash(load_gpu("h200", ["l2.size=inf"]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("l2.sizes=3", "did you mean l2.size"),
        ("l2=3", "it is a section"),
        ("l2.size", "not of the form section.key=value"),
        ("l2.size=", "not of the form section.key=value"),
        ("l2.size=3 foo", "'3 foo' is not a size"),
        ("l2.replacement=plru", "'plru' is not one of lru, fifo, random, srrip, lip, bip"),
        ("l2.write_policy=around", "'around' is not one of write_back, write_through, write_around"),
        ("l2.home_allocation=last", "'last' is not one of none, allocate, middle, evict_first"),
        ("l2.slice_hash=crc", "'crc' is not one of mix, linear, xor"),
        ("noc.coalescer=mrege", "'mrege' is not one of merge, none"),
        ("l2.home_bits=3", "l2.home_bits must be address bits between 7"),
        ("l2.persisting=some", "'some' is not a size"),
        ("memory_side_cache.ways=0", "memory_side_cache.ways must be at least 1"),
        ("memory_side_cache.bandwidth=0", "memory_side_cache.bandwidth must be more than 0"),
        ("memory_side_cache.sise=1GiB", "did you mean memory_side_cache.size"),
        ("l2.slices=93", "l2.slices 93 is not a multiple of l2.partitions 2"),
        ("l2.partitions=0", "l2.partitions must be at least 1"),
        ("sm.count=0", "sm.count must be at least 1"),
        ("sm.count=1.5", "'1.5' is not a whole number"),
        ("sm.clock=0", "sm.clock must be more than 0"),
        ("sm.cta_order=0,1", "sm.cta_order must hold each SM"),
        ("sm.mma_sync_efficiency=1.5", "between 0 and 1"),
        ("sm.has_wgmma=maybe", "'maybe' is not true or false"),
        ("hbm.standard=HBM3e2", "did you mean HBM3e"),
        ("hbm.channels=0", "hbm.channels must be at least 1"),
        ("hbm.bandwidth=fast", "'fast' is not a bandwidth"),
        ("hbm.bandwidth=0", "hbm.bandwidth must be more than 0"),
        ("hbm.bandwidth=inf", "hbm.bandwidth must be more than 0 and finite"),
        ("hbm.stacks=0", "hbm.stacks must be at least 1"),
        ("hbm.timing.rfc_ab=5us", "is not less than refi"),
    ],
)
def test_is_a_bad_override_refused_in_one_sentence(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_gpu("h200", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sm\n", "not valid TOML"),
        ("extends = 3\n", "extends must be the name"),
        ('extends = "nothing"\n', "'nothing' is neither a file nor one of"),
        ('extends = "gpu.toml"\n', "extends itself"),
        ('extends = "h200"\n[sm]\ncuont = 3\n', "did you mean sm.count"),
        ('extends = "h200"\n[sm]\ncount = "many"\n', "sm.count: 'many' is not a whole number"),
        ('extends = "h200"\nsources = 3\n', "sources must be a table"),
        ("[sm]\ncount = 3\n", "is missing"),
    ],
)
def test_is_a_bad_file_refused_in_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load_gpu(write(tmp_path, "gpu.toml", text))
    assert message in str(caught.value)


def test_is_an_unknown_gpu_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'h20' is neither a file nor one of .*v100-sxm2; did you mean h200\?"):
        load_gpu("h20")
