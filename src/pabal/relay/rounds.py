"""Rounds: split a batch so that one statement never handles the same key twice."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def split_into_rounds(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Rounds in which every key occurs at most once. Items of one key keep their order."""
    rounds: list[list[Item]] = []
    next_round: dict[Hashable, int] = {}
    for item in items:
        index = next_round.get(key(item), 0)
        next_round[key(item)] = index + 1
        if index == len(rounds):
            rounds.append([])
        rounds[index].append(item)
    return rounds
