"""The harness's tasks; a repository that adopts it writes the same line above its own tasks."""

from harness.tasks import *  # noqa: F403  # the documented adoption line
