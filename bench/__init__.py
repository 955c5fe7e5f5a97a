"""Speed and memory, measured; never part of the tests. `python -m bench` runs all, `--json` a short run."""
