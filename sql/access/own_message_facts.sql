-- Give the function to the owner of the vendor's table: it should not run as a superuser.
DO $queuekeeper$
BEGIN
    EXECUTE (
        SELECT format('ALTER FUNCTION queuekeeper.message_facts(tid, tid) OWNER TO %s', relation.relowner::regrole)
        FROM pg_catalog.pg_class AS relation
        WHERE relation.oid = 'public.device_publish_msg'::regclass
    );
END
$queuekeeper$;
