"""Our routes inside Flower: faults, survival runs, scenarios and what came of them, as JSON and as a stream.

``ares flower`` serves Flower with them. Whoever starts Flower otherwise adds two lines to its ``flowerconfig.py``::

    from ares_celery.web.flower_extension import load
    load()
"""

from __future__ import annotations

from ares_celery.web.flower_extension.loading import load

__all__ = ["load"]
