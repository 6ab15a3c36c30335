CREATE TABLE parcels (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    label text NOT NULL DEFAULT 'to; be -- named',
    weight numeric(8, 2) CHECK (weight > 0)
);
