"""The padded arrays of a cut: who owns what in which row, there and back, and from one cut to another."""

import numpy as np
import pytest

from partition.cut import atoms, cut
from partition.errors import PartitionError
from partition.layout import Cut

SYSTEM = atoms(np.random.default_rng(0).uniform(0, 20, (50, 3)), np.diag([20.0, 20.0, 20.0]), np.ones(3, bool))
CUTS = [cut(SYSTEM, ranks, method) for ranks, method in ((1, "hilbert"), (7, "hilbert"), (6, "grid"), (60, "morton"))]


@pytest.mark.parametrize("made", CUTS, ids=lambda made: f"{made.method}-{made.ranks}")
def test_owner_row_and_table_agree(made):
    owner, row, table = made.owner(), made.row(), made.table(made.rows + 3)
    assert (made.ranks, made.atoms) == (len(made.counts), 50)
    assert made.rows == made.counts.max()
    assert (table[owner, row] == np.arange(50)).all()
    assert (table >= 0).sum(1).tolist() == made.counts.tolist()
    for rank in range(made.ranks):
        ids = made.ids(rank)
        assert (owner[ids] == rank).all()
        assert (row[ids] == np.arange(len(ids))).all()
        assert table[rank].tolist() == ids.tolist() + [-1] * (made.rows + 3 - len(ids))
    assert made.table().shape == (made.ranks, made.rows)


@pytest.mark.parametrize("made", CUTS, ids=lambda made: f"{made.method}-{made.ranks}")
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_gather_undoes_scatter(made, shape):
    values = np.random.default_rng(1).normal(size=(50, *shape)).astype(np.float32)
    for rows in (None, made.rows, made.rows + 5):
        padded = made.scatter(values, rows, fill=-7)
        assert padded.dtype == np.float32
        assert padded.shape == (made.ranks, rows or made.rows, *shape)
        assert (padded[made.table(rows) < 0] == -7).all()
        assert (padded[made.owner(), made.row()] == values).all()
        assert (made.gather(padded) == values).all()
    assert not made.scatter(values, made.rows + 1)[:, -1].any()


def test_migrating_there_and_back_changes_nothing():
    values = np.arange(1, 51)
    for old in CUTS:
        for new in CUTS:
            moved = old.migrate(old.scatter(values, old.rows + 2), new, new.rows + 1, fill=-1)
            assert (moved == new.scatter(values, new.rows + 1, -1)).all()
            assert (new.migrate(moved, old) == old.scatter(values)).all()


def test_no_atoms_have_one_row_of_padding():
    empty = Cut("hilbert", (3, 1, 1), np.zeros(0, np.int64), np.zeros(4, np.int64))
    assert (empty.rows, empty.atoms) == (1, 0)
    assert empty.table().tolist() == [[-1], [-1], [-1]]
    assert empty.gather(empty.scatter(np.zeros((0, 3)), 2)).shape == (0, 3)
    assert empty.table(0).shape == (3, 0)


def test_arrays_that_do_not_belong_to_the_cut_are_refused():
    made = CUTS[1]
    with pytest.raises(PartitionError, match="^7 rows a rank, but one owns 8 atoms$"):
        made.table(7)
    with pytest.raises(PartitionError, match="^7 rows a rank, but one owns 8 atoms$"):
        made.scatter(np.zeros(50), 7)
    with pytest.raises(PartitionError, match="^49 values for 50 atoms$"):
        made.scatter(np.zeros(49))
    with pytest.raises(PartitionError, match="^an array of 6 ranks for a cut of 7$"):
        made.gather(np.zeros((6, 8)))
    with pytest.raises(PartitionError, match="^7 rows a rank, but one owns 8 atoms$"):
        made.gather(np.zeros((7, 7)))
    fewer = Cut("hilbert", (1, 1, 1), np.arange(49), np.array([0, 49]))
    with pytest.raises(PartitionError, match="^50 values for 49 atoms$"):
        made.migrate(np.zeros((7, 8)), fewer)
