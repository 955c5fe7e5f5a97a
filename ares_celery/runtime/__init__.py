"""Hosting incarnations: claim, recover, run, serve, finish; the lease keeper."""
