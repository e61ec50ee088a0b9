-- Return the hash slot of all Redis keys of a client: CRC16 (XMODEM) of what the first pair of braces holds, which is
-- the id as far as its first closing brace. An id that begins with one has it percent-encoded, and percent likewise.
CREATE FUNCTION queuekeeper.key_slot(client_id text)
RETURNS int
LANGUAGE plpgsql
IMMUTABLE
STRICT
PARALLEL SAFE
AS $$
DECLARE
    tag bytea := convert_to(
        CASE
            WHEN client_id = '' THEN '{}' -- nothing between the braces: the whole key counts
            WHEN left(client_id, 1) = '}' THEN '%7D' || split_part(substr(client_id, 2), '}', 1)
            WHEN left(client_id, 1) = '%' THEN '%25' || split_part(substr(client_id, 2), '}', 1)
            ELSE split_part(client_id, '}', 1)
        END,
        'UTF8'
    );
    crc int := 0;
    part int;
BEGIN
    FOR place IN 0..length(tag) - 1 LOOP
        part := (crc >> 8) # get_byte(tag, place);
        part := part # (part >> 4);
        crc := ((crc << 8) # (part << 12) # (part << 5) # part) & 65535;
    END LOOP;
    RETURN crc % 16384;
END;
$$;
