"""Training: `loop.run(config)` does it all; the other modules are its parts."""
