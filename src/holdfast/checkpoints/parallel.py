"""A few things at once, in threads: the work is reading, hashing and sending, which leave the interpreter free."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """The results, in order. After a failure nothing more is begun, and what is under way is waited for."""
    if workers == 1 or len(items) < 2:
        return [work(item) for item in items]
    results: dict[int, Result] = {}
    failures: list[BaseException] = []
    # A number for each item and no future: for a checkpoint of many files those would take more memory than all else.
    left = deque(range(len(items)))

    def work_on() -> None:
        while left:
            try:
                number = left.popleft()
            except IndexError:
                return
            try:
                results[number] = work(items[number])
            except BaseException as error:
                failures.append(error)
                left.clear()
                raise

    with ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="checkpoints") as pool:
        try:
            wait([pool.submit(work_on) for _ in range(min(workers, len(items)))])
        finally:
            left.clear()
    if failures:
        raise failures[0]
    return [results[number] for number in range(len(items))]
