--
-- Concurrently create indexes
--
-- harness: no-transaction
CREATE INDEX CONCURRENTLY parcels_state ON parcels (state);
CREATE INDEX CONCURRENTLY parcels_label ON parcels (label);
