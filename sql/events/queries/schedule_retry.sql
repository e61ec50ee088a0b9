-- Have events come again to one handler.
-- params: subscription_id, ids, retry_number, handler, delay_s, retry_id
-- rows: id of the event that brings them, or none
-- index: none
SELECT
    pgmb.schedule_retry(
        %(subscription_id)s,
        %(ids)s::text[],
        %(retry_number)s,
        %(handler)s,
        make_interval(secs => %(delay_s)s),
        %(retry_id)s
    ) AS id
