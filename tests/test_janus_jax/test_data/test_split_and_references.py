"""Splits that stay, groups that stay together, and reference energies worked out by hand."""

import logging

import numpy as np
import pytest

from janus_jax.data import references, split, summary
from janus_jax.data.sources import open_source
from janus_jax.data.summary import FrameKeys, summarize
from janus_jax.errors import DataError

GROUPS = np.random.default_rng(1).integers(0, 2**64, 5000, np.uint64)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def made(tmp_path):
    """The summary of a text."""

    def made(text, **settings):
        (tmp_path / "hand.xyz").write_text(text)
        return summarize(open_source(tmp_path / "hand.xyz"), 3.0, **settings)

    return made


def test_appended_and_reordered_data_move_nothing():
    part = split.assign(GROUPS[:300], [0.7, 0.2, 0.1], seed=3)
    assert set(part) == {0, 1, 2}
    np.testing.assert_array_equal(split.assign(GROUPS, [0.7, 0.2, 0.1], seed=3)[:300], part)
    order = np.random.default_rng(0).permutation(300)
    np.testing.assert_array_equal(split.assign(GROUPS[:300][order], [0.7, 0.2, 0.1], seed=3), part[order])
    assert (split.assign(GROUPS[:300], [0.7, 0.2, 0.1], seed=4) != part).any()


@pytest.mark.parametrize("fractions", [[0.8, 0.1, 0.1], [0.5, 0.5], [0.9, 0.05, 0.05], [1.0]])
@pytest.mark.parametrize("groups", [GROUPS, np.arange(5000, dtype=np.uint64)], ids=["hashes", "counting"])
def test_sizes_follow_the_fractions(fractions, groups):
    counts = np.bincount(split.assign(groups, fractions, seed=0), minlength=len(fractions))
    for count, fraction in zip(counts, fractions, strict=True):
        assert abs(count - 5000 * fraction) <= 5 * np.sqrt(5000 * fraction * (1 - fraction))


def test_seeds_are_independent():
    one, two = (split.assign(GROUPS, [0.5, 0.5], seed=seed) for seed in (0, 1))
    assert abs((one == two).mean() - 0.5) < 5 * 0.5 / np.sqrt(5000)


def test_groups_stay_together_and_no_part_is_empty():
    groups = np.repeat(GROUPS[:5], 4)
    for seed in range(40):
        part = split.assign(groups, [0.8, 0.1, 0.1], seed)
        assert (part.reshape(5, 4) == part.reshape(5, 4)[:, :1]).all()
        assert set(part) == {0, 1, 2}
    assert split.assign(groups[:0], [0.8, 0.2], 0).tolist() == []
    assert len(set(split.assign(groups[:4], [0.8, 0.2], 0))) == 1  # one group cannot be on two sides


@pytest.mark.parametrize(
    ("fraction", "count", "groups", "words", "grave"),
    [
        (0.1, 10, 100, None, False),
        (0.1, 9, 95, None, False),  # nearest to what is possible
        (0.1, 12, 100, "12 of 100 structures, where 0.1 of them (10) was asked for: each goes by a hash", False),
        (0.1, 21, 100, "21 of 100", True),
        (0.1, 0, 100, "0 of 100", True),
        (0.3, 8, 4, "8 of 8 structures, where 0.3 of them (2.4) was asked for: they are 4 groups that stay", True),
    ],
)
def test_a_part_of_another_size_than_asked_says_so(fraction, count, groups, words, grave):
    every = np.arange(groups, dtype=np.uint64).repeat(2 if groups == 4 else 1)
    said = split.deviation(fraction, count, every)
    assert (said is None) == (words is None)
    if said:
        assert said.text.startswith(words)
        assert said.grave == grave


def test_equal_structures_have_one_hash(made):
    variants = ["0 0 0.00000000", "0 0 -0.00000000", "0 0 1e-9", "-1e-9 0 0"]
    text = "".join(f'2\nLattice="4 0 0 0 5 0 0 0 6" energy={k}\nO {v}\nH 0 0 1\n' for k, v in enumerate(variants))
    hashes = made(text).records["structure"]
    assert len(set(hashes)) == 1
    others = ['Lattice="4 0 0 0 5 0 0 0 7"\nO 0 0 0\nH 0 0 1', 'Lattice="4 0 0 0 5 0 0 0 6"\nO 0 0 0.01\nH 0 0 1',
              'Lattice="4 0 0 0 5 0 0 0 6"\nH 0 0 0\nH 0 0 1']  # fmt: skip
    assert len({hashes[0], *made("".join(f"2\n{other}\n" for other in others)).records["structure"]}) == 4


