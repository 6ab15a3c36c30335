CREATE SCHEMA billing;

CREATE TABLE billing.plans (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    code          text NOT NULL UNIQUE,
    name          text NOT NULL,
    monthly_cents integer NOT NULL CHECK (monthly_cents >= 0)
);

INSERT INTO billing.plans (code, name, monthly_cents) VALUES
    ('suborbital', 'Suborbital', 0),
    ('orbital', 'Orbital', 4900),
    ('lunar', 'Lunar', 19900);
