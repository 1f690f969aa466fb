"""Cache of tables that depend on parameters alone, valid inside ``held``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Store = dict[Hashable, Any]

MOST = 1024  # entries of a store, which is then cleared: a stream in pieces of many lengths must not fill the memory

_store: ContextVar[Store | None] = ContextVar("centaurus-tables", default=None)


@contextmanager
def held(store: Store) -> Iterator[None]:
    """Make ``once`` cache its results in ``store`` inside this context."""
    token = _store.set(store)
    try:
        yield
    finally:
        _store.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return ``make()``, or its earlier result inside the same ``held``."""
    store = _store.get()
    if store is None:
        return make()
    if key not in store:
        if len(store) >= MOST:
            store.clear()
        store[key] = make()
    table: T = store[key]
    return table
