"""Units. Inside: eV, Å, amu, fs at the interfaces; stress eV/Å^3, tensile positive (ASE sign)."""

MEV_PER_EV = 1000.0
