"""A configuration of Flower with our routes, for ``--conf``; the working folder's own is read as well."""

from __future__ import annotations

from ares_celery.web.flower_extension.loading import load_beside

load_beside("flowerconfig.py")
