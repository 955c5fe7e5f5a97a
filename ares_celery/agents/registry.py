"""The agent types that this process knows; filled by ``@agent`` when modules are imported, never by a message."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ares_celery.agents.config_types import Alternatives, fits, in_words, kind_of, parameter_types
from ares_celery.agents.contract import Agent
from ares_celery.agents.upcasting import UPCASTERS, Upcasters
from ares_celery.errors import AgentTypeError, InvalidConfigError, UnknownAgentTypeError
from ares_celery.model.agent import AgentSpec
from ares_celery.model.snapshot import state_origin

__all__ = ["DEFAULT_MODULE", "REGISTRY", "AgentType", "Registry", "agent", "colour_of", "load_modules"]

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

#: Imported by every agents worker unless ARES_AGENT_MODULES names others; it alone may be missing.
DEFAULT_MODULE: Final = "workers.agents"
#: Characters of the name of a type; those of factories without a name are made from where they are.
_LONGEST_NAME: Final = 400
#: Without any of these an agent would be over as soon as it began.
_DOES: Final = ("start", "process", "process_stream")
#: All async or all plain; every other method is always plain.
_COLOURED: Final = ("start", "process", "process_stream", "stop")
#: What each method is called with.
_METHODS: Final = {
    "start": ("ctx",),
    "process": ("ctx", "message"),
    "process_stream": ("ctx", "message"),
    "stop": ("ctx",),
    "apply": ("event",),
    "replay_events": ("events",),
    "snapshot": (),
    "restore_state": ("state",),
    "heartbeat": (),
    "is_alive": (),
}


@dataclass(frozen=True, slots=True)
class AgentType:
    """One registered type.

    Attributes:
        name: The type, as specs name it.
        factory: Called for every incarnation.
        concurrency: How many messages an async agent answers at once.
        schema: Version of its state; newer state is never loaded by older code.
    """

    name: str
    factory: Callable[..., Any]
    concurrency: int
    schema: int

    @property
    def origin(self) -> tuple[str, str]:
        """Module and qualified name of the factory."""
        return getattr(self.factory, "__module__", "?"), getattr(self.factory, "__qualname__", repr(self.factory))

    def check_config(self, spec: AgentSpec, *, values: bool = True) -> None:
        """Raises InvalidConfigError when the config does not fit the constructor, by names or annotated types.

        Without ``values`` by names alone.
        """
        Registry.check_described(_parameters(self.factory), spec, values=values)
        self._bind(spec)

    def _bind(self, spec: AgentSpec) -> None:
        try:
            inspect.signature(self.factory).bind(spec.id, **spec.config)
        except TypeError as error:
            raise InvalidConfigError(agent_id=spec.id, type=self.name, problem=str(error)) from error

    def origin_of(self, spec: AgentSpec) -> str:
        """What takes the snapshots of an agent with this spec; see :func:`~ares_celery.model.snapshot.state_origin`."""
        return state_origin(agent_type=self.name, factory=".".join(self.origin), config=spec.config)

    def create(self, spec: AgentSpec) -> Agent:
        """Makes one instance.

        Raises:
            InvalidConfigError: The config does not fit.
            AgentTypeError: The factory gave nothing, or an object that mixes async and plain methods.
        """
        # Names alone: an agent that was made before types were checked lives on.
        self._bind(spec)
        made: Agent | None = self.factory(spec.id, **spec.config)
        if made is None:
            raise AgentTypeError(type=self.name, problem="the factory returned None", agent_id=spec.id)
        colour_of(made, self.name)
        return made


def colour_of(made: object, name: str) -> bool:
    """True for an async agent, False for a plain one.

    Raises:
        AgentTypeError: It breaks the contract of an agent; the text says in what, and what to do.
    """
    found: dict[str, bool] = {}
    for method, arguments in _METHODS.items():
        function = getattr(made, method, None)
        if function is None:
            continue
        if not callable(function):
            raise AgentTypeError(type=name, problem=f"{method} is not callable")
        _check_arguments(made, function, name, method, arguments)
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        _check_yields(function, name, method)
        if method in _COLOURED:
            found[method] = is_async
        elif is_async:
            raise AgentTypeError(
                type=name,
                problem=f"{method} is async, but only {', '.join(_COLOURED)} may be: write def {method}(…)",
            )
    if len(set(found.values())) > 1:
        kinds = ", ".join(f"{method} is {'async' if is_async else 'plain'}" for method, is_async in found.items())
        raise AgentTypeError(
            type=name,
            problem=f"{', '.join(_COLOURED)} must be all async or all plain, but {kinds} (all others are always plain)",
        )
    _check_whole(made, name)
    return next(iter(found.values()), True)


def _check_yields(function: Callable[..., Any], name: str, method: str) -> None:
    """Nothing but a stream is a generator: of any other one no line would run."""
    if method == "process_stream" or not (
        inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    ):
        return
    cure = "name it process_stream, or return its one answer" if method == "process" else "take the yield out"
    raise AgentTypeError(type=name, problem=f"{method} holds a yield, so calling it would run nothing: {cure}")


def _check_whole(made: object, name: str) -> None:
    """It does something, and what it saves it takes back; all is optional, so only a slip of the pen is refused."""
    if not any(hasattr(made, method) for method in _DOES):
        own = [method for method in dir(made) if not method.startswith("_") and method not in _METHODS]
        near = [(method, close) for method in own for close in get_close_matches(method, _DOES, n=1, cutoff=0.8)]
        problem = f"it has none of {', '.join(_DOES)}, so it would do nothing"
        if near:
            raise AgentTypeError(type=name, problem=f"{problem}; did you mean {near[0][1]} with {near[0][0]}?")
        log.warning("agent type %r: %s: its agents complete at once", name, problem)
    if hasattr(made, "snapshot") and not hasattr(made, "restore_state"):
        log.warning("agent type %r has snapshot() but no restore_state(): its state is not saved", name)


def _check_arguments(
    made: object, function: Callable[..., Any], name: str, method: str, arguments: tuple[str, ...]
) -> None:
    """The method takes what the runtime calls it with."""
    bound = ("self", *arguments) if inspect.isclass(made) and not _is_static(made, method) else arguments
    try:
        inspect.signature(function).bind(*bound)
    except TypeError as error:
        wanted = f"{method}({', '.join(('self', *arguments))})"
        raise AgentTypeError(type=name, problem=f"write {wanted}: {error}") from error
    except ValueError:
        return  # a builtin that does not tell its signature


def _is_static(made: type[Any], method: str) -> bool:
    return isinstance(inspect.getattr_static(made, method), (staticmethod, classmethod))


class Registry:
    """A set of agent types."""

    def __init__(self, upcasters: Upcasters | None = None) -> None:
        """Begins empty, with upcasters of its own unless some are given."""
        self._types: dict[str, AgentType] = {}
        #: What brings the old states of these types up to date.
        self.upcasters = Upcasters() if upcasters is None else upcasters

    def register(self, name: str, factory: Callable[..., Any], *, concurrency: int = 1, schema: int = 1) -> AgentType:
        """Adds a type; again from the same module and name it is replaced.

        Raises:
            AgentTypeError: Another factory holds the name, or the class breaks the contract.
        """
        _check_name(name)
        if not callable(cast("object", factory)):
            raise AgentTypeError(type=name, problem="a type needs a callable factory: a class or a function")
        if any(type(number) is not int or number < 1 for number in (concurrency, schema)):
            raise AgentTypeError(type=name, problem="concurrency and schema are whole numbers and start at 1")
        given: Any = factory
        if inspect.isclass(given):
            colour_of(given, name)
            _check_constructor(given, name)
        made = AgentType(name, factory, concurrency, schema)
        known = self._types.get(name)
        if known is not None and known.origin != made.origin:
            problem = f"{'.'.join(known.origin)} holds the name already; choose another"
            raise AgentTypeError(type=name, problem=problem)
        self._types[name] = made
        return made

    def replace(self, name: str, factory: Callable[..., Any]) -> AgentType:
        """Adds a type, or gives a known one another factory on purpose: the seed's register and restore do."""
        known = self._types.pop(name, None)
        try:
            return self.register(name, factory, schema=known.schema if known else 1)
        except AgentTypeError:
            if known is not None:
                self._types[name] = known
            raise

    def get(self, name: str) -> AgentType:
        """The type of this name.

        Raises:
            UnknownAgentTypeError: Nobody registered it here.
        """
        try:
            return self._types[name]
        except KeyError:
            raise UnknownAgentTypeError(type=name, known=sorted(self._types)) from None

    def find(self, name: str) -> AgentType | None:
        """The type of this name, or None."""
        return self._types.get(name)

    def name_of(self, factory: object) -> str | None:
        """The type that this factory is registered under, or None."""
        return next((known.name for known in self._types.values() if known.factory is factory), None)

    @staticmethod
    def check_described(parameters: Mapping[str, Any], spec: AgentSpec, *, values: bool = True) -> None:
        """Checks a config against what a process said of the type's factory. Raises InvalidConfigError."""
        unknown = [] if parameters["open"] else sorted(set(spec.config) - set(parameters["names"]))
        missing = sorted(set(parameters["required"]) - set(spec.config))
        if unknown or missing:
            parts = [f"unknown: {', '.join(unknown)}"] if unknown else []
            parts += [f"missing: {', '.join(missing)}"] if missing else []
            problem = f"{'; '.join(parts)}; it takes {', '.join(parameters['names']) or 'nothing'}"
            raise InvalidConfigError(agent_id=spec.id, type=spec.type, problem=problem)
        # Workers of older versions say nothing of types.
        types: Mapping[str, Alternatives] = parameters.get("types", {}) if values else {}
        for name, value in spec.config.items():
            if not fits(value, types.get(name)):
                problem = f"{name} is {kind_of(value)}, and the constructor takes {name}: {in_words(types[name])}"
                if "bool" in types[name]:
                    problem += "; a bool is true or false"
                raise InvalidConfigError(agent_id=spec.id, type=spec.type, problem=problem)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._types)

    def schemas(self) -> Mapping[str, int]:
        """The newest state schema of each type that this process can load."""
        return {name: known.schema for name, known in self._types.items()}

    def describe(self) -> Mapping[str, Mapping[str, Any]]:
        """For other processes: each type with the parameters that its factory takes."""
        return {name: _parameters(known.factory) for name, known in self._types.items()}


