"""Nodes and edges of a DAG as people register them: ``{"nodes": [...], "edges": [...]}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ares_celery.arena.values import as_list, as_mapping

__all__ = ["without_edge", "without_node"]


def without_node(dag: object, node_id: str) -> Mapping[str, Any] | None:
    """The DAG without a node and the edges at it; None when it has no such node.

    Example:
        >>> without_node({"nodes": ["a", {"id": "b"}], "edges": [["a", "b"]]}, "b")
        {'nodes': ['a'], 'edges': []}
    """
    nodes, edges = _parts(dag)
    left = [node for node in nodes if _id(node) != node_id]
    if len(left) == len(nodes):
        return None
    return {**_fields(dag), "nodes": left, "edges": [edge for edge in edges if node_id not in _ends(edge)]}


def without_edge(dag: object, source: str, target: str) -> Mapping[str, Any] | None:
    """The DAG without an edge; None when it has no such edge.

    Example:
        >>> without_edge({"nodes": ["a", "b"], "edges": [{"from": "a", "to": "b"}]}, "a", "b")
        {'nodes': ['a', 'b'], 'edges': []}
    """
    _, edges = _parts(dag)
    left = [edge for edge in edges if _ends(edge) != (source, target)]
    return None if len(left) == len(edges) else {**_fields(dag), "edges": left}


def _fields(dag: object) -> Mapping[str, Any]:
    return as_mapping(dag)


def _parts(dag: object) -> tuple[list[Any], list[Any]]:
    return as_list(_fields(dag).get("nodes")), as_list(_fields(dag).get("edges"))


def _id(node: object) -> str:
    fields = _fields(node)
    return str(fields.get("id", fields.get("name", ""))) if fields else str(node)


def _ends(edge: object) -> tuple[str, str]:
    if isinstance(edge, list):
        first, last = [*map(str, as_list(cast("object", edge))), "", ""][:2]
        return first, last
    fields = _fields(edge)
    return str(fields.get("from", fields.get("source", ""))), str(fields.get("to", fields.get("target", "")))
