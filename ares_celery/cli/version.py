"""``ares version``."""

from __future__ import annotations

import click

from ares_celery.cli.output import output_option, print_facts, print_json

__all__ = ["show_version", "version"]

_PACKAGES = ("ares-celery", "celery", "kombu", "redis", "pydantic", "flower")


def show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001 - of click
    """The product's own version on one line; `ares version` tells those of what it stands on as well."""
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version as version_of

        click.echo(f"ares-celery {version_of('ares-celery')}")
        ctx.exit()


@click.command()
@output_option
def version(output: str) -> None:
    """Show the versions of the product and of what it stands on."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    found: dict[str, object] = {}
    for name in _PACKAGES:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            found[name] = None
    found["python"] = platform.python_version()
    if output == "json":
        print_json(found)
    else:
        print_facts(found)
