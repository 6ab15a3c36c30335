"""A step that is taken in a thread of its own, while the caller does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """One step at work; a `daemon` is not waited for at the end of the process."""

    def __init__(self, step: Callable[[], T], *, daemon: bool = False) -> None:
        # Not Thread.join and is_alive: up to Python 3.12 a join that a signal interrupts lets the thread count as dead while it works on.
        self._over = threading.Event()
        self._outcome: list[T] = []
        self._failure: BaseException | None = None
        threading.Thread(target=self._take, args=[step], daemon=daemon).start()

    def _take(self, step: Callable[[], T]) -> None:
        try:
            self._outcome.append(step())
        except BaseException as error:  # noqa: BLE001  # raised again where the result is asked for
            self._failure = error
        finally:
            self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether the step has ended, well or not."""
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the step has ended; False when `timeout` seconds passed first."""
        return self._over.wait(timeout)

    def result(self) -> T:
        """Wait for the step's end and return what it returned; raises what it raised."""
        self.wait()
        if self._failure is not None:
            raise self._failure
        return self._outcome[0]
