ALTER TABLE parcels DROP COLUMN state;
DROP TYPE parcel_state;