def test_frames_of_one_trajectory_stay_together(made):
    text = "".join(f"1\ntrajectory=run{k // 5}\nH 0 0 {k}\n" for k in range(50))
    loose, tied = made(text), made(text, keys=FrameKeys(split="trajectory"))
    assert len(set(loose.records["group"])) == 50
    assert len(set(tied.records["group"])) == 10
    part = split.assign(tied.records["group"], [0.6, 0.4], 0).reshape(10, 5)
    assert (part == part[:, :1]).all()
    lacking = made(text + "1\n\nH 0 0 0\n", keys=FrameKeys(split="trajectory"))
    assert list(lacking.problems) == [50]
    assert "trajectory" in lacking.problems[50]


def molecules(*formulas):
    """Frames of atoms in a row, by elements and energy."""
    rows = [(elements.split(), energy) for elements, energy in formulas]
    return "".join(
        f"{len(elements)}\nenergy={energy}\n" + "".join(f"{e} 0 0 {1.2 * k}\n" for k, e in enumerate(elements))
        for elements, energy in rows
    )


def test_least_squares_finds_the_energies_that_explain_all(made, caplog):
    caplog.set_level(logging.INFO)
    found = made(molecules(("O H H", -13.0), ("O O", -20.0), ("H H", -3.0), ("C O O", -26.0)))
    table = references.least_squares(found, np.arange(4)).table
    assert table == pytest.approx({1: -1.5, 6: -6.0, 8: -10.0})
    assert all(type(energy) is float for energy in table.values())
    assert not caplog.records
    assert references.least_squares(found, np.array([1])).table == pytest.approx({8: -10.0})


def test_frequent_compositions_count_more(made):
    found = made(molecules(("H", -1.0), ("H", -1.0), ("H", -2.5), ("H H", -4.0)))
    # minimum of 2 (x+1)^2 + (x+2.5)^2 + (2x+4)^2 is at x = -(2 + 2.5 + 8) / 7
    assert references.least_squares(found, np.arange(4)).table == pytest.approx({1: -12.5 / 7})


def test_what_compositions_do_not_fix_is_said(made, caplog):
    caplog.set_level(logging.INFO)
    found = made(molecules(("O H H", -12.0), ("O O H H H H", -24.0)))
    table = references.least_squares(found, np.arange(2)).table
    assert table[8] + 2 * table[1] == pytest.approx(-12.0)
    assert (table[8], table[1]) == pytest.approx((-2.4, -4.8))  # the smallest solution
    assert "H, O" in caplog.text


def test_missing_energies_are_no_zeros(made):
    text = molecules(("H H", -3.0)) + "3\nforces_only=T\nH 0 0 0\nH 0 0 1\nC 0 0 2\n"
    assert references.least_squares(made(text), np.arange(2)).table == pytest.approx({1: -1.5})
    assert references.least_squares(made(text), np.array([1])).table == {}


def test_one_wild_frame_does_not_move_the_references(made, caplog):
    rng, kinds = np.random.default_rng(0), ["O H H", "H H", "O O", "O H", "O O H H"]
    right = {"O": -10.0, "H": -2.0}
    rows = [(kind, sum(right[e] for e in kind.split()) + 0.02 * rng.normal()) for kind in kinds * 4]
    clean = made(molecules(*rows))
    expected = references.least_squares(clean, np.arange(20))
    assert expected.table == pytest.approx({1: -2.0, 8: -10.0}, abs=0.05)
    assert (expected.left_out, expected.moved) == ((), {})
    wild = [*rows[:7], (rows[7][0], 900.0), *rows[8:]]
    found = references.least_squares(made(molecules(*wild)), np.arange(20))
    assert found.table == pytest.approx(expected.table, abs=0.02)
    assert found.left_out == (7,)
    assert found.moved[8] > 34  # what plain least squares would have made of it
    references.warn(found, "hand.xyz, frame {}".format)
    assert "leaves out 1 frames" in caplog.text
    assert f"O {found.moved[8]:.2f} eV instead of -10." in caplog.text
    assert "hand.xyz, frame 7" in caplog.text


