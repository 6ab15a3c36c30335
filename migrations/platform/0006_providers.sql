-- Where people sign in from. A retired provider keeps its history and takes nobody new.
CREATE TABLE platform.providers (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    code       text NOT NULL UNIQUE,
    name       text NOT NULL,
    retired_at timestamptz
);

INSERT INTO platform.providers (code, name) VALUES
    ('ground', 'Ground Station Directory'),
    ('orbit', 'Orbit Identity');
