CREATE TABLE platform.domains (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organisation_id bigint NOT NULL
                    REFERENCES platform.organisations (id) ON DELETE CASCADE,
    hostname        text NOT NULL UNIQUE
                    CHECK (hostname = lower(hostname) AND hostname LIKE '%_._%'),
    is_primary      boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX domains_organisation ON platform.domains (organisation_id);

CREATE UNIQUE INDEX domains_one_primary
ON platform.domains (organisation_id) WHERE is_primary;
