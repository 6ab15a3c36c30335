CREATE TABLE platform.organisations (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slug       text NOT NULL UNIQUE
               CHECK (slug ~ '^[a-z][a-z0-9-]*$' AND length(slug) <= 40),
    name       text NOT NULL CHECK (btrim(name) <> ''),
    org_type   text NOT NULL REFERENCES platform.org_types (code),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX organisations_org_type ON platform.organisations (org_type);
