"""A session's tree as lines of text. Pure: entries in, lines out; no recursion and no walk that can hang.

At a branch point one child goes on straight below its parent, and the others are drawn before it, one step further in.
Straight on goes the active path, and off it the child with the most below it: so the active path is the left edge, a
chain of any length is not indented, and no branch is deeper in than the logarithm of the tree's size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.cli.entry_lines import describe, is_spoken, kind_of, word_for
from harness.cli.screen import Line, Span
from storage.entries import Entry


class Glyphs(NamedTuple):
    """What a tree is drawn with."""

    active: str
    other: str
    branch: str
    along: str


DRAWN = Glyphs("●", "○", "├─", "│ ")
ASCII = Glyphs("*", "o", "|-", "| ")


@dataclass(slots=True)
class Node:
    """A drawn entry. ``parent`` and ``children`` are drawn too: what is left out in between is bridged."""

    id: str
    kind: str
    text: str
    parent: Node | None
    missing_parent: str | None = None
    children: list[Node] = field(default_factory=list["Node"])
    active: bool = False
    weight: int = 1


@dataclass(slots=True)
class Tree:
    """What is drawn. ``here`` is the node of the leaf, or ``None`` where nothing of it is drawn."""

    nodes: list[Node]
    here: Node | None
    active_ids: frozenset[str]
    """All entries on the active path, those that are not drawn included."""

    @property
    def roots(self) -> list[Node]:
        """The nodes without a parent, oldest first."""
        return [node for node in self.nodes if node.parent is None]

    @property
    def tips(self) -> int:
        """How many nodes nothing follows."""
        return sum(not node.children for node in self.nodes)


def tree_of(
    entries: Iterable[Entry],
    leaf_id: str | None,
    *,
    labels: Container[str] = (),
    everything: bool = False,
    length: int = 72,
) -> Tree:
    """The tree of ``entries``, which are in the order they were recorded; each says at most ``length`` characters.

    Bookkeeping is left out, but for what has one of the ``labels`` (by entry id), and unless ``everything``; what
    follows it is drawn below the nearest entry before it that is drawn. A parent that is missing, or recorded later (a
    cycle needs one), makes its child a root that says so.
    """
    nodes: list[Node] = []
    nearest: dict[str, Node | None] = {}
    parents: dict[str, str | None] = {}
    for entry in entries:
        parent_id = entry.parent_id
        missing = parent_id if parent_id is not None and parent_id not in nearest else None
        parent = None if parent_id is None else nearest.get(parent_id)
        if entry.id not in parents:
            parents[entry.id] = parent_id if missing is None else None
        if not everything and entry.id not in labels and not is_spoken(entry):
            nearest.setdefault(entry.id, parent)
            continue
        node = Node(entry.id, kind_of(entry), describe(entry, length), parent, missing)
        nodes.append(node)
        if parent is not None:
            parent.children.append(node)
        nearest.setdefault(entry.id, node)
    # Parents come first in the list, so one pass backwards adds up what is below each.
    for node in reversed(nodes):
        if node.parent is not None:
            node.parent.weight += node.weight
    here = nearest.get(leaf_id) if leaf_id is not None else None
    step = here
    while step is not None:
        step.active = True
        step = step.parent
    active: set[str] = set()
    active_id = leaf_id if leaf_id in parents else None
    while active_id is not None:
        active.add(active_id)
        active_id = parents[active_id]
    return Tree(nodes, here, frozenset(active))


def draw(
    tree: Tree, *, labels: Mapping[str, str], short: Callable[[str], str] = str, glyphs: Glyphs = DRAWN
) -> Iterator[Line]:
    """The lines of ``tree``, one a node, with ``labels`` by entry id."""
    roots = tree.roots
    if len(roots) > 1:
        bullet = glyphs.active if tree.here is None else glyphs.other
        yield [Span(f"{bullet} "), Span("(before the first message)", "dim")]
    waiting: list[tuple[Node, str, str]] = []
    _push(waiting, roots, "", glyphs)
    while waiting:
        node, first, rest = waiting.pop()
        yield _line(node, first, tree.here, labels, short, glyphs)
        _push(waiting, node.children, rest, glyphs)


def _push(waiting: list[tuple[Node, str, str]], children: Sequence[Node], prefix: str, glyphs: Glyphs) -> None:
    """Put ``children`` on the stack so that the one that goes straight on comes off last."""
    if not children:
        return
    straight = max(enumerate(children), key=lambda numbered: (numbered[1].active, numbered[1].weight, numbered[0]))[1]
    waiting.append((straight, prefix, prefix))
    aside = [child for child in reversed(children) if child is not straight]
    waiting.extend((child, prefix + glyphs.branch, prefix + glyphs.along) for child in aside)


def _line(
    node: Node,
    prefix: str,
    here: Node | None,
    labels: Mapping[str, str],
    short: Callable[[str], str],
    glyphs: Glyphs,
) -> Line:
    style = "" if node.active else "dim"
    line = [
        Span(prefix, "dim"),
        Span(f"{glyphs.active if node.active else glyphs.other} ", "green" if node.active else "dim"),
        Span(f"{short(node.id)} ", "yellow" if node.active else "dim"),
        Span(f"{word_for(node.kind):<9} ", "bold" if node.active else "dim"),
    ]
    if node is here:
        line.append(Span("(here) ", "bold green"))
    if node.id in labels:
        line.append(Span(f"[{labels[node.id]}] ", "bold magenta"))
    if node.missing_parent is not None:
        line.append(Span(f"(its parent {node.missing_parent} is missing) ", "red"))
    line.append(Span(node.text, style))
    return line
