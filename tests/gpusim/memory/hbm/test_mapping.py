"""Does every mapping give each address a place of its own, and the places the README's bit fields say?"""

from __future__ import annotations

import numpy as np
import pytest

from gpusim.errors import UserError
from gpusim.memory.hbm.mapping import MAPPINGS, Organisation, map_addresses, new_mapping

ONE, TWO = Organisation(1, 4, 4, 1024, 32), Organisation(2, 4, 4, 1024, 32)


def bits(addresses: np.ndarray, low: int, high: int) -> np.ndarray:
    return (addresses >> low) & ((1 << (high - low + 1)) - 1)


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("organisation", (ONE, TWO, Organisation(1, 3, 5, 1024, 32), Organisation(2, 2, 7, 2048, 64)))
def test_does_every_row_hold_its_bytes_and_no_more(name: str, organisation: Organisation) -> None:
    if "1pc" in name and organisation.pseudo_channels > 1:
        return
    place = new_mapping(name, organisation)
    rows = organisation.banks * 3
    size = rows * organisation.pseudo_channels * organisation.banks * organisation.row_bytes
    bank, row = map_addresses(place, np.arange(0, size, organisation.access_bytes))
    assert set(bank) == set(range(organisation.pseudo_channels * organisation.banks)) and set(row) == set(range(rows))
    counts = np.bincount(bank * rows + row)
    assert (counts == organisation.row_bytes // organisation.access_bytes).all()


def test_are_the_oracles_bit_fields_those_of_its_readme() -> None:
    a = np.random.default_rng(0).integers(0, 1 << 28, 5000)
    bank, row = map_addresses(new_mapping("bgi1pc", ONE), a)
    assert np.array_equal(bank, bits(a, 5, 6) * 4 + bits(a, 12, 13)) and np.array_equal(row, bits(a, 14, 27))
    bank, row = map_addresses(new_mapping("bgi2pc", TWO), a)
    assert np.array_equal(bank, bits(a, 5, 5) * 16 + bits(a, 6, 7) * 4 + bits(a, 13, 14))
    assert np.array_equal(row, bits(a, 15, 28))
    bank, row = map_addresses(new_mapping("default2pc", TWO), a)
    assert np.array_equal(bank, bits(a, 10, 10) * 16 + bits(a, 11, 12) * 4 + bits(a, 13, 14))
    assert np.array_equal(row, bits(a, 15, 28))


@pytest.mark.parametrize("name", MAPPINGS)
def test_do_the_accesses_of_one_run_share_a_row(name: str) -> None:
    place = new_mapping(name, ONE if "1pc" in name else TWO)
    starts = np.arange(0, 1 << 20, place.run_bytes)
    first = map_addresses(place, starts)
    last = map_addresses(place, starts + place.run_bytes - 32)
    assert np.array_equal(first, last)
    assert place.run_bytes == {"permuted": 128, "default2pc": 1024}.get(name, 32)


def test_do_strides_of_many_rows_not_camp_on_one_bank_of_the_permuted_mapping() -> None:
    place = new_mapping("permuted", TWO)
    for stride in (1 << 15, 1 << 19, 1 << 23):
        bank, _ = map_addresses(place, stride * np.arange(256))
        assert len(set(bank)) == 16


def test_is_a_mapping_that_does_not_fit_refused() -> None:
    with pytest.raises(UserError, match="one pseudo-channel"):
        new_mapping("bgi1pc", TWO)
    with pytest.raises(UserError, match="not one of"):
        new_mapping("robaraco", ONE)