def _check_name(name: object) -> None:
    problem = ""
    if not isinstance(name, str) or not name:
        problem = "its name is to be a text that is not empty"
    elif len(name) > _LONGEST_NAME:
        problem = f"its name has {len(name)} characters, and may have {_LONGEST_NAME}"
    elif not name.isprintable() or any(character.isspace() for character in name):
        problem = "its name holds blanks or unprintable characters; use a hyphen"
    if problem:
        raise AgentTypeError(type=name if isinstance(name, str) else str(name), problem=problem)


def _check_constructor(made: type[Any], name: str) -> None:
    """The agent's id arrives as the only positional argument."""
    try:
        parameters = list(inspect.signature(made).parameters.values())
    except (TypeError, ValueError):
        return
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if not takes:
        raise AgentTypeError(type=name, problem="write __init__(self, agent_id, …): the id comes first")


def _parameters(factory: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        parameters = list(inspect.signature(factory).parameters.values())[1:]
    except (TypeError, ValueError):
        return {"open": True, "names": [], "required": []}
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return {
        "open": any(p.kind is p.VAR_KEYWORD for p in parameters),
        "names": [p.name for p in named],
        "required": [p.name for p in named if p.default is p.empty],
        "types": parameter_types(factory, named),
    }


#: The process's own registry, which ``@agent`` fills.
REGISTRY: Final = Registry(UPCASTERS)


def agent(type: str, /, *, concurrency: int = 1, schema: int = 1) -> Callable[[F], F]:  # noqa: A002 - the public name
    """Registers a class or function as the factory of an agent type.

    Args:
        type: The name that specs use.
        concurrency: How many messages an async agent answers at once.
        schema: Version of the state that ``snapshot`` gives.

    Raises:
        AgentTypeError: Another factory holds the name, or the class mixes async and plain methods.

    Example:
        >>> @agent("doc-greeter")
        ... class Greeter:
        ...     def __init__(self, agent_id: str, greeting: str = "hello") -> None:
        ...         self.greeting = greeting
        ...     async def process(self, ctx: object, message: str) -> str:
        ...         return f"{self.greeting} {message}"
        >>> REGISTRY.get("doc-greeter").create(AgentSpec(id="g", type="doc-greeter")).greeting
        'hello'
    """
    if not isinstance(cast("object", type), str):
        shown = getattr(type, "__qualname__", None) or repr(type)
        raise AgentTypeError(type=shown, problem='the decorator takes the name of the type: write @agent("name")')

    def register(factory: F) -> F:
        REGISTRY.register(type, factory, concurrency=concurrency, schema=schema)
        return factory

    return register


def load_modules(modules: Sequence[str] | None) -> tuple[str, ...]:
    """Imports the modules that register agent types; None means the default one, which may be missing.

    Raises:
        ImportError: A named module cannot be imported, or the default one fails inside.
    """
    # The `celery` command has the working folder on the path only while it looks for the app.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    if modules is not None:
        for name in modules:
            importlib.import_module(name)
        return tuple(modules)
    try:
        importlib.import_module(DEFAULT_MODULE)
    except ModuleNotFoundError as error:
        if error.name not in (DEFAULT_MODULE, DEFAULT_MODULE.partition(".")[0]):
            raise
        log.debug("no module %s: this process knows only the agent types imported so far", DEFAULT_MODULE)
        return ()
    return (DEFAULT_MODULE,)
