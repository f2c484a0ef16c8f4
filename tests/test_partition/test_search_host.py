"""Neighbours of every cut and scheme against the oracle, and what must not change them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partition.cut import atoms, cut
from partition.exchange import SCHEMES, requests
from partition.host_search import all_pairs
from partition.testing import as_set, assert_exact, oracle_pairs, systems

CUTS = ("grid", "hilbert", "morton")
RANKS = (1, 2, 3, 5, 7, 8, 13)
EXAMPLES = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))


def found(positions, cell, pbc, cutoff, ranks=3, method="hilbert", scheme="rank-box"):
    system = atoms(positions, cell, pbc)
    made = cut(system, ranks, method, cutoff=cutoff)
    return as_set(*all_pairs(requests(system, made, cutoff, scheme), cutoff))


@EXAMPLES
@given(systems(), st.sampled_from(RANKS), st.sampled_from(CUTS), st.sampled_from(SCHEMES))
def test_every_cut_and_scheme_finds_the_pairs_of_the_oracle(system, ranks, method, scheme):
    assert_exact(found(**vars(system), ranks=ranks, method=method, scheme=scheme), system)
