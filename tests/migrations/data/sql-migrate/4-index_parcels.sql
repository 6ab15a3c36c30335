-- +migrate Up notransaction
CREATE INDEX CONCURRENTLY parcels_state ON parcels (state);
CREATE INDEX CONCURRENTLY parcels_label ON parcels (label);

-- +migrate Down notransaction
DROP INDEX CONCURRENTLY parcels_label;
DROP INDEX CONCURRENTLY parcels_state;
