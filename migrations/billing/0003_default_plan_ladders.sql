-- The plans an org type climbs by default. Its organisations start on the lowest rung.
CREATE TABLE billing.default_plan_ladders (
    org_type text NOT NULL REFERENCES platform.org_types (code) ON DELETE CASCADE,
    rung     smallint NOT NULL CHECK (rung > 0),
    plan_id  integer NOT NULL REFERENCES billing.plans (id),
    PRIMARY KEY (org_type, rung),
    UNIQUE (org_type, plan_id)
);

-- 'academy' has no default: its plans are agreed one by one.
INSERT INTO billing.default_plan_ladders (org_type, rung, plan_id)
SELECT seed.org_type, seed.rung, plans.id
FROM (VALUES
    ('startup', 1, 'suborbital'),
    ('startup', 2, 'orbital'),
    ('startup', 3, 'lunar'),
    ('enterprise', 1, 'orbital'),
    ('enterprise', 2, 'lunar')
) AS seed (org_type, rung, plan)
JOIN billing.plans ON plans.code = seed.plan;
