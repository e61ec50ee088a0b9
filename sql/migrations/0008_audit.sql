-- Number an entry of the audit, date it, and chain it to the one before; whoever inserts it has no say in these.
-- The hash is over the length and the bytes of each field in turn, so that no text can pass for two.
-- It runs as the owner of the schema: who adds entries need not be allowed to read any.
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
    -- One entry at a time: two that followed the same one would be a fork.
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

-- Refuse to change or remove entries of the audit.
CREATE FUNCTION queuekeeper.refuse_audit_change()
RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '% of queuekeeper.audit is refused: entries are only ever added', TG_OP
    USING ERRCODE = 'insufficient_privilege';
END;
$$;

-- Who did what, to what, with which effect. Entries are only ever added, and each holds the hash of the one before.
CREATE TABLE queuekeeper.audit (
    seq bigint NOT NULL, -- from 1, without gaps; set by the trigger, like at and the hashes
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL, -- plan, run, or keyed hash of a client id
    report_hash text, -- SHA-256 of the report that it is about
    effect json NOT NULL, -- as it was written, to the byte: the hash is over this text
    previous_hash text NOT NULL, -- empty in the first entry
    hash text NOT NULL,
    CONSTRAINT audit_pkey PRIMARY KEY (seq)
);

CREATE INDEX audit_subject_idx ON queuekeeper.audit (subject, seq);

CREATE TRIGGER seal BEFORE INSERT ON queuekeeper.audit
FOR EACH ROW EXECUTE FUNCTION queuekeeper.seal_audit_entry();

CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON queuekeeper.audit
FOR EACH ROW EXECUTE FUNCTION queuekeeper.refuse_audit_change();

CREATE TRIGGER refuse_truncation BEFORE TRUNCATE ON queuekeeper.audit
FOR EACH STATEMENT EXECUTE FUNCTION queuekeeper.refuse_audit_change();

-- Also in a session that plays a replica.
ALTER TABLE queuekeeper.audit ENABLE ALWAYS TRIGGER seal;
ALTER TABLE queuekeeper.audit ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE queuekeeper.audit ENABLE ALWAYS TRIGGER refuse_truncation;
