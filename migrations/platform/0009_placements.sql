CREATE SEQUENCE platform.placement_numbers START 1000;

-- A seat in an organisation, held by somebody who signs in through a provider.
-- An organisation that goes leaves its placements behind, for the sweep to release.
CREATE TABLE platform.placements (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reference       text NOT NULL UNIQUE
                    DEFAULT 'PL-' || nextval('platform.placement_numbers'),
    organisation_id bigint REFERENCES platform.organisations (id) ON DELETE SET NULL,
    provider_id     integer NOT NULL REFERENCES platform.providers (id),
    holder          text NOT NULL CHECK (holder LIKE '_%@_%'),
    state           text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'released')),
    released_at     timestamptz,
    CHECK ((state = 'released') = (released_at IS NOT NULL))
);

ALTER SEQUENCE platform.placement_numbers OWNED BY platform.placements.reference;

CREATE UNIQUE INDEX placements_one_active_seat
ON platform.placements (organisation_id, holder) WHERE state = 'active';

CREATE INDEX placements_provider ON platform.placements (provider_id);
