"""`inv test` without its databases: settings, runner, reporter and boundary as the task composes them, on DSNs of nobody."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness import junit, page, report, runner
from harness.envfile import Env
from harness.errors import boundary
from harness.results import encode, exit_code, totals
from harness.settings import environment, find_root, load
from harness.targets import parse_dsn

PASSWORD = "0123456789abcdef"


def main() -> None:
    """Run the packages of the harness.toml here."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--e2e", "--fail-fast", "--quiet", "--strict"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--json", "--junit", "--html"):
        parser.add_argument(flag, default="")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    flags, arguments = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    with boundary("test", json_to=flags.json) as outcome:
        settings, shell = load(find_root()), environment()
        dsns = {
            database.role: parse_dsn(database.variable, f"postgresql://{database.name}:{PASSWORD}@nobody.invalid:1/{database.name}")
            for database in settings.databases
        }
        reporter = report.Reporter(shell=shell, expected=runner.expected_seconds(settings), quiet=flags.quiet)
        packages = [package for package in settings.packages if flags.e2e or package.role == "test"]
        env = Env(Path("test/.env"), dsns, None, ())
        try:
            with runner.workplace(settings, packages, env, shell=shell, say=reporter.say, arguments=arguments) as place:
                runner.run_packages(
                    settings,
                    packages,
                    env,
                    place=place,
                    shell=shell,
                    reporter=reporter,
                    arguments=arguments,
                    fail_fast=flags.fail_fast,
                    quiet=flags.quiet,
                    strict=flags.strict,
                )
        finally:
            results = reporter.results
            outcome.exit = exit_code(results)
            outcome.document = {"packages": encode(results), "totals": totals(results)}
            for line in report.summary_lines(results, pristine=True, doubts=reporter.doubts):
                reporter.say(line)
            if flags.junit:
                junit.write(Path(flags.junit), results)
            if flags.html:
                page.write(Path(flags.html), results, pristine=True, doubts=reporter.doubts)


if __name__ == "__main__":
    main()
