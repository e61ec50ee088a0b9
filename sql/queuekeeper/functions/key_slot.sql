-- Return the hash slot of all Redis keys of a client: CRC16 (XMODEM) of what the first pair of braces holds, which is
-- the id as far as its first closing brace. Keys of an id that begins with one have a slot each; such a client counts
-- to the slot of its bare stem.
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
            WHEN client_id = '' OR left(client_id, 1) = '}' THEN '{' || client_id || '}'
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
