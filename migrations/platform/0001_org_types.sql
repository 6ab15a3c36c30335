CREATE SCHEMA platform;

-- What an organisation is; billing decides by it which plans are offered first.
CREATE TABLE platform.org_types (
    code  text PRIMARY KEY CHECK (code ~ '^[a-z]+$'),
    label text NOT NULL UNIQUE
);

INSERT INTO platform.org_types (code, label) VALUES
    ('startup', 'Start-up'),
    ('enterprise', 'Enterprise'),
    ('academy', 'Academy');
