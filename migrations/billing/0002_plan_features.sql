-- What a plan includes, and how much of it.
CREATE TABLE billing.plan_features (
    plan_id   integer NOT NULL REFERENCES billing.plans (id) ON DELETE CASCADE,
    feature   text NOT NULL CHECK (feature IN ('seats', 'launches', 'telemetry_days')),
    allowance integer NOT NULL CHECK (allowance > 0),
    PRIMARY KEY (plan_id, feature)
);

INSERT INTO billing.plan_features (plan_id, feature, allowance)
SELECT plans.id, seed.feature, seed.allowance
FROM (VALUES
    ('suborbital', 'seats', 3),
    ('suborbital', 'launches', 1),
    ('orbital', 'seats', 25),
    ('orbital', 'launches', 10),
    ('orbital', 'telemetry_days', 30),
    ('lunar', 'seats', 500),
    ('lunar', 'launches', 100),
    ('lunar', 'telemetry_days', 365)
) AS seed (plan, feature, allowance)
JOIN billing.plans ON plans.code = seed.plan;
