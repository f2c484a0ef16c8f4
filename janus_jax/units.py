"""Units. Inside: eV, Å, amu, fs at the interfaces; stress eV/Å^3, tensile positive (ASE sign)."""

MEV_PER_EV = 1000.0
GPA_PER_EV_ANGSTROM3 = 160.21766208
