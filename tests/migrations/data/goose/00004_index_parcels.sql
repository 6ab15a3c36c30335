-- +goose NO TRANSACTION
-- +goose Up
CREATE INDEX CONCURRENTLY parcels_state ON parcels (state);
CREATE INDEX CONCURRENTLY parcels_label ON parcels (label);

-- +goose Down
DROP INDEX CONCURRENTLY parcels_label;
DROP INDEX CONCURRENTLY parcels_state;
