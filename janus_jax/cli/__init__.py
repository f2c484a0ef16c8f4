"""The command line: `main` parses, one module a command does the work and is imported only then."""
