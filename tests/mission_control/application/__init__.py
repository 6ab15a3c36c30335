"""Mission Control: an application that keeps its own database in order while it runs."""

from .control import MissionControl

__all__ = ["MissionControl"]
