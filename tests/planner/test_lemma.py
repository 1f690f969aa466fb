"""The paper's Lemma 1 and its condition for the natural order, by enumerating every order of contraction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import pytest

from centaurus.planner.search import enumerate_plans

OPERANDS = {"u": "bif", "B": "ni", "k": "nf", "C": "jn"}  # in the lemma's order
OUTPUT = "bjf"
MOST_DIMENSIONS = 3
NATURAL, FULL_KERNEL = "(((uB)k)C)", "(u((Bk)C))"


class Tensor(NamedTuple):
    """Which operands were contracted (positions in the lemma's order), their indices, and how."""

    positions: frozenset[int]
    indices: str
    name: str


class Order(NamedTuple):
    """A complete order of contraction: its intermediate tensors, and whether u met neighbours only."""

    name: str
    intermediates: tuple[str, ...]
    neighbours_only: bool


def contract(x: Tensor, y: Tensor, others: list[Tensor], output: str = OUTPUT) -> Tensor:
    needed = output + "".join(other.indices for other in others)
    indices = "".join(i for i in dict.fromkeys(x.indices + y.indices) if i in needed)
    return Tensor(x.positions | y.positions, indices, f"({x.name}{y.name})")


def neighbours(x: Tensor, y: Tensor) -> bool:
    """Whether the two together are a run of operands without a gap."""
    both = x.positions | y.positions
    return max(both) - min(both) + 1 == len(both)


def orders(
    tensors: list[Tensor], made: tuple[str, ...] = (), fair: bool = True, output: str = OUTPUT
) -> Iterator[Order]:
    if len(tensors) == 1:
        yield Order(tensors[0].name, made[:-1], fair)
        return
    for x, y in combinations(tensors, 2):
        others = [t for t in tensors if t not in (x, y)]
        result = contract(x, y, others, output)
        involved = 0 in result.positions
        ordered = sorted([result, *others], key=lambda t: min(t.positions))
        yield from orders(ordered, (*made, result.indices), fair and (not involved or neighbours(x, y)), output)


def every_order(operands: dict[str, str] = OPERANDS, output: str = OUTPUT) -> list[Order]:
    start = [Tensor(frozenset([k]), indices, name) for k, (name, indices) in enumerate(operands.items())]
    return list(orders(start, output=output))


def test_intermediates_stay_small_exactly_where_the_signal_meets_its_neighbours() -> None:
    orders = every_order()
    assert len(orders) == 18  # 6 · 3 · 1 choices of a pair
    for order in orders:
        small = all(len(indices) <= MOST_DIMENSIONS for indices in order.intermediates)
        assert small == order.neighbours_only, order


def test_the_lemma_admits_more_orders_than_the_papers_two() -> None:
    admitted = {order.name for order in every_order() if order.neighbours_only}
    assert admitted == {NATURAL, FULL_KERNEL, "(u(B(kC)))", "(u((BC)k))", "((uB)(kC))", "((u(Bk))C)"}


def operations(name: str, sizes: dict[str, int]) -> int:
    """Multiplications of an order: for every contraction, the product of the sizes of all its indices."""
    total = 0

    def size(indices: str) -> int:
        product = 1
        for index in set(indices):
            product *= sizes[index]
        return product

    def walk(tensors: list[Tensor]) -> None:
        nonlocal total
        for x, y in combinations(tensors, 2):
            others = [t for t in tensors if t not in (x, y)]
            result = contract(x, y, others)
            if result.name in name:
                total += size(x.indices + y.indices)
                walk([result, *others])
                return

    walk([Tensor(frozenset([k]), indices, letter) for k, (letter, indices) in enumerate(OPERANDS.items())])
    return total


@pytest.mark.parametrize(
    ("batch", "states", "ins", "outs"), [(2, 8, 64, 64), (256, 256, 16, 32), (64, 512, 32, 32), (1, 4, 8, 8)]
)
def test_the_natural_order_wins_where_the_paper_says(batch: int, states: int, ins: int, outs: int) -> None:
    """1/B + 1/N > 1/H + 1/H', which leaves out the two smallest terms: the shapes here are not near the border."""
    sizes = {"b": batch, "n": states, "i": ins, "j": outs, "f": 1025}
    wins = operations(NATURAL, sizes) < operations(FULL_KERNEL, sizes)
    assert wins == (1 / batch + 1 / states > 1 / ins + 1 / outs)


def test_the_planner_searches_every_order_of_the_lemma() -> None:
    """Its plans of the same expression contract in the six orders that the lemma admits, and in others."""
    sizes = {"b": 4, "i": 3, "n": 5, "j": 2, "t": 64}
    result = set()
    for plan in enumerate_plans("u_bit B_ni k_nt C_jn -> y_bjt", sizes):
        names = {number: frozenset([letter]) for number, letter in enumerate(OPERANDS)}
        pairs = set()
        for step in plan.steps:
            parts = [names[value.number] for value in step.inputs]
            names[step.output.number] = frozenset().union(*parts)
            if len(parts) == 2:
                pairs.add(frozenset(parts))
        result.add(frozenset(pairs))
    admitted = {pairs_of(order.name) for order in every_order() if order.neighbours_only}
    assert admitted <= result


def pairs_of(name: str) -> frozenset[frozenset[frozenset[str]]]:
    """The contractions of an order, each as the two sets of operands that meet."""
    stack: list[frozenset[str]] = []
    pairs = set()
    for letter in name:
        if letter == ")":
            y, x = stack.pop(), stack.pop()
            pairs.add(frozenset([x, y]))
            stack.append(x | y)
        elif letter != "(":
            stack.append(frozenset(letter))
    return frozenset(pairs)


# A chunk of a gated layer as a contraction over its own past: s before t, u times Δ, the decay G between the two.
S6 = {"u": "bis", "B": "bns", "G": "bints", "C": "bnt", "E": "in"}
ONE_DECAY = {"u": "bis", "B": "bns", "G": "bts", "C": "bnt"}  # one decay for all channels and states
STATES = set("bint")  # what the recurrence holds: a state of every channel at every sample


def test_no_order_of_a_gated_layer_avoids_its_states() -> None:
    """The decay of S6 has every index: each order makes a tensor at least as large as the states. One decay differs."""
    orders = every_order(S6, "bit")
    assert len(orders) == 180
    assert all(any(set(made) >= STATES for made in order.intermediates) for order in orders)
    small = [order for order in every_order(ONE_DECAY, "bit") if not any(set(m) >= STATES for m in order.intermediates)]
    assert "(u((BC)G))" in {order.name for order in small}
