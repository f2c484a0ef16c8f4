"""Training: `run.run(config)` does it all; the other modules are its parts."""
