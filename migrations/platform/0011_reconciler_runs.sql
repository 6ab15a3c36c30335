-- One row per reconciler, rewritten at every pass: the application's pulse.
CREATE TABLE platform.reconciler_runs (
    reconciler text PRIMARY KEY,
    runs       bigint NOT NULL CHECK (runs > 0),
    changed    bigint NOT NULL CHECK (changed >= 0),
    last_run   timestamptz NOT NULL
);
