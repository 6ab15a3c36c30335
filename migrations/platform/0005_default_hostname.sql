-- The hostname an organisation gets before it brings one of its own.
CREATE FUNCTION platform.default_hostname(slug text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT slug || '.missions.example'
$$;
