"""Training on many devices: a schedule's instruction lists, run on a grid of devices (DESIGN.md, section 6)."""
