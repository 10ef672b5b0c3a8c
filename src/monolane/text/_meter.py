"""Rewrites the syntax tree of a template so that the code compiled from it counts what it does.

Jinja lets a sandbox intercept calls and operators, but neither loops nor ``~`` nor the making of
lists. Tracing each Python line would catch them at ten times the cost, and for the whole thread.
"""

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block, nodes.AssignBlock)


class Meter(NodeTransformer):
    """Adds calls of ``turn``, ``wrote``, ``joined`` and ``weighed``, methods of the sandbox."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        """Return the node, rewritten from its leaves up."""
        self.generic_visit(node)
        if isinstance(node, nodes.Concat):
            return _call("joined", node.nodes, node)
        if isinstance(node, nodes.List | nodes.Dict):
            return _call("weighed", [node], node)
        if isinstance(node, nodes.Tuple) and node.ctx == "load":
            return _call("weighed", [node], node)
        if isinstance(node, _REPEATED):
            node.body.insert(0, nodes.ExprStmt(_call("turn", [], node), lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(nodes.Not(_call("turn", [], node)), node.test)
        elif isinstance(node, nodes.Output):
            _count_text(node)
        return node


def _count_text(node: nodes.Output) -> None:
    chars = sum(len(part.data) for part in node.nodes if isinstance(part, nodes.TemplateData))
    if chars:
        node.nodes.insert(0, _call("wrote", [nodes.Const(chars)], node))


def _call(name: str, args: list[nodes.Expr], at: nodes.Node) -> nodes.Call:
    method = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(method, args, [], None, None, lineno=at.lineno)
