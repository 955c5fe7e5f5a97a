"""What the page on testing shows of an error is what a test gets."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ares_celery import DidNotHappenError
from ares_celery.testing import AgentHarness

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "test-your-agent.md"


def test_the_fault_of_the_page_is_felt() -> None:
    """The block as it stands there."""
    (block,) = re.findall(r"```python\n((?:(?!```).)*harness\.inject\(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block, {"__name__": "page"})  # noqa: S102 - our own page


def test_the_error_of_the_page_is_a_real_one(tmp_path: Path) -> None:
    """Word for word, the line of the agent's code included."""
    page = PAGE.read_text()
    code = re.search(r"```python\n(# shop_agents\.py\n.*?)```", page, re.DOTALL)
    shown = re.search(r"```text\nDidNotHappenError: (.*?)\n```", page, re.DOTALL)
    assert code is not None
    assert shown is not None
    path = tmp_path / "shop_agents.py"
    path.write_text(code[1])
    spec = spec_from_file_location("shop_agents_of_the_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with AgentHarness(module.Orders) as harness:
        harness.ask("apples")
        with pytest.raises(DidNotHappenError) as caught:
            harness.run_until("order.paid", timeout=30)
    assert str(caught.value) == shown[1]
