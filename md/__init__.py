"""Molecular dynamics of one or many devices: potential, engine, ensembles, observables, trajectory, restart, report."""
