-- Return a setting.
CREATE FUNCTION pgmb.get_config_value(config_id pgmb.config_type)
RETURNS text
LANGUAGE sql
STRICT
STABLE
PARALLEL SAFE
AS $$
    SELECT c.value FROM pgmb.config AS c WHERE c.id = config_id
$$;