def test_an_isolated_atom_of_one_element_does_not_make_the_other_absorb_all_cohesion(made, caplog):
    rows = [("O H H", -13.0), ("O O", -20.0), ("H H", -4.0), ("O H H", -13.0)]
    found, how = references.automatic(made(molecules(("H", -0.5), *rows)), np.arange(1, 5))
    plain = references.least_squares(made(molecules(*rows)), np.arange(4)).table
    assert (found.table, how) == (pytest.approx(plain), "least squares")
    references.warn(found, str)
    assert "isolated atoms of H are in the data, but none of O" in caplog.text
    both, how = references.automatic(made(molecules(("H", -0.5), ("O", -7.0), *rows)), np.arange(2, 6))
    assert (both.table, how) == ({1: -0.5, 8: -7.0}, "isolated atoms in the data")


def test_references_that_no_atom_has_are_said(made, caplog):
    references.warn(references.Fit({1: -2.0, 8: 34.0}), str)
    assert "the reference energy of O is +34.0 eV" in caplog.text


def test_isolated_atoms_give_their_energies(made):
    text = molecules(("H", -1.0), ("H", -1.5), ("O", -9.0), ("H H", -3.0)) + "1\ncharge=1 energy=-20\nH 0 0 0\n"
    text += '1\nLattice="2 0 0 0 2 0 0 0 2" energy=-30\nH 0 0 0\n'
    text += '1\nLattice="2 0 0 0 2 0 0 0 2" config_type=isolated_atom energy=-1.25\nH 0 0 0\n1\n\nC 0 0 0\n'
    found = made(text)
    assert references.isolated(found).tolist() == [True, True, True, False, False, False, True, True]
    assert references.isolated_energies(found) == {1: -1.5, 8: -9.0}


def test_given_and_required_references():
    assert references.given({"H": -1.0, "Au": 0.0}) == {1: -1.0, 79: 0.0}
    with pytest.raises(DataError, match="Hx"):
        references.given({"H": -1.0, "Hx": 1.0})
    references.require({1: 0.0, 8: 0.0}, [1, 8], "data.train")
    with pytest.raises(DataError, match=r"O \(in data.train\)"):
        references.require({1: 0.0}, [1, 8], "data.train")


def test_absurd_references_are_warned_of(made, caplog):
    found = made(molecules(("H H", -3.0), ("O", -2000.0)) + molecules(("H", "NaN")))
    assert references.check({1: -1.5, 8: -2000.0}, found, np.arange(3), "frame {}".format) == pytest.approx(0.0)
    assert not caplog.records
    assert references.check({1: -1.5, 8: 0.0}, found, np.arange(3), "frame {}".format) == pytest.approx(2000.0)
    assert "1 of 3 frames" in caplog.text
    assert "2000 eV per atom" in caplog.text
    assert caplog.text.rstrip().endswith("frame 1")


def test_elements_of_usable_and_unusable_frames(made):
    found = made(molecules(("O H H", -1.0), ("C C", 1.0)))
    assert found.elements().tolist() == [1, 6, 8]
    assert found.elements(np.array([1])).tolist() == [6]
    assert made("1\n\nH 0 0 zero\n").elements().tolist() == []


def test_a_summary_made_in_parts_is_the_same(made, tmp_path, monkeypatch):
    kinds = ["O H H", "C", "H H", "O H H", "C O", "C", "H H"]
    text = "".join(
        molecules((kind, -k)).replace("energy", f"config_type=type{k % 3} dataset=set{k // 4} energy")
        for k, kind in enumerate(kinds)
    )
    whole = made(text)
    monkeypatch.setenv("JANUS_JAX_CACHE", str(tmp_path / ".other"))
    monkeypatch.setattr(summary, "CHUNK", 2)
    parts = made(text)
    assert parts.records.tobytes() == whole.records.tobytes()
    assert (parts.compositions, parts.datasets) == (whole.compositions, ["set0", "set1"])
    assert [parts.config_types[k] for k in parts.records["config_type"]] == [f"type{k % 3}" for k in range(7)]
    assert [parts.compositions[k] for k in parts.records["composition"][4:6]] == [{6: 1, 8: 1}, {6: 1}]
    assert parts.names == whole.names == {"energy=energy": 7}
    assert made(text).records.tobytes() == whole.records.tobytes()  # from the cache
