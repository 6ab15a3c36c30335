-- clock_timestamp, not now: two changes in one transaction stay in order.
CREATE FUNCTION platform.touch_updated_at() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := clock_timestamp();
    RETURN NEW;
END;
$$;

CREATE TRIGGER organisations_touch_updated_at
BEFORE UPDATE ON platform.organisations
FOR EACH ROW EXECUTE FUNCTION platform.touch_updated_at();
