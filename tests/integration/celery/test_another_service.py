"""The page for services that have Celery and not this package: its code runs as printed, against a real worker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.celery.fleet import CeleryFleet
from tests.redis_server import RedisServer
from tests.without_package import run_without_package

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "call-from-another-service.md"


def test_the_code_of_the_page_works_where_the_package_is_not_installed(tmp_path: Path) -> None:
    """Start, wait, ask, read in pieces, follow, be refused, stop."""
    code = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    with RedisServer() as server, CeleryFleet(server, "ares", tmp_path) as fleet:
        # Commands in pool children here, in threads elsewhere.
        fleet.worker("all", ("agents", "supervision", "control"), pool="prefork", slots=4)
        service = tmp_path / "service"
        service.mkdir()
        urls = {"BROKER_URL": server.url, "RESULT_URL": server.url}
        run_without_package(code, service, env=urls, timeout=40)
        info = fleet.info("counter-1")
        assert (info.state, info.reason, info.actor) == ("stopped", "the shop closes", "shop")
