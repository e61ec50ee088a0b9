-- Return whether we may read the payloads of the vendor's messages, or at least get their sizes.
-- params: none
-- rows: one: (may_read, may_be_told)
-- index: none
SELECT
    coalesce(has_table_privilege(to_regclass('device_publish_msg'), 'SELECT'), TRUE) AS may_read,
    coalesce(
        has_schema_privilege(to_regnamespace('queuekeeper'), 'USAGE')
        AND has_function_privilege(to_regprocedure('queuekeeper.message_facts(tid, tid)'), 'EXECUTE'), FALSE
    ) AS may_be_told
