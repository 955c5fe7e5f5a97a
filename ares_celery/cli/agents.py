"""``ares agents``: what can be asked of agents; looking is in agents_show.py, messages in agents_talk.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import click

from ares_celery.cli.agent_words import say_standing, standing, store_time
from ares_celery.cli.agents_check import check
from ares_celery.cli.agents_fork import fork
from ares_celery.cli.agents_reconcile import reconcile
from ares_celery.cli.agents_show import LOOKING
from ares_celery.cli.agents_steps import steps
from ares_celery.cli.agents_talk import TALKING
from ares_celery.cli.apps import Session, pass_session
from ares_celery.cli.options import DURATION, JSON, why_options
from ares_celery.cli.output import output_option, print_json, say

__all__ = ["agents"]

_ID = click.argument("agent_id", metavar="ID")


@click.group()
def agents() -> None:
    """Look at agents, start, stop and talk to them."""


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``key=value`` options as a dict."""
    pairs: dict[str, str] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE")
        pairs[key] = text
    return pairs


def _config(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[dict[str, Any], bool]:
    """``--config`` as a config, and whether it names single keys of it."""
    if len(values) == 1 and (values[0] == "-" or values[0].lstrip().startswith("{")):
        config = JSON.convert(values[0], None, None)
        if not isinstance(config, dict):
            raise click.BadParameter("what stdin has is no JSON object")
        return cast("dict[str, Any]", config), False
    pairs: dict[str, Any] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key.isidentifier():
            raise click.BadParameter(f"{value!r} is neither a JSON object nor KEY=VALUE")
        pairs[key] = _json_or_text(text)
    return pairs, True


def _budget(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, float | None]:
    """``--budget`` as limits; the word none takes one away."""
    limits: dict[str, float | None] = {}
    for value in values:
        name, _separator, text = value.partition("=")
        try:
            limits[name] = None if text == "none" else float(text)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is no limit: write tokens=N, usd=N or steps=N, or none for N"
            ) from None
    return limits


_BUDGET = click.option(
    "--budget",
    multiple=True,
    callback=_budget,
    metavar="tokens|usd|steps=N",
    help="What it and the agents below it may spend in all; may be repeated, none for N takes a limit away.",
)


def _json_or_text(text: str) -> Any:  # noqa: ANN401 - a JSON value
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


@agents.command()
@_ID
@click.option("--type", "agent_type", help="Agent type; needed for a new agent.")
@click.option(
    "--config",
    "config",
    multiple=True,
    callback=_config,
    metavar="JSON|KEY=VALUE",
    help="A JSON object (- reads stdin), or single keys, repeated; reaches the agent's constructor as keywords.",
)
@click.option("--queue", help="Its own queue, without the namespace.")
@click.option(
    "--restart", type=click.Choice(["permanent", "transient", "temporary"]), help="Which endings bring it back."
)
@click.option("--group", metavar="NAME", help="Its supervision group: `ares groups`.")
@click.option("--max-restarts", type=click.IntRange(min=0), help="Charged deaths allowed; 0 = unlimited.")
@_BUDGET
@click.option("--label", "labels", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="May be repeated.")
@click.option(
    "--if-exists",
    type=click.Choice(["error", "return", "restart", "update"]),
    default="error",
    show_default=True,
    help="For an agent that is meant to run already.",
)
@click.option("--wait", is_flag=True, help="Return when its code runs, not when the request is stored.")
@click.option("--timeout", type=DURATION, help="Longest wait; default start_timeout.")
@why_options
@output_option
@pass_session
def start(  # noqa: PLR0913 - one parameter an option
    session: Session,
    /,
    *,
    agent_id: str,
    if_exists: Any,  # noqa: ANN401 - one of the four words, click checked it
    wait: bool,
    timeout: timedelta | None,
    reason: str,
    actor: str,
    output: str,
    **fields: Any,  # noqa: ANN401 - the spec's fields
) -> None:
    """Want agent ID to run: a new one with --type, else one that is known already."""
    handle = session.manager.start_agent(
        _spec(agent_id, fields),
        if_exists=if_exists,
        wait="running" if wait else "durable",
        timeout=timeout,
        reason=reason,
        actor=actor,
    )
    info = handle.info()
    if output == "json":
        print_json(info)
    else:
        say(standing(info, store_time(session, [info])))


def _spec(agent_id: str, fields: dict[str, Any]) -> Any:  # noqa: ANN401 - a spec, or the id of a known agent
    from ares_celery.agents.specs import parse_spec

    kind, (config, _) = fields.pop("agent_type"), fields.pop("config")
    fields["config"] = config
    given = {name: value for name, value in fields.items() if value not in (None, {})}
    if kind is None:
        if given:
            options = ", ".join(f"--{name.replace('_', '-').removesuffix('s')}" for name in sorted(given))
            raise click.UsageError(
                f"{options}: a spec is given with --type; without it a known agent is started as it is"
            )
        return agent_id
    return parse_spec({"id": agent_id, "type": kind, **given})


