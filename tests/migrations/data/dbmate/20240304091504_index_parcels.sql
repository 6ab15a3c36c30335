-- migrate:up transaction:false
CREATE INDEX CONCURRENTLY parcels_state ON parcels (state);
CREATE INDEX CONCURRENTLY parcels_label ON parcels (label);

-- migrate:down transaction:false
DROP INDEX CONCURRENTLY parcels_label;
DROP INDEX CONCURRENTLY parcels_state;
