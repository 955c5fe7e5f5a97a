"""``ares config``: the settings of a namespace."""

from __future__ import annotations

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.output import output_option, print_facts, print_json

__all__ = ["config"]


@click.group()
def config() -> None:
    """The namespace's settings."""


@config.command()
@click.argument("field", required=False)
@output_option
@pass_session
def get(session: Session, field: str | None, output: str) -> None:
    """Show all settings, or one FIELD."""
    from ares_celery.errors import InvalidSettingError

    values = session.config.model_dump(mode="json")
    if field is not None:
        if field not in values:
            raise InvalidSettingError(
                field=field, value=None, problem=f"no such setting; there are {', '.join(sorted(values))}"
            )
        values = {field: values[field]}
    if output == "json":
        print_json(values)
    else:
        print_facts(values)
