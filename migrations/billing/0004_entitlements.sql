-- What an organisation may use now: from its ladder, or granted by hand and then left alone.
CREATE TABLE billing.entitlements (
    organisation_id bigint NOT NULL
                    REFERENCES platform.organisations (id) ON DELETE CASCADE,
    feature         text NOT NULL,
    plan_id         integer NOT NULL,
    allowance       integer NOT NULL CHECK (allowance > 0),
    source          text NOT NULL DEFAULT 'ladder' CHECK (source IN ('ladder', 'grant')),
    PRIMARY KEY (organisation_id, feature),
    FOREIGN KEY (plan_id, feature) REFERENCES billing.plan_features (plan_id, feature)
);

CREATE INDEX entitlements_plan ON billing.entitlements (plan_id, feature);
