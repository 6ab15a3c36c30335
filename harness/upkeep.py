"""What is done around each package of a run: what it left behind is looked at."""

from __future__ import annotations

from harness.report import Reporter
from harness.residue import Residue
from harness.results import PackageResult
from harness.session import Opened
from harness.settings import Package
from harness.watch import Watch


class Upkeep:
    """Watches the databases that `run` holds, pristine as they are now, over the packages of one run."""

    def __init__(self, run: Opened, reporter: Reporter) -> None:
        self._policy = run.settings.run.residue
        self._reporter = reporter
        self._names = {target.role: target.dsn.name for target in run.targets}
        self._watches: dict[str, Watch] = {}
        for target in run.targets if self._policy != "off" else ():
            # An ordinary maintenance role may be shut out where the owner is not.
            dsn = run.env.dsn("maintenance").at(target.dsn.name) if run.proof.server.superuser else target.dsn
            self._watches[target.role] = Watch(dsn, target.dsn.user, shared=not run.own_cluster)
            self._watches[target.role].begin()

    def after(self, package: Package, result: PackageResult) -> PackageResult:
        """Look at what the package left; tell it, and let the package fail for it, as harness.toml says."""
        watch = self._watches.get(package.role)
        residue = watch.look() if watch else None
        if residue is None:
            return result
        result = result._replace(residue=residue)
        if not residue.summary or package.allow_residue:
            return result
        self._reporter.say(f"{package.name} left in database {self._names[package.role]!r}: {residue.summary}")
        if self._policy == "fail" and result.status in ("passed", "skipped", "empty"):
            return result._replace(status="failed", detail=f"left behind: {residue.summary}")
        return result


def residue_of(result: PackageResult) -> Residue | None:
    """Return what a package of this process's own run left behind."""
    return result.residue if isinstance(result.residue, Residue) else None
