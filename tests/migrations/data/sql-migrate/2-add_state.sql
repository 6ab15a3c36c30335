-- +migrate Up
CREATE TYPE parcel_state AS ENUM ('packed', 'sent');
ALTER TABLE parcels ADD COLUMN state parcel_state NOT NULL DEFAULT 'packed';

-- +migrate Down
ALTER TABLE parcels DROP COLUMN state;
DROP TYPE parcel_state;
