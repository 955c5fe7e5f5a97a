"""This repository's own deployment: the only code with import-time effects."""
