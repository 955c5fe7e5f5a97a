"""What is no plug-in is refused with what to pass."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from ares_celery import InvalidPluginError, install


@pytest.mark.parametrize("plugins", [5, "metrics", None, ["nosuch"], [None], [5]])
def test_what_is_no_plug_in_is_refused(plugins: Any) -> None:
    """When it is passed, not when a worker starts."""
    app = Celery("shop", set_as_current=False)
    with pytest.raises(InvalidPluginError):
        install(app, plugins=plugins)
