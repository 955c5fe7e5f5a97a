"""The wheel: what is in it, and that it works where nothing else of this repository is."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def run(*command: str | Path, folder: Path) -> str:
    """Run a command away from the repository and return its output; a failure shows both streams."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_only(wheel: Path) -> None:
    """Neither workers nor tests nor tools travel; Lua scripts, templates and py.typed do."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ares_celery").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == sources
    assert "ares_celery/py.typed" in packed


def test_the_installed_wheel_works_beside_a_foreign_workers_package(wheel: Path, tmp_path: Path) -> None:
    """In an empty environment with somebody else's `workers` package, `ares --help` answers and leaves it alone."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "-qq", "--constraint", ROOT / "constraints.txt", wheel, folder=tmp_path)
    site_packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path).strip()
    )
    (site_packages / "workers").mkdir()
    (site_packages / "workers" / "__init__.py").write_text("OWNER = 'somebody else'\n")

    usage = run(environment / "bin" / "ares", "--help", folder=tmp_path)

    assert "Usage: ares" in usage
    assert run(python, "-c", "import workers; print(workers.OWNER)", folder=tmp_path).strip() == "somebody else"
    found = "from importlib.util import find_spec; print(find_spec('ares_celery.testing.pytest_plugin').name)"
    assert run(python, "-c", found, folder=tmp_path).strip() == "ares_celery.testing.pytest_plugin"
