-- Number an entry of the audit, date it, and chain it to the one before; values given by the insert are replaced.
-- The hash covers the length and the bytes of each field in turn, so that one text cannot pass for two.
-- It runs as the owner of the schema, so that a role that adds entries needs no right to read them.
CREATE FUNCTION queuekeeper.seal_audit_entry()
RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER
SET search_path = ''
AS $$
DECLARE
    last_seq bigint;
    last_hash text;
    field text;
    content bytea := '';
BEGIN
    -- One entry at a time: two entries after the same one would fork the chain.
    PERFORM pg_advisory_xact_lock(hashtextextended('queuekeeper.audit', 0));
    SELECT audit.seq, audit.hash INTO last_seq, last_hash FROM queuekeeper.audit ORDER BY audit.seq DESC LIMIT 1;
    NEW.seq := coalesce(last_seq, 0) + 1;
    NEW.at := clock_timestamp();
    NEW.previous_hash := coalesce(last_hash, '');
    FOREACH field IN ARRAY ARRAY[
        NEW.seq::text, (extract(EPOCH FROM NEW.at) * 1000000)::bigint::text, NEW.actor, NEW.action, NEW.subject,
        coalesce(NEW.report_hash, ''), NEW.effect::text, NEW.previous_hash
    ] LOOP
        content := content || convert_to(octet_length(convert_to(field, 'UTF8')) || ':' || field, 'UTF8');
    END LOOP;
    NEW.hash := encode(sha256(content), 'hex');
    RETURN NEW;
END;
$$;
