-- migrate:up
CREATE FUNCTION parcels_on_their_way() RETURNS bigint LANGUAGE plpgsql AS $function$
DECLARE
    found bigint;
BEGIN
    SELECT count(*) INTO found FROM parcels WHERE state = 'sent'; -- it's; done
    RETURN found;
END;
$function$;

-- migrate:down
DROP FUNCTION parcels_on_their_way();
