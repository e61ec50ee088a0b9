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
