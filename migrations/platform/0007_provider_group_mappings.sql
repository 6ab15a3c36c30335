-- Which role a provider's own group gives. A group without a row gives none.
CREATE TABLE platform.provider_group_mappings (
    provider_id    integer NOT NULL
                   REFERENCES platform.providers (id) ON DELETE CASCADE,
    external_group text NOT NULL CHECK (external_group <> ''),
    role           text NOT NULL CHECK (role IN ('owner', 'member', 'viewer')),
    PRIMARY KEY (provider_id, external_group)
);

-- 'orbit' starts unmapped: its groups are for each installation to decide.
INSERT INTO platform.provider_group_mappings (provider_id, external_group, role)
SELECT providers.id, seed.external_group, seed.role
FROM platform.providers
CROSS JOIN (VALUES
    ('flight-directors', 'owner'),
    ('controllers', 'member'),
    ('visitors', 'viewer')
) AS seed (external_group, role)
WHERE providers.code = 'ground';
