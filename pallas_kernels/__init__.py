"""Sparse equivariant attention and its transposes as Pallas kernels, each with a plain reference version."""
