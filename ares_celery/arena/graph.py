"""Which activity waits for which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["cycles"]


def cycles(edges: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Each cycle that a walk along the edges meets, from its first member round to it again; none twice.

    Example:
        >>> list(cycles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["d"]}))
        [('b', 'c', 'b'), ('d', 'd')]
    """
    done: set[str] = set()
    for start in edges:
        trail: list[str] = []
        # Without recursion: a file may chain any number of activities.
        stack: list[tuple[str, Iterator[str]]] = []

        def enter(name: str, trail: list[str] = trail, stack: list[tuple[str, Iterator[str]]] = stack) -> None:
            trail.append(name)
            stack.append((name, iter(edges.get(name, ()))))

        if start not in done:
            enter(start)
        while stack:
            name, following = stack[-1]
            after = next(following, None)
            if after is None:
                done.add(name)
                stack.pop()
                trail.pop()
            elif after in trail:
                yield (*trail[trail.index(after) :], after)
            elif after not in done:
                enter(after)
