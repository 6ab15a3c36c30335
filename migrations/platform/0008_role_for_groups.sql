-- The strongest role that a person's groups give at a provider; NULL is no access.
CREATE FUNCTION platform.role_for_groups(provider text, groups text[]) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT mappings.role
    FROM platform.provider_group_mappings AS mappings
    JOIN platform.providers ON providers.id = mappings.provider_id
    WHERE providers.code = provider
      AND providers.retired_at IS NULL
      AND mappings.external_group = ANY (groups)
    ORDER BY array_position(ARRAY['owner', 'member', 'viewer'], mappings.role)
    LIMIT 1
$$;
