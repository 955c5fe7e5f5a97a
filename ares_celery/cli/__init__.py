"""The command line `ares`."""
