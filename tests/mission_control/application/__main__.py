"""Run Mission Control on the database of `MC_DB_DSN` until TERM or INT.

`MC_RECONCILE_INTERVAL` sets the seconds between two rounds of the reconcilers.
"""

import os
import signal
import sys

from .control import MissionControl


def main() -> None:
    """Boot, say so in one line, and reconcile until told to stop."""
    dsn = os.environ.get("MC_DB_DSN")
    if not dsn:
        sys.exit("MC_DB_DSN is not set; run test/bootstrap-stack.sh and source test/.env")
    interval = float(os.environ.get("MC_RECONCILE_INTERVAL", "1"))
    application = MissionControl(dsn, interval=interval)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: application.stop())
    with application:
        applied = len(application.migrated)
        sys.stdout.write(f"mission control is ready ({applied} migrations applied)\n")
        sys.stdout.flush()
        application.wait()


if __name__ == "__main__":
    main()
