-- Active seats that nobody can use: the organisation is gone or the provider is retired.
CREATE VIEW platform.orphaned_placements AS
SELECT placements.id, placements.reference
FROM platform.placements
JOIN platform.providers ON providers.id = placements.provider_id
WHERE placements.state = 'active'
  AND (placements.organisation_id IS NULL OR providers.retired_at IS NOT NULL);
