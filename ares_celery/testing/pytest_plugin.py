"""The pytest plug-in of the testing kit. Loaded by every pytest run on the machine, so it imports nothing."""

from __future__ import annotations