@agents.command()
@_ID
@click.option("--now", is_flag=True, help="Fence it at once instead of letting it end in order.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when it has ended.")
@click.option("--timeout", type=DURATION, help="Instead of agent_stop_timeout.")
@why_options
@pass_session
def stop(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    now: bool,
    wait: bool,
    timeout: timedelta | None,
    reason: str,
    actor: str,
) -> None:
    """Want agent ID not to run, whatever restarts. A parked one stays parked, a completed one completed."""
    session.manager.stop_agent(agent_id, wait=wait, force=now, timeout=timeout, reason=reason, actor=actor)
    say_standing(session, agent_id)


@agents.command()
@_ID
@click.option(
    "--config",
    "given",
    multiple=True,
    callback=_config,
    metavar="JSON|KEY=VALUE",
    help="The whole config as a JSON object (- reads stdin), or single keys of it; may be repeated.",
)
@_BUDGET
@click.option(
    "--apply",
    type=click.Choice(["next", "restart"]),
    default="next",
    show_default=True,
    help="From the next incarnation on, or now by a restart; one that does not run is not started.",
)
@why_options
@output_option
@pass_session
def update(  # noqa: PLR0913 - one parameter an option
    session: Session,
    *,
    agent_id: str,
    given: tuple[dict[str, Any], bool],
    budget: dict[str, float | None],
    apply: Any,  # noqa: ANN401 - one of the two words, click checked it
    reason: str,
    actor: str,
    output: str,
) -> None:
    """Give agent ID another config, or another budget."""
    config, merge = given
    # Without --config there are no pairs either: then the config stays as it is.
    has_config = bool(config) or not merge
    if not has_config and not budget:
        raise click.UsageError("give --config, --budget, or both")
    new: dict[str, Any] = {"config": config, "merge": merge} if has_config else {}
    if budget:
        new["budget"] = budget
    info = session.manager.update_agent(agent_id, apply=apply, reason=reason, actor=actor, **new)
    if output == "json":
        print_json(info)
    else:
        say(standing(info, store_time(session, [info])))


@agents.command()
@_ID
@why_options
@pass_session
def restart(session: Session, agent_id: str, reason: str, actor: str) -> None:
    """End agent ID in order and begin a new incarnation; un-parks. Not charged."""
    session.manager.restart_agent(agent_id, reason=reason, actor=actor)
    say_standing(session, agent_id)


@agents.command()
@_ID
@click.option("--type", "agent_type", help="Recover as this type; default its own.")
@why_options
@pass_session
def restore(session: Session, agent_id: str, agent_type: str | None, reason: str, actor: str) -> None:
    """Fail over on purpose: end agent ID in order and recover it in a new incarnation."""
    session.manager.restore_agent(agent_id, agent_type, reason=reason, actor=actor)
    say_standing(session, agent_id)


@agents.command()
@_ID
@click.option("--for", "duration", type=DURATION, help="It runs again by itself then; default: when it is resumed.")
@why_options
@pass_session
def pause(session: Session, *, agent_id: str, duration: timedelta | None, reason: str, actor: str) -> None:
    """Let agent ID end in order and rest; state and messages are kept."""
    session.manager.pause_agent(agent_id, duration=duration, reason=reason, actor=actor)
    say_standing(session, agent_id)


@agents.command()
@_ID
@why_options
@pass_session
def resume(session: Session, agent_id: str, reason: str, actor: str) -> None:
    """Let a paused agent run again; one that is not paused is left as it is."""
    session.manager.resume_agent(agent_id, reason=reason, actor=actor)
    say_standing(session, agent_id)


@agents.command()
@_ID
@click.option(
    "--accept-loss", is_flag=True, help="For cause integrity: go on without what is missing or damaged, for good."
)
@why_options
@pass_session
def unpark(session: Session, *, agent_id: str, accept_loss: bool, reason: str, actor: str) -> None:
    """Start a parked agent again with a full restart budget; one that is not parked is refused."""
    session.manager.unpark_agent(agent_id, accept_loss=accept_loss, reason=reason, actor=actor)
    say_standing(session, agent_id)


@agents.command()
@_ID
@why_options
@pass_session
def rm(session: Session, agent_id: str, reason: str, actor: str) -> None:
    """Forget a resting agent and everything stored of it."""
    session.manager.delete_agent(agent_id, reason=reason, actor=actor)
    say(f"agent {agent_id} is forgotten")


for _command in (*LOOKING, steps, check, fork, reconcile, *TALKING):
    agents.add_command(_command)
