"""``ares config``: the settings of a namespace."""

from __future__ import annotations

from typing import Final

import click

from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import why_options
from ares_celery.cli.output import output_option, print_facts, print_json, print_table, say

__all__ = ["LATER", "config"]

#: Settings that an incarnation is made with; all others hold at once. See docs/howto/change-settings.md.
LATER: Final = frozenset(
    {
        "allowed_misses",
        "health_check_interval",
        "integrity",
        "max_replay_events",
        "replay_overflow",
        "snapshot_every_events",
        "snapshot_interval",
        "startup_grace",
    }
)


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


@config.command("set")
@click.argument("pairs", nargs=-1, required=True, metavar="FIELD=VALUE...")
@why_options
@output_option
@pass_session
def set_(session: Session, *, pairs: tuple[str, ...], reason: str, actor: str, output: str) -> None:
    """Change settings, all that are named or none: lease_ttl=10s chaos=true. Every process follows within a second."""
    changes = _changes(pairs)
    after = session.manager.set_config(changes, reason=reason, actor=actor).model_dump(mode="json")
    shown = {name: after[name] for name in changes}
    if output == "json":
        print_json(shown)
    else:
        print_facts(shown)
        if later := [name for name in changes if name in LATER]:
            say(f"agents that run keep their {', '.join(later)} until their next incarnation")


def _changes(pairs: tuple[str, ...]) -> dict[str, str]:
    if len(pairs) == 2 and not any("=" in pair for pair in pairs):  # noqa: PLR2004 - a name and its value
        return {pairs[0]: pairs[1]}
    changes: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"{pair!r} is not FIELD=VALUE", param_hint="FIELD=VALUE")
        changes[name] = value
    return changes


@config.command()
@output_option
@pass_session
def diff(session: Session, output: str) -> None:
    """Show where this process's own values (ARES_<FIELD>, or its app's) differ; those of the namespace hold."""
    own, stored = session.wiring.own_config, session.config
    given = own.model_dump(mode="json", include=own.model_fields_set)
    there = stored.model_dump(mode="json")
    differing = {
        name: {"own": value, "namespace": there[name]} for name, value in given.items() if value != there[name]
    }
    if output == "json":
        print_json(differing)
    elif differing:
        rows = ((name, values["own"], values["namespace"]) for name, values in differing.items())
        print_table(("FIELD", "OWN", "NAMESPACE"), rows)
    elif given:
        say("the values that this process was given are those of the namespace")
    else:
        say("this process was given no values (ARES_<FIELD>, or its app), so all are those of the namespace")
