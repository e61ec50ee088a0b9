-- Who did what, to what, with which effect. Entries are only added, and each holds the hash of the entry before.
-- needs: refuse_audit_change, seal_audit_entry
CREATE TABLE queuekeeper.audit (
    seq bigint NOT NULL, -- from 1, without gaps; set by the trigger, like at and the hashes
    at timestamptz NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL, -- plan, run, incident, or keyed hash of a client id
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
