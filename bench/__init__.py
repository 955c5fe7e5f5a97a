"""Speed and memory, measured; never part of the tests. `python -m bench` runs all, `python -m bench --json` a short run."""
